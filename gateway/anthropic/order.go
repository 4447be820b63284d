package anthropic

import (
	"bytes"

	"sluice/gateway/wire"
)

// keptBytes is how much of a block's buffer is kept from one answer to the next.
const keptBytes = 4 << 10

// outBlock is a content block on its way to the client.
type outBlock struct {
	kind  string
	open  bool      // content_block_start has been written
	index int       // of a tool's call as the engine said it; -1: it did not
	id    []byte    // of a tool's call, empty when the engine gave none
	name  []byte    // of the tool, empty until it is known
	args  arguments // of the call
	held  []byte    // insides of strings that wait for the blocks before
}

// push adds a block behind the others, reusing the buffers of an older one.
func (s *Stream) push(kind string) *outBlock {
	n := len(s.blocks)
	if n < cap(s.blocks) {
		s.blocks = s.blocks[:n+1]
	} else {
		s.blocks = append(s.blocks, outBlock{})
	}
	b := &s.blocks[n]
	if cap(b.held) > keptBytes {
		b.held = nil
	}
	*b = outBlock{kind: kind, index: -1, id: b.id[:0], name: b.name[:0], held: b.held[:0]}
	return b
}

// say adds a piece of text or of thinking: to the last block if it is of that kind, else to a new one.
func (s *Stream) say(dst []byte, kind string, value []byte) []byte {
	inside, ok := wire.Inside(value)
	switch {
	case s.Fault:
		return dst
	case !ok && len(value) > 0 && value[0] != 'n':
		return s.fail(dst, TypeAPI, "The engine sent content that is no text.")
	case len(inside) == 0:
		return dst
	}
	last := len(s.blocks) - 1
	if last < s.at || s.blocks[last].kind != kind {
		if len(s.blocks) == MaxBlocks {
			return s.fail(dst, TypeAPI, "The engine's answer has too many blocks.")
		}
		s.push(kind)
		last++
		dst = s.advance(dst, false)
	}
	return s.put(dst, last, inside)
}

// put gives the next piece of block i to the client, or keeps it until its turn.
func (s *Stream) put(dst []byte, i int, part []byte) []byte {
	if s.Fault {
		return dst
	}
	b := &s.blocks[i]
	if i == s.at && b.open {
		return s.delta(dst, part)
	}
	if s.held+len(part) > MaxHeldBytes {
		return s.fail(dst, TypeAPI, "The engine's tool calls are too large to be put in order.")
	}
	s.held += len(part)
	b.held = append(b.held, part...)
	return dst
}

// advance opens the block whose turn it is and ends those that have nothing more to say: text when another block
// waits, a call when it is whole besides. With all, everything has been said.
func (s *Stream) advance(dst []byte, all bool) []byte {
	for s.at < len(s.blocks) && !s.Fault { // ends: each turn opens or ends a block, or returns
		b := &s.blocks[s.at]
		if !b.open {
			if b.kind == kindTool && len(b.name) == 0 {
				if all {
					return s.fail(dst, TypeAPI, "The engine sent a tool call without a name.")
				}
				return dst
			}
			dst = s.begun(dst)
			dst = s.delta(dst, b.held)
			s.held -= len(b.held)
			b.held = b.held[:0]
		}
		waiting := s.at+1 < len(s.blocks)
		if !all && (!waiting || b.kind == kindTool && b.args.state != argsWhole) {
			return dst
		}
		if b.args.state == argsOpen && s.end.finish != "length" {
			return s.fail(dst, TypeAPI, "The engine sent a tool call whose arguments are not complete.")
		}
		dst = s.stopped(dst)
		s.at++
	}
	return dst
}

// fragment takes the next fragment of a tool call.
func (s *Stream) fragment(dst []byte, c *call) []byte {
	i, fault := s.callOf(c)
	if fault != "" {
		return s.fail(dst, TypeAPI, fault)
	}
	b := &s.blocks[i]
	if len(b.name) == 0 {
		b.name = append(b.name, c.name...)
	}
	dst = s.advance(dst, false) // before the arguments: a call that they complete must not end without them
	part, ok := b.args.feed(c.arguments)
	if !ok {
		return s.fail(dst, TypeAPI, "The engine sent a tool call whose arguments are no JSON object.")
	}
	if len(part) == 0 {
		return dst
	}
	return s.advance(s.put(dst, i, part), false)
}

// callOf finds the call that a fragment belongs to, or begins a new one. A fragment that could belong to several is a
// fault: guessing would glue the arguments of two calls together.
func (s *Stream) callOf(c *call) (at int, fault string) {
	last, open, lastOpen := -1, 0, -1 // among the calls that c may belong to
	for i := range s.blocks {
		b := &s.blocks[i]
		if b.kind != kindTool {
			continue
		}
		if len(c.id) > 0 && bytes.Equal(b.id, c.id) {
			if len(c.name) > 0 && len(b.name) > 0 && !bytes.Equal(b.name, c.name) {
				return 0, "The engine gave two tool calls the same id."
			}
			return i, ""
		}
		if c.index >= 0 && b.index != c.index {
			continue
		}
		if last = i; b.args.state != argsWhole {
			open++
			lastOpen = i
		}
	}
	switch {
	case last < 0, len(c.id) > 0 && len(c.name) > 0, len(c.name) > 0 && s.isOther(last, c.name):
		return s.beginCall(c)
	case len(c.name) > 0:
		return last, ""
	case open > 1:
		return 0, "The engine sent tool calls that cannot be told apart."
	case open == 1:
		return lastOpen, ""
	}
	return last, ""
}

// isOther reports that a fragment without an id, but with a name, does not belong to call i.
func (s *Stream) isOther(i int, name []byte) bool {
	b := &s.blocks[i]
	return b.args.state == argsWhole || len(b.name) > 0 && !bytes.Equal(b.name, name)
}

func (s *Stream) beginCall(c *call) (at int, fault string) {
	if s.calls == MaxCalls || len(s.blocks) == MaxBlocks {
		return 0, "The engine's answer has too many tool calls."
	}
	s.calls++
	s.end.tools = true
	b := s.push(kindTool)
	b.index = c.index
	b.id = append(b.id, c.id...)
	return len(s.blocks) - 1, ""
}
