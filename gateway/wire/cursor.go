package wire

import "bytes"

// MaxDepth is how deep JSON may nest. Tool schemas seen in the field stay below 50; a parser with a stack of its own
// per level would be killed by millions, so deeper input is refused before anyone tries.
const MaxDepth = 256

// flaw is a way in which JSON is broken; flawNone is no flaw.
type flaw uint8

const (
	flawNone flaw = iota
	flawEnd       // of a walk that met no flaw; see Members
	flawTruncated
	flawSyntax
	flawDepth
)

func (f flaw) text() string {
	switch f {
	case flawTruncated:
		return "the JSON ends before it is complete"
	case flawDepth:
		return "the JSON is nested too deeply"
	default:
		return "the JSON is malformed"
	}
}

// cursor walks JSON bytes. Structure, literals and numbers are checked strictly; the contents of strings are not (no
// look at control characters, UTF-8 or the letters after a backslash): no parser that accepts such a string can see
// another structure around it, and the engine checks it anyway.
type cursor struct {
	b []byte
	i int
}

func (c *cursor) space() {
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case ' ', '\n', '\t', '\r':
			c.i++
		default:
			return
		}
	}
}

// peek skips white space and returns the next byte, 0 at the end.
func (c *cursor) peek() byte {
	c.space()
	if c.i >= len(c.b) {
		return 0
	}
	return c.b[c.i]
}

// bad is the flaw of an unexpected byte at the cursor.
func (c *cursor) bad() flaw {
	if c.i >= len(c.b) {
		return flawTruncated
	}
	return flawSyntax
}

// str steps over the string that begins at the cursor and returns what stands between the quotes, escapes included.
func (c *cursor) str() ([]byte, flaw) {
	if c.i >= len(c.b) || c.b[c.i] != '"' {
		return nil, c.bad()
	}
	start := c.i + 1
	end := stringEnd(c.b, start)
	if end < 0 {
		c.i = len(c.b)
		return nil, flawTruncated
	}
	c.i = end
	return c.b[start : end-1], flawNone
}

// literal steps over true, false or null.
func (c *cursor) literal(word string) flaw {
	rest := c.b[c.i:]
	if len(rest) < len(word) {
		if string(rest) == word[:len(rest)] {
			c.i = len(c.b)
			return flawTruncated
		}
		return flawSyntax
	}
	if string(rest[:len(word)]) != word {
		return flawSyntax
	}
	c.i += len(word)
	return flawNone
}

func (c *cursor) digits() bool {
	from := c.i
	for c.i < len(c.b) && c.b[c.i]-'0' <= 9 {
		c.i++
	}
	return c.i > from
}

// number steps over a number by the grammar of RFC 8259.
func (c *cursor) number() flaw {
	if c.b[c.i] == '-' {
		c.i++
	}
	if c.i < len(c.b) && c.b[c.i] == '0' {
		c.i++
	} else if !c.digits() {
		return c.bad()
	}
	if c.i < len(c.b) && c.b[c.i] == '.' {
		c.i++
		if !c.digits() {
			return c.bad()
		}
	}
	if c.i < len(c.b) && c.b[c.i]|0x20 == 'e' {
		c.i++
		if c.i < len(c.b) && (c.b[c.i] == '+' || c.b[c.i] == '-') {
			c.i++
		}
		if !c.digits() {
			return c.bad()
		}
	}
	return flawNone
}

// scalar steps over a string, number or literal.
func (c *cursor) scalar() flaw {
	if c.i >= len(c.b) {
		return flawTruncated
	}
	switch ch := c.b[c.i]; {
	case ch == '"':
		_, f := c.str()
		return f
	case ch == 't':
		return c.literal("true")
	case ch == 'f':
		return c.literal("false")
	case ch == 'n':
		return c.literal("null")
	case ch == '-' || ch-'0' <= 9:
		return c.number()
	}
	return flawSyntax
}

// nesting holds one bit a level: whether it is an object.
type nesting [MaxDepth / 64]uint64

func (n *nesting) push(depth int, object bool) {
	bit := uint64(1) << (depth & 63)
	n[depth>>6] &^= bit
	if object {
		n[depth>>6] |= bit
	}
}

func (n *nesting) object(depth int) bool { return n[depth>>6]&(1<<(depth&63)) != 0 }

// value steps over any value. It keeps one bit a level instead of recursing, and the place in a local variable: this
// loop is what a prompt of many short messages costs.
func (c *cursor) value() flaw {
	var above nesting
	b, i, depth, object := c.b, c.i, 0, false
value:
	if i = spaceEnd(b, i); i >= len(b) {
		return c.stop(i)
	}
	switch ch := b[i]; ch {
	case '"':
		end := stringEnd(b, i+1)
		if end < 0 {
			return c.stop(len(b))
		}
		i = end
	case '{', '[':
		if depth == MaxDepth {
			c.i = i
			return flawDepth
		}
		object = ch == '{'
		above.push(depth, object)
		depth++
		if i = spaceEnd(b, i+1); i < len(b) && b[i] == ch+2 { // '{'+2 is '}', '['+2 is ']'
			goto closing
		}
		if object {
			goto key
		}
		goto value
	default:
		c.i = i
		if f := c.scalar(); f != flawNone {
			return f
		}
		i = c.i
	}
after: // a value
	if depth == 0 {
		c.i = i
		return flawNone
	}
	switch i = spaceEnd(b, i); {
	case i < len(b) && b[i] == ',':
		i++
		if object {
			goto key
		}
		goto value
	case i >= len(b), object && b[i] != '}', !object && b[i] != ']':
		return c.stop(i)
	}
closing:
	i++
	depth--
	object = depth > 0 && above.object(depth-1)
	goto after
key:
	if i = spaceEnd(b, i); i >= len(b) || b[i] != '"' {
		return c.stop(i)
	}
	end := stringEnd(b, i+1)
	if end < 0 {
		return c.stop(len(b))
	}
	if i = spaceEnd(b, end); i >= len(b) || b[i] != ':' {
		return c.stop(i)
	}
	i++
	goto value
}

// stop leaves the cursor at an unexpected byte or the end.
func (c *cursor) stop(i int) flaw {
	c.i = i
	return c.bad()
}

// member steps to the next member of an object whose opening brace has been passed, and leaves the cursor at its
// value. more is false when the closing brace has been passed instead.
func (c *cursor) member(first bool) (name []byte, more bool, f flaw) {
	ch := c.peek()
	if ch == '}' {
		c.i++
		return nil, false, flawNone
	}
	if !first {
		if ch != ',' {
			return nil, false, c.bad()
		}
		c.i++
		c.space()
	}
	if name, f = c.str(); f != flawNone {
		return nil, false, f
	}
	if c.peek() != ':' {
		return nil, false, c.bad()
	}
	c.i++
	c.space()
	return name, true, flawNone
}

// element steps to the next element of an array whose opening bracket has been passed.
func (c *cursor) element(first bool) (more bool, f flaw) {
	ch := c.peek()
	if ch == ']' {
		c.i++
		return false, flawNone
	}
	if !first {
		if ch != ',' {
			return false, c.bad()
		}
		c.i++
		if c.peek() == ']' {
			return false, flawSyntax
		}
	}
	return true, flawNone
}

// count reads the number at the cursor as a token count: whole, at least 0. Fractions are cut, what is no number or
// out of range gives -1; either way the value is stepped over.
func (c *cursor) count() (int, flaw) {
	from := c.i
	if f := c.value(); f != flawNone {
		return -1, f
	}
	return wholeNumber(c.b[from:c.i]), flawNone
}

// maxCount bounds what is believed of a token count, so that sums cannot overflow.
const maxCount = 1 << 40

func wholeNumber(raw []byte) int {
	n := 0
	for i, ch := range raw {
		if ch == '.' && i > 0 {
			return n
		}
		if ch-'0' > 9 || n > maxCount {
			return -1
		}
		n = n*10 + int(ch-'0')
	}
	if len(raw) == 0 || n > maxCount {
		return -1
	}
	return n
}

// plain decodes the escapes of a JSON string's inside into dst and returns it, or nil when it does not fit dst's
// capacity or an escape is broken. Lone surrogates become U+FFFD. Without escapes it returns raw itself.
func plain(dst, raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	dst = dst[:0]
	for i := 0; i < len(raw); {
		if len(dst)+4 > cap(dst) {
			return nil
		}
		if raw[i] != '\\' {
			dst = append(dst, raw[i])
			i++
			continue
		}
		if i+1 >= len(raw) {
			return nil
		}
		i += 2
		switch e := raw[i-1]; e {
		case '"', '\\', '/':
			dst = append(dst, e)
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r, n := unicodeEscape(raw[i:])
			if n == 0 {
				return nil
			}
			i += n
			dst = appendRune(dst, r)
		default:
			return nil
		}
	}
	return dst
}
