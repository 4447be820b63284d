package wire

import (
	"encoding/binary"
	"math/bits"
)

// Valid reports that body is one JSON value by RFC 8259, as encoding/json has it, and nests no deeper than MaxDepth.
// Where only structure matters a walk is enough; this is for bytes of which parts are put together anew.
func Valid(body []byte) bool {
	c := cursor{b: body}
	c.space()
	if c.value() != flawNone || c.peek() != 0 || c.i < len(body) {
		return false
	}
	for i := 0; i < len(body); { // the structure is sound, so every quote opens a string, and it has an end
		if body[i] != '"' {
			i++
			continue
		}
		end := stringEnd(body, i+1)
		if !validText(body[i+1 : end-1]) {
			return false
		}
		i = end
	}
	return true
}

// validText checks the inside of a string: no control characters, and no escapes but those that there are.
func validText(s []byte) bool {
	for i := 0; i < len(s); {
		if i+8 <= len(s) {
			x := binary.LittleEndian.Uint64(s[i:])
			slash := x ^ '\\'*ones
			hit := ((x-' '*ones)&^x | (slash-ones)&^slash) & tops
			if hit == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(hit) / 8 // the lowest mark is certain
		}
		n := textUnit(s[i:])
		if n == 0 {
			return false
		}
		i += n
	}
	return true
}

// textUnit is the length of the character or escape that s begins with, 0 for none that may stand in a string. Bytes
// above ASCII count one by one.
func textUnit(s []byte) int {
	switch {
	case s[0] < ' ':
		return 0
	case s[0] != '\\':
		return 1
	case len(s) < 2:
		return 0
	}
	switch s[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hex4(s[2:]); ok {
			return 6
		}
	}
	return 0
}
