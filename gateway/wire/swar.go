package wire

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// Eight bytes at once: a byte of x is zero where the same byte of (x - ones) &^ x & tops has its highest bit. Only the
// lowest such byte is certain; those above it may be marked in error.
const (
	ones   = 0x0101010101010101
	tops   = 0x8080808080808080
	quotes = '"' * ones
)

// swarBytes of a string are looked at by words before bytes.IndexByte, which has its price, is called. Most names and
// roles end within them.
const swarBytes = 16

// stringEnd is the place behind the quote that ends a string whose first byte is at from; -1 without one. Long text
// costs what bytes.IndexByte costs.
func stringEnd(b []byte, from int) int {
	for at := from; ; {
		quote := -1
		i := at
		for i+8 <= len(b) && i < at+swarBytes {
			x := binary.LittleEndian.Uint64(b[i:]) ^ quotes
			if hit := (x - ones) &^ x & tops; hit != 0 {
				quote = i + bits.TrailingZeros64(hit)/8
				break
			}
			i += 8
		}
		if quote < 0 {
			if quote = bytes.IndexByte(b[i:], '"'); quote < 0 {
				return -1
			}
			quote += i
		}
		if b[quote-1] != '\\' { // there is a byte before: at least the opening quote
			return quote + 1
		}
		// A quote is escaped after an odd run of backslashes. Each run is counted once: the next search begins behind it.
		n := 0
		for quote-n > from && b[quote-1-n] == '\\' {
			n++
		}
		if n&1 == 0 {
			return quote + 1
		}
		at = quote + 1
	}
}

// spaceEnd is the place behind white space.
func spaceEnd(b []byte, i int) int {
	if i < len(b) && b[i] > ' ' { // the usual case, inlined
		return i
	}
	return spaceEndSlow(b, i)
}

func spaceEndSlow(b []byte, i int) int {
	for i < len(b) {
		switch b[i] {
		case ' ', '\n', '\t', '\r':
			i++
		default:
			return i
		}
	}
	return i
}

// numbersEnd is the place of the next byte that may be a quote, brace or bracket, or close to the end. Lists of numbers
// pass at the speed of memory.
func numbersEnd(b []byte, i int) int {
	for i+8 <= len(b) {
		x := binary.LittleEndian.Uint64(b[i:]) | ' '*ones // brackets become braces
		q := x ^ quotes
		y := (x | 6*ones) ^ 0x7f*ones // both braces become 0x7f; so do y and a few others, which are looked at for nothing
		if ((q-ones)&^q|(y-ones)&^y)&tops != 0 {
			return i
		}
		i += 8
	}
	return i
}
