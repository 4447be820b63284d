package gateway

import (
	"sync"
	"time"

	"sluice/gateway/record"
	"sluice/gateway/relay"
	"sluice/gateway/wire"
	"sluice/router"
	"sluice/router/own"
	"sluice/slo"
)

// Room around the bytes of an answer, so that a chunk's frame is put on without copying.
const (
	chunkHeadRoom = 10       // eight hexadecimal digits, CRLF
	chunkTailRoom = 2 + 5    // CRLF, and the last chunk
	bodyBuffer    = 16 << 10 // bytes of an answer read at once
	keptBytes     = 1 << 10  // bytes that wait for more outside a buffer, so that it can serve others
)

// answerBuffer has room for one read of an answer, with its frame.
type answerBuffer [chunkHeadRoom + bodyBuffer + chunkTailRoom]byte

// answerBuffers are taken when bytes are there. Thousands of streams that wait for their next token share a few.
var answerBuffers = sync.Pool{New: func() any { return new(answerBuffer) }}

// attempt is one try of a request on one replica: its charge there, its exchange, and what has been read of the answer
// and not passed on. One goroutine owns it at a time.
type attempt struct {
	call     *call
	ticket   own.Ticket
	charged  bool // the ticket holds a charge
	replica  router.Replica
	exchange relay.Exchange
	upstream relay.Request
	stream   wire.Stream
	usage    wire.UsageScanner
	failure  failure

	parts   [][]byte
	scratch []byte
	header  []byte
	buf     *answerBuffer // nil while nothing is in it
	held    int           // bytes at the beginning of the room: events that wait for one worth sending
	kept    int           // those, and the beginning of an event behind them
	aside   []byte        // those bytes, while there is no buffer

	told      *record.Try // nil: no record is kept
	racing    bool        // a second try whose first one has not lost yet; it has a goroutine of its own
	committed bool        // its answer is the one that the client gets
	events    bool        // the answer is an event stream
	opaque    bool        // the answer is encoded: nothing in it can be read
	noted     bool        // it is known where the engine keeps the answer
	fate      slo.Outcome // how a second try ended

	started time.Time
	firstBy time.Time // until when the first token must be there
	hedgeAt time.Time // when a second try begins; zero: never
	first   time.Time // first token, or first byte of an answer that does not stream
	last    time.Time // last token
}

// begin makes the attempt ready for another replica, keeping its buffers.
func (a *attempt) begin() {
	a.failure.reset()
	a.stream.Reset()
	a.usage.Reset()
	a.racing, a.committed, a.events, a.opaque, a.held, a.kept = false, false, false, false, 0, 0
	a.noted, a.first, a.last = false, time.Time{}, time.Time{}
	a.aside = a.aside[:0]
}

// reset drops every reference.
func (a *attempt) reset() {
	a.begin()
	a.giveBack()
	clear(a.parts)
	a.replica, a.upstream = router.Replica{}, relay.Request{}
	a.parts, a.scratch, a.header = a.parts[:0], a.scratch[:0], a.header[:0]
}

// acquire waits for a replica, until gone is closed, and charges it.
func (a *attempt) acquire(gone <-chan struct{}) error {
	k := a.call
	if err := k.srv.deps.Router.Acquire(&a.ticket, &k.ask, gone); err != nil {
		return err
	}
	a.charged, a.replica = true, a.ticket.Replica()
	return nil
}

// release ends the exchange and gives the charge back, if there is one.
func (a *attempt) release(outcome slo.Outcome) {
	k := a.call
	a.noteEnd(outcome)
	k.srv.client.Finish(&a.exchange)
	a.giveBack()
	if !a.charged {
		return
	}
	a.charged = false
	if c := k.books.failed[outcome]; c != nil {
		c.Inc()
	}
	res := own.Result{Outcome: outcome, E2EMs: msSince(k.arrived), TTFTMs: a.ttftMs()}
	res.InputTokens, res.OutputTokens = a.tokens()
	res.Busy, res.RetryAfterMs = a.failure.busy, a.failure.retryAfterS*1000
	res.Aside = k.endpoint.free
	a.ticket.Release(res)
}

func (a *attempt) ttftMs() float64 {
	if a.first.IsZero() || !a.call.head.Stream {
		return 0
	}
	return float64(a.first.Sub(a.call.arrived)) / float64(time.Millisecond)
}

// itlMs is the mean time between the tokens of a stream.
func (a *attempt) itlMs(outputTokens int) float64 {
	if n := max(outputTokens, a.stream.Content); n > 1 && a.last.After(a.first) && a.call.head.Stream {
		return float64(a.last.Sub(a.first)) / float64(time.Millisecond) / float64(n-1)
	}
	return 0
}

// tokens is what the engine said, else an estimate: bytes of the prompt, events with content.
func (a *attempt) tokens() (input, output int) {
	if a.call.endpoint.free {
		return 0, 0
	}
	usage := a.stream.Usage
	if !usage.Known {
		usage = a.usage.Usage()
	}
	if usage.Known {
		return usage.Input, usage.Output
	}
	if a.first.IsZero() {
		return 0, 0
	}
	return a.call.ask.PromptTokens, a.stream.Content
}

// body is where an answer's bytes are read to.
func (a *attempt) body() []byte {
	if a.buf == nil {
		a.buf = answerBuffers.Get().(*answerBuffer)
		copy(a.buf[chunkHeadRoom:], a.aside)
		a.aside = a.aside[:0]
	}
	return a.buf[chunkHeadRoom : chunkHeadRoom+bodyBuffer]
}

// settle gives the buffer back if what is kept in it has room elsewhere.
func (a *attempt) settle() {
	if a.buf == nil || a.kept > keptBytes {
		return
	}
	a.aside = append(a.aside[:0], a.body()[:a.kept]...)
	a.giveBack()
}

// giveBack lets the buffer go with whatever is in it.
func (a *attempt) giveBack() {
	if a.buf != nil {
		answerBuffers.Put(a.buf)
		a.buf = nil
	}
}

// Room implements relay.Sink.
func (a *attempt) Room() []byte { return a.body()[a.kept:] }

// Take implements relay.Sink.
func (a *attempt) Take(n int) bool {
	more := true
	switch {
	case n == 0:
	case a.events:
		more = a.takeEvents(n)
	default:
		more = a.takeBody(n)
	}
	a.settle()
	return more
}

// token notes that tokens, or the first byte of a plain answer, have come.
func (a *attempt) token() {
	a.last = time.Now()
	if a.first.IsZero() {
		a.first = a.last
		a.ticket.FirstByte()
		a.exchange.Hold(time.Time{})
	}
}

// commit makes the try's answer the client's, from its first byte worth sending on. False: the other try was first.
func (a *attempt) commit() bool {
	if !a.call.claim(a) {
		return false
	}
	a.committed, a.hedgeAt = true, time.Time{}
	if a.first.IsZero() && !a.stream.Finish && !a.stream.Done {
		a.hold() // comments: the first token is still to come
	} else {
		a.exchange.Hold(time.Time{})
	}
	return true
}
