package wire

import (
	"bytes"
	"strings"
)

// Usage is what an answer says it cost, in tokens.
type Usage struct {
	Input, Output int
	// Known is false until the answer has said something.
	Known bool
}

// Event is what one event of a stream in the OpenAI API says.
type Event struct {
	Done      bool // the end marker
	Error     bool // any of the shapes in which engines report failure inside a stream
	Shaped    bool // of an error: the shape that official SDKs raise on, an error object with a message
	Opening   bool // choices that say nothing yet: no part of an answer, no end, at most a role
	Content   bool // carries a part of the answer; a chunk with nothing but a role does not
	Finish    bool // a choice ended
	NoChoices bool // choices is absent, null or empty
	Malformed bool // neither the end marker nor a JSON object
	Typed     bool // it says in a member called type what it is, as those of OpenAI's responses do
	Usage     Usage
	// Message is an error's message: what stands between the quotes in the event's data, escapes included.
	Message []byte
	ID      []byte // of the response that a typed event tells of, as written; it lives as long as the data
	kind    eventKind
}

// UsageOnly reports that the event has nothing for a client that did not ask for usage.
func (e *Event) UsageOnly() bool {
	return e.Usage.Known && e.NoChoices && !e.Error && !e.Content && !e.Finish
}

// ReadEvent reads an event's name and data. It never fails: what it cannot read is Malformed.
func ReadEvent(name, data []byte) Event {
	ev := Event{NoChoices: true}
	if string(data) == "[DONE]" {
		ev.Done = true
		return ev
	}
	ev.Error = string(name) == "error"
	c := cursor{b: data}
	if c.peek() != '{' {
		ev.Malformed = true
		return ev
	}
	c.i++
	for first := true; ; first = false {
		key, more, f := c.member(first)
		if f == flawNone && more {
			f = ev.member(&c, key)
		}
		if f != flawNone {
			ev.Malformed = true
			return ev
		}
		if !more {
			ev.classify()
			ev.Opening = (ev.kind == kindOpening || !ev.NoChoices && !ev.Usage.Known) && !ev.Content && !ev.Finish && !ev.Error
			return ev
		}
	}
}

func (ev *Event) member(c *cursor, key []byte) flaw {
	switch string(key) {
	case "choices":
		if c.peek() == '[' {
			return ev.choices(c)
		}
	case "usage":
		if c.peek() == '{' {
			return ev.Usage.read(c)
		}
	case "error":
		return ev.fault(c)
	case "message":
		if c.peek() == '"' {
			text, f := c.str()
			if !ev.Shaped {
				ev.Message = text
			}
			return f
		}
		if c.peek() == '{' {
			return ev.message(c)
		}
	case "response":
		if c.peek() == '{' {
			return ev.response(c)
		}
	case "object", "type":
		if c.peek() == '"' {
			text, f := c.str()
			ev.Error = ev.Error || string(text) == "error"
			if string(key) == "type" {
				ev.kind = kindOf(text)
			}
			return f
		}
	}
	return c.value()
}

// fault reads the error member. What says nothing (null, "", [], {}) is none; clients take it so too.
func (ev *Event) fault(c *cursor) flaw {
	switch c.peek() {
	case '{':
		from := c.i
		f := ev.faultObject(c)
		ev.Error = ev.Error || c.i-from > len("{}")
		return f
	case '"':
		text, f := c.str()
		if len(text) > 0 {
			ev.Error, ev.Message = true, text
		}
		return f
	case 'f':
		return c.value()
	}
	filled, f := c.filled()
	ev.Error = ev.Error || filled
	return f
}

func (ev *Event) faultObject(c *cursor) flaw {
	c.i++
	for first := true; ; first = false {
		key, more, f := c.member(first)
		if f != flawNone || !more {
			return f
		}
		if string(key) == "message" && c.peek() == '"' {
			ev.Message, f = c.str()
			ev.Shaped = true
		} else {
			f = c.value()
		}
		if f != flawNone {
			return f
		}
	}
}

// maxFaultBytes bounds what a client is told of an engine's message.
const maxFaultBytes = 500

// FaultText is an error's message for a client: decoded and cut to a bound. "" without one.
func (ev *Event) FaultText() string {
	raw := ev.Message[:min(len(ev.Message), maxFaultBytes)]
	if cut := bytes.LastIndexByte(raw, '\\'); cut >= 0 && len(raw) < len(ev.Message) && len(raw)-cut < len(`\ud83d\ude00`) {
		raw = raw[:cut] // an escape that may have been cut in two
	}
	text := plain(make([]byte, 0, maxFaultBytes+8), raw)
	return strings.ToValidUTF8(string(text), "\ufffd")
}

func (ev *Event) choices(c *cursor) flaw {
	c.i++
	for first := true; ; first = false {
		more, f := c.element(first)
		if f != flawNone || !more {
			return f
		}
		ev.NoChoices = false
		if c.peek() != '{' {
			if f := c.value(); f != flawNone {
				return f
			}
			continue
		}
		if f := ev.choice(c); f != flawNone {
			return f
		}
	}
}

func (ev *Event) choice(c *cursor) flaw {
	c.i++
	for first := true; ; first = false {
		key, more, f := c.member(first)
		if f != flawNone || !more {
			return f
		}
		switch string(key) {
		case "delta":
			if c.peek() == '{' {
				f = ev.delta(c)
				break
			}
			f = c.value()
		case "text":
			var filled bool
			filled, f = c.filled()
			ev.Content = ev.Content || filled
		case "finish_reason":
			ev.Finish = ev.Finish || c.peek() != 'n'
			f = c.value()
		default:
			f = c.value()
		}
		if f != flawNone {
			return f
		}
	}
}

// delta looks for anything but a role: text, reasoning, a refusal, tool calls, whatever comes next year.
func (ev *Event) delta(c *cursor) flaw {
	c.i++
	for first := true; ; first = false {
		key, more, f := c.member(first)
		if f != flawNone || !more {
			return f
		}
		filled, f := c.filled()
		if f != flawNone {
			return f
		}
		if filled && string(key) != "role" {
			ev.Content = true
		}
	}
}

// filled steps over a value and reports whether it is something else than null, "", [] and {}.
func (c *cursor) filled() (bool, flaw) {
	from := c.i
	f := c.value()
	raw := c.b[from:c.i]
	return f == flawNone && raw[0] != 'n' && len(raw) > 2, f
}

// read reads the usage object at the cursor, by the names of OpenAI's APIs and of Anthropic's, where what came from a
// cache or went into one is counted apart. Details below are stepped over.
func (u *Usage) read(c *cursor) flaw {
	c.i++
	total, cached := -1, 0
	for first := true; ; first = false {
		key, more, f := c.member(first)
		if f != flawNone || !more {
			if total >= 0 && !u.Known {
				u.Input, u.Known = total, true
			}
			u.Input += cached
			return f
		}
		var n int
		switch string(key) {
		case "prompt_tokens", "input_tokens":
			if n, f = c.count(); n >= 0 {
				u.Input, u.Known = n, true
			}
		case "completion_tokens", "output_tokens":
			if n, f = c.count(); n >= 0 {
				u.Output, u.Known = n, true
			}
		case "cache_read_input_tokens", "cache_creation_input_tokens":
			n, f = c.count()
			cached += max(n, 0)
		case "total_tokens": // all that some rerankers say
			total, f = c.count()
		default:
			f = c.value()
		}
		if f != flawNone {
			return f
		}
	}
}
