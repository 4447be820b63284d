package wire

import "bytes"

// maxUsageBytes bounds the usage object of an answer; a longer one is not read.
const maxUsageBytes = 2 << 10

// UsageScanner finds the top-level usage object and id of a JSON answer that passes in pieces of any size, without
// keeping the answer. Nesting has no limit here: it costs nothing. The zero value is ready.
type UsageScanner struct {
	depth   int
	key     [8]byte // the last string at depth 1, when it may be a name; longer ones do not fit
	keyLen  int
	inText  bool
	escaped bool
	name    bool // the string at depth 1 is a member's name
	taking  bool // inside the usage object
	taken   []byte
	usage   Usage
	naming  bool   // inside the value of the top-level id
	id      []byte // as written, MaxResponseIDBytes+1 at most: then it is too long to be one
}

// Reset makes s ready for another answer.
func (s *UsageScanner) Reset() { *s = UsageScanner{taken: s.taken[:0], id: s.id[:0]} }

// ID returns the top-level id, as written; nil without one of MaxResponseIDBytes at most. It lives until Reset.
func (s *UsageScanner) ID() []byte {
	if s.naming || len(s.id) == 0 || len(s.id) > MaxResponseIDBytes {
		return nil
	}
	return s.id
}

// Usage returns what was found.
func (s *UsageScanner) Usage() Usage { return s.usage }

// Feed takes the next bytes of the answer.
func (s *UsageScanner) Feed(p []byte) {
	for i := 0; i < len(p); {
		if s.inText {
			n := s.text(p[i:])
			s.takeID(p[i : i+n])
			s.take(p[i : i+n])
			i += n
			continue
		}
		if s.depth > 1 && !s.taking {
			if i = numbersEnd(p, i); i == len(p) {
				break
			}
		}
		ch := p[i]
		if s.taking {
			s.take(p[i : i+1])
		}
		i++
		switch ch {
		case '"':
			s.naming = s.depth == 1 && !s.name && len(s.id) == 0 && s.keyLen == len("id") && string(s.key[:s.keyLen]) == "id"
			s.inText, s.keyLen = true, 0
		case '{', '[':
			s.depth++
			if s.depth == 1 {
				s.name = ch == '{'
			}
			if s.depth == 2 && ch == '{' && !s.name && s.keyLen == len("usage") && string(s.key[:s.keyLen]) == "usage" {
				s.taking = true
				s.taken = append(s.taken[:0], '{')
			}
		case '}', ']':
			s.depth--
			if s.taking && s.depth == 1 {
				s.taking = false
				c := cursor{b: s.taken}
				var u Usage
				if u.read(&c) == flawNone && u.Known {
					s.usage = u
				}
			}
		case ':':
			if s.depth == 1 {
				s.name = false
			}
		case ',':
			if s.depth == 1 {
				s.name, s.keyLen = true, 0
			}
		}
	}
}

// text steps through a string up to its closing quote and returns the bytes it took.
func (s *UsageScanner) text(p []byte) int {
	if s.escaped {
		s.escaped = false
		s.noteKey('\\')
		return 1
	}
	end := bytes.IndexByte(p, '"')
	part := p
	if end >= 0 {
		part = p[:end]
	}
	if slash := bytes.IndexByte(part, '\\'); slash >= 0 {
		s.escaped = true
		s.noteKey('\\')
		return slash + 1
	}
	if s.depth == 1 && s.name {
		for _, ch := range part {
			s.noteKey(ch)
			if s.keyLen > len(s.key) {
				break
			}
		}
	}
	if end >= 0 {
		s.inText = false
		return end + 1
	}
	return len(p)
}

// takeID collects the text of the id; the last byte may be its closing quote.
func (s *UsageScanner) takeID(p []byte) {
	if !s.naming {
		return
	}
	if !s.inText {
		p, s.naming = p[:len(p)-1], false
	}
	s.id = append(s.id, p[:min(len(p), MaxResponseIDBytes+1-len(s.id))]...)
}

func (s *UsageScanner) noteKey(ch byte) {
	if s.depth != 1 || !s.name {
		return
	}
	if s.keyLen < len(s.key) {
		s.key[s.keyLen] = ch
	}
	s.keyLen++
}

func (s *UsageScanner) take(p []byte) {
	if !s.taking {
		return
	}
	if len(s.taken)+len(p) > maxUsageBytes {
		s.taking = false
		return
	}
	s.taken = append(s.taken, p...)
}
