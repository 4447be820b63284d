package anthropic

import (
	"encoding/json"
	"strconv"
	"strings"

	"sluice/gateway/wire"
)

// Ping is the event that says that the answer is still on its way.
const Ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n"

// maxErrorText bounds what a client is told of an engine's error, in bytes.
const maxErrorText = 1 << 10

// Stream translates the chunks of a streamed chat completion into the events of a message. It writes whole events only.
// The zero value is ready for Begin; a Stream may be used again and keeps its buffers.
type Stream struct {
	// Content counts the events with a part of the answer that were written, Fault says that the engine reported an
	// error or that its answer could not be read: an error event has been written then, and nothing follows it.
	Content int
	Fault   bool

	answer  Answer
	framer  wire.Framer
	id      []byte // the engine's
	usage   usage
	end     ending
	started bool // message_start has been written
	ended   bool // message_stop has been written
	blocks  []outBlock
	at      int // the block that is open, or opens next; those before it have ended
	calls   int
	held    int // bytes that wait
}

// Begin makes s ready for an answer.
func (s *Stream) Begin(a Answer) {
	framer, blocks, id := s.framer, s.blocks, s.id
	framer.Reset()
	*s = Stream{answer: a, framer: framer, blocks: blocks[:0], id: id[:0]}
}

// Ended reports that the message is complete, or has ended with an error.
func (s *Stream) Ended() bool { return s.ended || s.Fault }

// Feed takes the next bytes of the engine's stream and appends the events that follow from them.
func (s *Stream) Feed(dst, p []byte) []byte {
	for len(p) > 0 { // ends: Next takes a byte or more
		n, mark := s.framer.Next(p)
		p = p[n:]
		if mark == wire.MarkEvent && !s.Ended() {
			dst = s.event(dst)
		}
	}
	return dst
}

// End takes the end of a stream that ended in order, and appends what is missing of the message.
func (s *Stream) End(dst []byte) []byte {
	if s.Ended() {
		return dst
	}
	return s.finish(dst)
}

// event translates the event that the framer has just ended.
func (s *Stream) event(dst []byte) []byte {
	f := &s.framer
	data := f.Data()
	switch {
	case f.Over():
		return s.fail(dst, TypeAPI, "The engine sent an event that is too large.")
	case f.Lines() == 0:
		return append(dst, Ping...) // a comment: the engine lives
	case string(data) == "[DONE]":
		return s.finish(dst)
	case !wire.Valid(data):
		if string(f.Name()) == "error" {
			return s.fail(dst, TypeAPI, "The engine reported an error.")
		}
		return s.fail(dst, TypeAPI, "The engine's answer was malformed.")
	}
	if wire.ReadEvent(f.Name(), data).Error {
		kind, message := engineError(data)
		return s.fail(dst, kind, message)
	}
	return s.chunk(dst, data)
}

// fail writes an error, after which nothing follows.
func (s *Stream) fail(dst []byte, kind, message string) []byte {
	s.Fault = true
	return AppendErrorEvent(dst, Error{Type: kind, Message: message, RequestID: []byte(s.answer.ID)})
}

// EngineError reads an engine's error, in whatever of the usual shapes, as a type of the Messages API and a message.
func EngineError(body []byte, status int) (kind, message string) {
	kind, message = engineError(body)
	if kind == TypeAPI {
		kind = TypeOf(status)
	}
	return kind, message
}

func engineError(data []byte) (kind, message string) {
	kind, message = TypeAPI, "The engine reported an error."
	for _, value := range [][]byte{data, member(data, "error")} {
		if inside, ok := wire.Inside(value); ok && len(inside) > 0 {
			message = cleaned(value)
			continue
		}
		if text := member(value, "message"); len(text) > 2 && text[0] == '"' {
			message = cleaned(text)
		}
		switch name, _ := wire.Inside(member(value, "type")); string(name) {
		case wire.TypeInvalidRequest, wire.TypeAuthentication, wire.TypePermission, TypeNotFound, TypeTooLarge,
			wire.TypeRateLimit, wire.TypeOverloaded, TypeTimeout:
			kind = string(name)
		}
	}
	return kind, message
}

// member returns a member's value; nil without one.
func member(object []byte, name string) (value []byte) {
	for m := wire.ReadMembers(object); m.Next(); {
		if string(m.Name) == name {
			value = m.Value
		}
	}
	return value
}

// cleaned decodes a JSON string for people to read.
func cleaned(quoted []byte) string {
	var text string
	if json.Unmarshal(quoted, &text) != nil {
		return "The engine reported an error."
	}
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "") + " …"
	}
	return text
}

// chunk translates one chunk that is valid JSON and no error.
func (s *Stream) chunk(dst, data []byte) []byte {
	var choices []byte
	m := wire.ReadMembers(data)
	for m.Next() {
		switch string(m.Name) {
		case "id":
			if inside, ok := wire.Inside(m.Value); ok && !s.started && len(inside) <= maxID {
				s.id = append(s.id[:0], inside...)
			}
		case "usage":
			s.usage.read(m.Value)
		case "choices":
			choices = m.Value
		}
	}
	if m.Malformed() {
		return s.fail(dst, TypeAPI, "The engine's answer was malformed.")
	}
	dst = s.start(dst)
	e := wire.ReadElements(choices)
	if !e.Next() {
		if s.end.finish != "" && s.usage.known {
			return s.finish(dst) // the counts come last
		}
		return dst
	}
	return s.choice(dst, e.Value)
}

func (s *Stream) start(dst []byte) []byte {
	if s.started {
		return dst
	}
	s.started = true
	dst = append(dst, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\""...)
	dst = appendID(dst, s.id, s.answer.ID)
	dst = append(dst, `","type":"message","role":"assistant","model":`...)
	dst = wire.AppendQuoted(dst, s.answer.Model)
	dst = append(dst, `,"content":[],"stop_reason":null,"stop_sequence":null,"usage":`...)
	dst = s.usage.append(dst)
	return append(dst, "}}\n\n"...)
}

func (s *Stream) choice(dst, choice []byte) []byte {
	var delta []byte
	m := wire.ReadMembers(choice)
	for m.Next() {
		switch string(m.Name) {
		case "delta":
			delta = m.Value
		case "finish_reason":
			if reason := finished(m.Value); reason != "" {
				s.end.finish = reason
			}
		case "stop_reason", "matched_stop":
			s.end.match = append(s.end.match[:0], matched(m.Value)...)
		}
	}
	var d said
	if len(delta) == 0 || delta[0] != '{' {
		return dst
	}
	if !d.read(delta) {
		return s.fail(dst, TypeAPI, "The engine's answer was malformed.")
	}
	if !s.answer.HideThinking {
		dst = s.say(dst, kindThinking, d.thoughts)
	}
	dst = s.say(dst, kindText, d.text)
	if inside, ok := wire.Inside(d.refusal); ok && len(inside) > 0 {
		s.end.refused = true
		dst = s.say(dst, kindText, d.refusal)
	}
	for e := wire.ReadElements(d.calls); e.Next() && !s.Fault; {
		c, ok := readCall(e.Value)
		if !ok {
			return s.fail(dst, TypeAPI, "The engine sent a tool call that is malformed.")
		}
		dst = s.fragment(dst, &c)
	}
	return dst
}

// finish ends every block and the message.
func (s *Stream) finish(dst []byte) []byte {
	dst = s.start(dst)
	if dst = s.advance(dst, true); s.Fault {
		return dst
	}
	s.ended = true
	dst = append(dst, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{"...)
	dst = s.end.append(dst)
	dst = append(dst, `},"usage":`...)
	dst = s.usage.append(dst)
	return append(dst, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"...)
}

// begun writes the event that opens block s.at.
func (s *Stream) begun(dst []byte) []byte {
	b := &s.blocks[s.at]
	b.open = true
	dst = append(dst, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":"...)
	dst = strconv.AppendInt(dst, int64(s.at), 10)
	dst = append(dst, `,"content_block":`...)
	if b.kind == kindTool {
		dst = appendToolHead(dst, &call{id: b.id, name: b.name}, s.at, s.id, s.answer.ID)
		return append(dst, "{}}}\n\n"...)
	}
	dst = append(dst, openings[b.kind]...)
	return append(dst, "\"}}\n\n"...)
}

// delta writes a part of block s.at. part is the inside of a string.
func (s *Stream) delta(dst, part []byte) []byte {
	if len(part) == 0 {
		return dst
	}
	s.Content++
	dst = append(dst, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":"...)
	dst = strconv.AppendInt(dst, int64(s.at), 10)
	switch s.blocks[s.at].kind {
	case kindText:
		dst = append(dst, `,"delta":{"type":"text_delta","text":"`...)
	case kindThinking:
		dst = append(dst, `,"delta":{"type":"thinking_delta","thinking":"`...)
	default:
		dst = append(dst, `,"delta":{"type":"input_json_delta","partial_json":"`...)
	}
	dst = append(dst, part...)
	return append(dst, "\"}}\n\n"...)
}

func (s *Stream) stopped(dst []byte) []byte {
	dst = append(dst, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":"...)
	dst = strconv.AppendInt(dst, int64(s.at), 10)
	return append(dst, "}\n\n"...)
}
