package wire

import "bytes"

// MaxResponseIDBytes bounds the id of a response that is remembered.
const MaxResponseIDBytes = 128

// Events of OpenAI's responses and transcriptions, and of Anthropic's messages, say what they are in a member called
// type, and end with one of their own instead of [DONE].
type eventKind uint8

const (
	kindUntyped  eventKind = iota
	kindOther              // response.output_item.added and the like
	kindOpening            // response.created: nothing of an answer yet
	kindDelta              // a part of the answer
	kindFinished           // the last event of a good answer
	kindFailed             // the last event of a bad one
)

func kindOf(name []byte) eventKind {
	switch string(name) {
	case "response.created", "response.queued", "response.in_progress", "message_start":
		return kindOpening
	case "content_block_start", "content_block_stop", "message_delta", "ping":
		return kindOther
	case "content_block_delta":
		return kindDelta
	case "response.completed", "response.incomplete", "transcript.text.done", "message_stop":
		return kindFinished
	case "response.failed", "response.cancelled":
		return kindFailed
	}
	switch {
	case !bytes.HasPrefix(name, []byte("response.")) && !bytes.HasPrefix(name, []byte("transcript.")):
		return kindUntyped
	case bytes.HasSuffix(name, []byte(".delta")):
		return kindDelta
	}
	return kindOther
}

// response reads the response object that opening and last events carry: its id and its usage.
func (ev *Event) response(c *cursor) flaw {
	c.i++
	for first := true; ; first = false {
		key, more, f := c.member(first)
		if f != flawNone || !more {
			return f
		}
		switch {
		case string(key) == "id" && c.peek() == '"':
			ev.ID, f = c.str()
		case string(key) == "usage" && c.peek() == '{':
			f = ev.Usage.read(c)
		default:
			f = c.value()
		}
		if f != flawNone {
			return f
		}
	}
}

// message reads the message object that Anthropic's first event carries: its usage.
func (ev *Event) message(c *cursor) flaw {
	c.i++
	for first := true; ; first = false {
		key, more, f := c.member(first)
		if f != flawNone || !more {
			return f
		}
		if string(key) == "usage" && c.peek() == '{' {
			f = ev.Usage.read(c)
		} else {
			f = c.value()
		}
		if f != flawNone {
			return f
		}
	}
}

// classify settles what a typed event is, when all of it has been read.
func (ev *Event) classify() {
	switch ev.kind {
	case kindDelta:
		ev.Content = true
	case kindFinished:
		ev.Finish, ev.Done = true, true
	case kindFailed:
		ev.Error, ev.Shaped, ev.Done = true, true, true // it goes on as it is: clients know it
	}
	ev.Typed = ev.kind != kindUntyped
}
