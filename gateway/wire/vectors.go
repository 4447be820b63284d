package wire

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
)

// ErrVector is returned by Vectors.Feed and End for an answer whose vectors cannot be read.
var ErrVector = errors.New("wire: a vector of the embeddings answer is malformed")

// rawBytes of a vector are collected before they are encoded: whole groups of three for base64, whole floats of four.
const rawBytes = 384

// maxNumberBytes bounds one number of a vector as text.
const maxNumberBytes = 40

// Vectors gives the vectors of an embeddings answer the form that the client asked for, while the answer passes in
// pieces of any size: lists of numbers become base64 of little-endian float32, or the reverse. What has the right form
// already passes unchanged, as does all else. A vector is data[i].embedding at the top level of the answer. The zero
// value is ready and wants numbers.
type Vectors struct {
	// Base64 is the form wanted.
	Base64 bool

	// Found: the first vector has begun. Changed: one of them had the other form.
	Found, Changed bool

	depth   int
	object  [4]bool // by depth, above 0: the container is an object
	inData  bool    // inside the value of the top-level member data
	key     [10]byte
	keyLen  int
	naming  bool // the next string of this object is a name
	inText  bool
	escaped bool

	state    vectorState
	raw      [rawBytes]byte
	rawLen   int
	text     [rawBytes / 3 * 4]byte
	textLen  int
	padded   bool // base64 has come to its padding
	number   [maxNumberBytes]byte
	numLen   int
	elements int
	comma    bool // a number may follow
}

type vectorState uint8

const (
	vectorNone   vectorState = iota
	vectorList               // inside a list of numbers that becomes base64
	vectorBase64             // inside base64 that becomes a list
)

// Reset makes v ready for another answer, with the same form wanted.
func (v *Vectors) Reset() { *v = Vectors{Base64: v.Base64} }

// End reports ErrVector when the answer ended inside a vector.
func (v *Vectors) End() error {
	if v.state != vectorNone {
		return ErrVector
	}
	return nil
}

// Feed appends to dst what the next bytes of the answer become. After an error nothing more may be fed.
func (v *Vectors) Feed(dst, p []byte) ([]byte, error) {
	for i := 0; i < len(p); {
		var n int
		var err error
		switch v.state {
		case vectorNone:
			n = v.outside(p[i:])
			dst = append(dst, p[i:i+n]...)
			if v.state == vectorList {
				dst[len(dst)-1] = '"'
			} else if v.state == vectorBase64 {
				dst[len(dst)-1] = '['
			}
		case vectorList:
			dst, n, err = v.list(dst, p[i:])
		case vectorBase64:
			dst, n, err = v.base64(dst, p[i:])
		}
		if err != nil {
			return dst, err
		}
		i += n
	}
	return dst, nil
}

// outside steps through JSON up to and with the first byte of a vector to convert, and returns the bytes it took.
func (v *Vectors) outside(p []byte) int {
	for i := 0; i < len(p); {
		if v.inText {
			i = v.string(p, i)
			continue
		}
		if v.depth > 3 {
			if i = numbersEnd(p, i); i == len(p) {
				return i
			}
		}
		ch := p[i]
		i++
		switch ch {
		case '"':
			if v.vector() && !v.Base64 {
				v.begin(vectorBase64)
				return i
			}
			v.inText = true
			v.keyLen = 0
		case '{', '[':
			if ch == '[' && v.vector() && v.Base64 {
				v.begin(vectorList)
				return i
			}
			if v.depth++; v.depth < len(v.object) {
				v.object[v.depth] = ch == '{'
				if v.depth == 2 {
					v.inData = ch == '[' && v.named("data")
				}
			}
			v.naming = ch == '{'
		case '}', ']':
			v.depth = max(0, v.depth-1)
			v.naming = false
		case ':':
			v.naming = false
		case ',':
			v.naming = v.depth > 0 && v.depth < len(v.object) && v.object[v.depth]
		}
	}
	return len(p)
}

// vector reports that the value which begins here is one, and notes that it was found.
func (v *Vectors) vector() bool {
	is := v.depth == 3 && v.inData && v.object[1] && !v.object[2] && v.object[3] && !v.naming && v.named("embedding")
	v.Found = v.Found || is
	return is
}

func (v *Vectors) named(key string) bool {
	return v.keyLen == len(key) && string(v.key[:v.keyLen]) == key
}

// string steps through a string, noting it if it is a name, and returns the place behind what it took.
func (v *Vectors) string(p []byte, i int) int {
	for i < len(p) {
		ch := p[i]
		i++
		switch {
		case v.escaped:
			v.escaped = false
		case ch == '\\':
			v.escaped = true
		case ch == '"':
			v.inText = false
			if !v.naming {
				v.keyLen = 0
			}
			return i
		}
		if v.keyLen < len(v.key) {
			v.key[v.keyLen] = ch
			v.keyLen++
		}
	}
	return i
}

func (v *Vectors) begin(s vectorState) {
	v.state, v.Changed, v.keyLen = s, true, 0
	v.rawLen, v.textLen, v.numLen, v.elements, v.padded, v.comma = 0, 0, 0, 0, false, true
}

// list reads numbers up to the closing bracket.
func (v *Vectors) list(dst, p []byte) ([]byte, int, error) {
	for i, ch := range p {
		switch {
		case ch-'0' <= 9, ch == '.', ch == '-', ch == '+', ch|0x20 == 'e':
			if !v.comma || v.numLen == len(v.number) {
				return dst, i, ErrVector
			}
			v.number[v.numLen] = ch
			v.numLen++
		case ch == ' ', ch == '\n', ch == '\r', ch == '\t':
			if v.numLen > 0 {
				if err := v.endNumber(); err != nil {
					return dst, i, err
				}
			}
		case ch == ',', ch == ']':
			if v.numLen > 0 {
				if err := v.endNumber(); err != nil {
					return dst, i, err
				}
			}
			if v.comma && (ch == ',' || v.elements > 0) {
				return dst, i, ErrVector // nothing between two commas, or behind the last
			}
			v.comma = true
			if ch == ']' {
				dst = base64.StdEncoding.AppendEncode(dst, v.raw[:v.rawLen])
				v.state = vectorNone
				return append(dst, '"'), i + 1, nil
			}
			if v.rawLen == len(v.raw) {
				dst = base64.StdEncoding.AppendEncode(dst, v.raw[:])
				v.rawLen = 0
			}
		default:
			return dst, i, ErrVector
		}
	}
	return dst, len(p), nil
}

func (v *Vectors) endNumber() error {
	text := v.number[:v.numLen]
	c := cursor{b: text}
	if ch := text[0]; ch != '-' && ch-'0' > 9 || c.number() != flawNone || c.i != len(text) {
		return ErrVector
	}
	x, err := strconv.ParseFloat(string(text), 32)
	if err != nil {
		return ErrVector
	}
	if v.rawLen == len(v.raw) { // the comma made room
		return ErrVector
	}
	binary.LittleEndian.PutUint32(v.raw[v.rawLen:], math.Float32bits(float32(x)))
	v.rawLen += 4
	v.numLen, v.comma = 0, false
	v.elements++
	return nil
}

// base64 reads base64 up to the closing quote.
func (v *Vectors) base64(dst, p []byte) ([]byte, int, error) {
	for i, ch := range p {
		switch {
		case ch == '"' && !v.escaped:
			dst, err := v.numbers(dst)
			if err != nil || v.rawLen != 0 {
				return dst, i, ErrVector
			}
			v.state = vectorNone
			return append(dst, ']'), i + 1, nil
		case ch == '\\' && !v.escaped:
			v.escaped = true
			continue
		case v.escaped && ch != '/', v.padded && ch != '=':
			return dst, i, ErrVector
		}
		v.escaped = false
		v.padded = ch == '='
		v.text[v.textLen] = ch
		if v.textLen++; v.textLen == len(v.text) {
			var err error
			if dst, err = v.numbers(dst); err != nil {
				return dst, i, err
			}
		}
	}
	return dst, len(p), nil
}

// numbers appends the floats of the base64 collected so far. What is left of one stays in rawLen, which is 0 but at the
// end of a text that is no whole vector.
func (v *Vectors) numbers(dst []byte) ([]byte, error) {
	n, err := base64.StdEncoding.Strict().Decode(v.raw[:], v.text[:v.textLen])
	if err != nil {
		return dst, ErrVector
	}
	v.textLen = 0
	at := 0
	for ; at+4 <= n; at += 4 {
		x := math.Float32frombits(binary.LittleEndian.Uint32(v.raw[at:]))
		if x != x || math.IsInf(float64(x), 0) {
			return dst, ErrVector // JSON has no such number
		}
		if v.elements++; v.elements > 1 {
			dst = append(dst, ',')
		}
		format := byte('f')
		if small := math.Abs(float64(x)); small != 0 && (small < 1e-6 || small >= 1e21) {
			format = 'e'
		}
		dst = strconv.AppendFloat(dst, float64(x), format, -1, 32)
	}
	v.rawLen = n - at
	return dst, nil
}
