package relay

// chunks takes the chunked coding off a body, in place, in pieces of any size.
type chunks struct {
	state   chunkState
	left    int64 // bytes of the chunk that are still to come
	line    int   // bytes of the size line, or of all trailers, so far
	digits  int
	lineLen int // bytes of the trailer line so far
}

type chunkState uint8

const (
	chunkSize   chunkState = iota // hexadecimal digits
	chunkExt                      // extension, up to the line's end
	chunkSizeLF                   // the line feed after the size
	chunkData
	chunkDataCR // the CRLF behind the data
	chunkDataLF
	trailer // lines up to an empty one
	trailerLF
	chunkEnd
)

// decode moves the payload in b to its front and returns its length and how many bytes of b were used: all of them,
// unless the body ended before.
func (c *chunks) decode(b []byte) (payload, used int, err error) {
	for used < len(b) {
		if c.state == chunkData {
			n := int(min(c.left, int64(len(b)-used)))
			if payload != used {
				copy(b[payload:], b[used:used+n])
			}
			payload += n
			used += n
			if c.left -= int64(n); c.left == 0 {
				c.state = chunkDataCR
			}
			continue
		}
		if c.state == chunkEnd {
			break
		}
		if err := c.step(b[used]); err != nil {
			return payload, used, err
		}
		used++
	}
	return payload, used, nil
}

// step reads one byte of the framing.
func (c *chunks) step(ch byte) error {
	switch c.state {
	case chunkSize:
		d := int64(hexValue(ch))
		switch {
		case d >= 0:
			if c.digits++; c.digits > 15 {
				return malformed("a chunk larger than anything")
			}
			c.left = c.left<<4 | d
			return nil
		case c.digits == 0:
			return malformed("a chunk without a size")
		case ch == ';' || isBlank(ch):
			c.state = chunkExt
		case ch == '\r':
			c.state = chunkSizeLF
		default:
			return malformed("a chunk size that is no number")
		}
	case chunkExt:
		if c.line++; c.line > maxChunkLine || ch == '\n' {
			return malformed("a chunk extension that does not end")
		}
		if ch == '\r' {
			c.state = chunkSizeLF
		}
	case chunkSizeLF, chunkDataLF, trailerLF:
		return c.lineFeed(ch)
	case chunkDataCR:
		if ch != '\r' {
			return malformed("a chunk longer than its size")
		}
		c.state = chunkDataLF
	case trailer:
		if c.line++; c.line > maxTrailerBytes || ch == '\n' {
			return malformed("trailers that do not end")
		}
		if ch == '\r' {
			c.state = trailerLF
		} else {
			c.lineLen++
		}
	}
	return nil
}

func (c *chunks) lineFeed(ch byte) error {
	if ch != '\n' {
		return malformed("a carriage return without a line feed in a chunk's frame")
	}
	switch {
	case c.state == chunkSizeLF && c.left > 0:
		c.state = chunkData
	case c.state == chunkSizeLF:
		c.state, c.line, c.lineLen = trailer, 0, 0
	case c.state == chunkDataLF:
		*c = chunks{}
	case c.lineLen == 0:
		c.state = chunkEnd
	default:
		c.state, c.lineLen = trailer, 0
	}
	return nil
}

func hexValue(ch byte) int {
	switch {
	case ch-'0' <= 9:
		return int(ch - '0')
	case ch|0x20 >= 'a' && ch|0x20 <= 'f':
		return int(ch|0x20-'a') + 10
	}
	return -1
}
