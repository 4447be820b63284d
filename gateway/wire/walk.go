package wire

import "bytes"

// Members steps through the members of a JSON object without copying or decoding values. Make one with ReadMembers.
//
//	for m := ReadMembers(raw); m.Next(); {
//		switch string(m.Name) { … m.Value … }
//	}
type Members struct {
	// Name is the member's name, decoded if it is short; a longer one with escapes stays as it was sent.
	Name []byte
	// Value is the member's value as it was sent. Name and Value live until the bytes change or the next call.
	Value []byte

	c     cursor
	later bool
	flaw  flaw
}

// ReadMembers begins at an object; white space around it is allowed. Anything else is malformed.
func ReadMembers(object []byte) (m Members) {
	m.c.b = object
	if m.c.peek() != '{' {
		m.flaw = flawSyntax
		return m
	}
	m.c.i++
	return m
}

// Next steps to the next member and reports whether there is one.
func (m *Members) Next() bool {
	if m.flaw != flawNone {
		return false
	}
	name, more, f := m.c.member(!m.later)
	if m.later = true; f != flawNone || !more {
		m.flaw = max(f, flawEnd)
		return false
	}
	from := m.c.i
	if m.flaw = m.c.value(); m.flaw != flawNone {
		return false
	}
	m.Name, m.Value = name, m.c.b[from:m.c.i]
	if bytes.IndexByte(name, '\\') >= 0 {
		if decoded := plain(make([]byte, 0, maxNameBytes), name); decoded != nil {
			m.Name = decoded
		}
	}
	return true
}

// Malformed reports, after Next has said no, that the object did not end as one.
func (m *Members) Malformed() bool { return m.flaw != flawEnd }

// Elements steps through the elements of a JSON array as Members does through an object. Make one with ReadElements.
type Elements struct {
	// Value is the element as it was sent. It lives until the bytes change.
	Value []byte
	// Index counts from 0.
	Index int

	c     cursor
	later bool
	flaw  flaw
}

// ReadElements begins at an array; white space around it is allowed. Anything else is malformed.
func ReadElements(array []byte) (e Elements) {
	e.c.b, e.Index = array, -1
	if e.c.peek() != '[' {
		e.flaw = flawSyntax
		return e
	}
	e.c.i++
	return e
}

// Next steps to the next element and reports whether there is one.
func (e *Elements) Next() bool {
	if e.flaw != flawNone {
		return false
	}
	more, f := e.c.element(!e.later)
	if e.later = true; f != flawNone || !more {
		e.flaw = max(f, flawEnd)
		return false
	}
	e.c.space()
	from := e.c.i
	if e.flaw = e.c.value(); e.flaw != flawNone {
		return false
	}
	e.Value = e.c.b[from:e.c.i]
	e.Index++
	return true
}

// Malformed reports, after Next has said no, that the array did not end as one.
func (e *Elements) Malformed() bool { return e.flaw != flawEnd }

// Inside returns what stands between the quotes of a JSON string, escapes included. ok is false for other values.
func Inside(value []byte) (inside []byte, ok bool) {
	if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
		return nil, false
	}
	return value[1 : len(value)-1], true
}

// Count reads a value as a whole number of 0 or more; fractions are cut. ok is false for anything else.
func Count(value []byte) (n int, ok bool) {
	n = wholeNumber(value)
	return max(n, 0), n >= 0
}
