package anthropic

// Limits of a streamed answer.
const (
	// MaxCalls bounds the tool calls of an answer.
	MaxCalls = 128
	// MaxBlocks bounds the content blocks of a streamed answer.
	MaxBlocks = 4096
	// MaxHeldBytes bounds what waits in a stream until the block before it has ended.
	MaxHeldBytes = 1 << 20
)

// argState is how far the arguments of a call have come.
type argState uint8

const (
	argsNone  argState = iota // nothing yet, or white space
	argsNull                  // in the word null, which some engines send for no arguments
	argsOpen                  // inside the object
	argsWhole                 // the object is complete
)

// arguments follows the JSON object that the fragments of a call's arguments make, to know when it is complete. The
// zero value is ready. Fragments are insides of valid JSON strings, so no escape is split between two.
type arguments struct {
	state  argState
	depth  int
	inText bool
	escape bool // after a backslash inside a text of the object
	word   int  // letters of null seen
}

// feed reads the next fragment and returns the part of it that belongs to the object. ok is false when the fragments
// cannot make one object: something else begins, or something follows.
func (a *arguments) feed(raw []byte) (part []byte, ok bool) {
	from, to := 0, len(raw)
	for i := 0; i < len(raw); {
		ch, n := unit(raw[i:])
		before := a.state
		if !a.step(ch) {
			return nil, false
		}
		if before == argsNone && a.state == argsOpen {
			from = i
		}
		i += n
		if before == argsOpen && a.state == argsWhole {
			to = i
		} else if before == argsWhole {
			to = min(to, i-n)
		}
	}
	if a.state == argsNone || a.state == argsNull {
		return nil, true
	}
	return raw[from:max(from, to)], true
}

// unit decodes the character, or the escape, that a string's inside begins with. Everything that cannot matter to the
// structure of JSON reads as 'x'.
func unit(raw []byte) (ch byte, n int) {
	if raw[0] != '\\' || len(raw) < 2 {
		return raw[0], 1
	}
	switch raw[1] {
	case '"', '\\', '/':
		return raw[1], 2
	case 'n', 't', 'r':
		return ' ', 2
	case 'u':
		if len(raw) < 6 {
			return 'x', len(raw)
		}
		v := 0
		for _, h := range raw[2:6] {
			switch {
			case h-'0' <= 9:
				v = v<<4 | int(h-'0')
			case h|0x20-'a' <= 5:
				v = v<<4 | int(h|0x20-'a'+10)
			}
		}
		if v < 0x80 {
			return byte(v), 6
		}
		return 'x', 6
	}
	return 'x', 2
}

// step takes one character.
func (a *arguments) step(ch byte) (ok bool) {
	space := ch == ' ' || ch == '\t' || ch == '\n' || ch == '\r'
	switch a.state {
	case argsNone:
		switch {
		case ch == '{':
			a.state, a.depth = argsOpen, 1
		case ch == 'n':
			a.state, a.word = argsNull, 1
		default:
			return space
		}
	case argsNull:
		if a.word < len("null") && ch == "null"[a.word] {
			a.word++
			return true
		}
		return a.word == len("null") && space
	case argsWhole:
		return space
	case argsOpen:
		a.inside(ch)
	}
	return true
}

// inside takes one character of the object.
func (a *arguments) inside(ch byte) {
	switch {
	case a.escape:
		a.escape = false
	case a.inText:
		a.escape = ch == '\\'
		a.inText = ch != '"'
	case ch == '"':
		a.inText = true
	case ch == '{' || ch == '[':
		a.depth++
	case ch == '}' || ch == ']':
		if a.depth--; a.depth == 0 {
			a.state = argsWhole
		}
	}
}
