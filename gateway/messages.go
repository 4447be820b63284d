package gateway

import (
	"sync"

	"github.com/valyala/fasthttp"

	"sluice/gateway/anthropic"
	"sluice/slo"
)

// Paths of Anthropic's API, and the name under which a model's spec says that its engines have it.
const (
	messagesPath    = "/v1/messages"
	countTokensPath = "/v1/messages/count_tokens"
	speaksMessages  = "messages"
)

// noMessages stands for every other path below messagesPath: its errors are told as there.
var noMessages = &endpoint{dialect: dialectAnthropic}

// Limits of a translation.
const (
	// maxTranslated bounds a plain answer that is translated, which is kept until it has all come.
	maxTranslated = 32 << 20
	// maxVersionBytes bounds one of the headers that say which form of the API a client speaks.
	maxVersionBytes = 1 << 10
	// keptTranslation is how much of each buffer is kept from one call to the next.
	keptTranslation = 64 << 10
)

// translation stands between a call of the Messages API and an engine that knows chat completions only. It belongs to
// its call. Beside the body as the client sent it there is one more copy, the translated one.
type translation struct {
	chat   []byte // the request as engines get it
	answer anthropic.Answer
	stream anthropic.Stream
	out    []byte // what goes to the client, with room for a chunk's frame
	whole  []byte // of a plain answer what has come
	large  bool   // and there was too much of it
	over   bool   // the stream goes on in our own words
	count  bool   // only the tokens are asked for
}

var translations = sync.Pool{New: func() any { return new(translation) }}

// begin makes the translation ready for the answer of another try. Safe on nil.
func (t *translation) begin() {
	if t != nil {
		t.stream.Begin(t.answer)
		t.whole, t.large, t.over = t.whole[:0], false, false
	}
}

// giveBack lets the translation serve another call. Safe on nil.
func (t *translation) giveBack() {
	if t == nil {
		return
	}
	for _, buf := range []*[]byte{&t.chat, &t.out, &t.whole} {
		if *buf = (*buf)[:0]; cap(*buf) > keptTranslation {
			*buf = nil
		}
	}
	t.answer, t.count = anthropic.Answer{}, false
	t.begin()
	translations.Put(t)
}

// faulty reports that the engine's stream could not be told as a message, or told of a failure itself. Safe on nil.
func (t *translation) faulty() bool { return t != nil && t.stream.Fault }

// translate makes a chat completions request of a request to the Messages API, if the model's engines need it. The rest
// of the call sees that one.
func (k *call) translate() bool {
	if k.endpoint.dialect != dialectAnthropic || k.model.Has(speaksMessages) {
		return true
	}
	t := translations.Get().(*translation)
	k.translation = t
	t.answer = anthropic.Answer{ID: string(k.id), Model: string(k.head.Model)}
	var err error
	if t.count = k.endpoint.path == countTokensPath; t.count {
		k.hurryCount()
		t.chat, err = anthropic.AppendCountChat(t.chat[:0], k.ctx.Request.Body())
	} else {
		t.chat, t.answer.Wanted, err = anthropic.AppendChat(t.chat[:0], k.ctx.Request.Body())
	}
	if err == nil {
		err = k.head.Scan(t.chat)
	}
	if err != nil {
		k.unusable(err)
		return false
	}
	return true
}

// payload is the body for engines, before edits.
func (k *call) payload() []byte {
	if k.translation != nil {
		return k.translation.chat
	}
	return k.ctx.Request.Body()
}

// enginePath is where the engine takes the request.
func (k *call) enginePath() string {
	switch t := k.translation; {
	case t == nil:
		return k.endpoint.path
	case t.count:
		return "/tokenize"
	}
	return "/v1/chat/completions"
}

// appendVersions passes on the headers that say which form of the API the client speaks, for an engine that has it too.
// Values that are long, or not printable ASCII, end here.
func appendVersions(h []byte, client *fasthttp.RequestHeader) []byte {
	for _, name := range []string{"Anthropic-Version", "Anthropic-Beta"} {
		for _, value := range client.PeekAll(name) {
			odd := len(value) == 0 || len(value) > maxVersionBytes
			for _, ch := range value {
				odd = odd || ch < ' ' || ch > '~'
			}
			if odd {
				continue
			}
			h = append(h, name...)
			h = append(h, ": "...)
			h = append(h, value...)
			h = append(h, "\r\n"...)
		}
	}
	return h
}

// keep puts a plain answer's next bytes aside. It reports false when there are too many.
func (t *translation) keep(p []byte) bool {
	if t.large = len(t.whole)+len(p) > maxTranslated; !t.large {
		t.whole = append(t.whole, p...)
	}
	return !t.large
}

// misformed reports, for a call that is translated, an answer that is no stream though one was asked for, or the other
// way round.
func (a *attempt) misformed() bool {
	return a.call.translation != nil && (a.events != a.call.head.Stream || a.opaque)
}

// untold fails a try whose answer cannot be told as a message, before any of it has gone to the client.
func (k *call) untold(why string) verdict {
	k.fail(fasthttp.StatusBadGateway, slo.UpstreamError, "upstream_malformed", "The engine's answer cannot be told as a message: "+why+".")
	return elsewhere
}

// tellMessage ends a plain answer that has all come.
func (k *call) tellMessage() verdict {
	t := k.translation
	if t.count {
		return k.tellCount()
	}
	var err error
	if t.out, err = anthropic.AppendMessage(t.out[:0], t.whole, t.answer); err != nil {
		return k.untold("it is no chat completion with a choice, or its tool calls are broken")
	}
	k.outcome = slo.OK
	k.appendHead(int64(len(t.out)), false)
	k.sealed = true
	k.put(t.out)
	if cap(k.out) > keptTranslation {
		k.out = nil
	}
	return answered
}

// sendEvents translates the first n bytes of the room and sends the events that follow from them, in one write; with
// last, the end of the message too. A fault that comes before anything has gone to the client is not told: another
// replica may do better.
func (k *call) sendEvents(n int, last bool) bool {
	t := k.translation
	var room [chunkHeadRoom]byte
	t.out = append(t.out[:0], room[:]...)
	piece := k.at.body()[:n]
	t.out = t.stream.Feed(t.out, piece)
	if len(t.out) == len(room) && n > 0 && piece[0] == ':' {
		t.out = append(t.out, anthropic.Ping...)
	}
	if last {
		t.out = t.stream.End(t.out)
	}
	if t.stream.Fault && !k.begun && !last {
		return false
	}
	size := len(t.out) - len(room)
	if size == 0 && !last {
		return true
	}
	k.sealed = k.sealed || last
	t.out = append(t.out, room[:chunkTailRoom]...)
	if k.chunked {
		return k.put(frame(t.out, size, last))
	}
	return k.put(t.out[len(room) : len(room)+size])
}

// endUntold ends a stream that could not be told as a message. If it had begun, an error event has gone out.
func (k *call) endUntold() verdict {
	if !k.begun {
		return k.untold("its events are malformed, or its tool calls cannot be told apart")
	}
	k.outcome, k.closing = slo.UpstreamError, true
	k.at.held, k.at.kept = 0, 0
	k.seal(0)
	return answered
}
