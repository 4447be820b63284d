package rig

import "bytes"

// maxHeadBytes bounds the head of a message.
const maxHeadBytes = 16 << 10

// head is what is read of a request's or an answer's head.
type head struct {
	status  int  // of an answer
	ask     bool // a request, not an answer
	chat    bool // its path is that of a completion
	length  int  // Content-Length; -1 without one
	chunked bool
	close   bool // the connection ends with this message
	old     bool // HTTP/1.0
}

// parseHead reads the head that ends p (its blank line included), or says that it is none.
func parseHead(p []byte) (head, bool) {
	h := head{length: -1}
	line, rest := cutLine(p)
	if v, ok := bytes.CutPrefix(line, []byte("HTTP/1.")); ok {
		if len(v) < 5 {
			return h, false
		}
		h.old = v[0] == '0'
		for _, c := range v[2:5] {
			if c < '0' || c > '9' {
				return h, false
			}
			h.status = h.status*10 + int(c-'0')
		}
	} else {
		_, after, ok := bytes.Cut(line, []byte(" "))
		target, version, ok2 := bytes.Cut(after, []byte(" "))
		if !ok || !ok2 {
			return h, false
		}
		h.ask, h.old = true, string(version) == "HTTP/1.0"
		h.chat = bytes.HasSuffix(target, []byte("/completions"))
	}
	h.close = h.old
	for len(rest) > 0 {
		line, rest = cutLine(rest)
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		switch len(name) { // most lines are told by their length alone
		case len("Content-Length"):
			if bytes.EqualFold(name, []byte("content-length")) {
				h.length = number(bytes.TrimSpace(value))
			}
		case len("Transfer-Encoding"):
			if bytes.EqualFold(name, []byte("transfer-encoding")) {
				h.chunked = bytes.EqualFold(bytes.TrimSpace(value), []byte("chunked"))
			}
		case len("Connection"):
			if bytes.EqualFold(name, []byte("connection")) {
				value = bytes.TrimSpace(value)
				h.close = bytes.EqualFold(value, []byte("close")) || h.old && !bytes.EqualFold(value, []byte("keep-alive"))
			}
		}
	}
	return h, true
}

func cutLine(p []byte) (line, rest []byte) {
	i := bytes.IndexByte(p, '\n')
	if i < 0 {
		return p, nil
	}
	return bytes.TrimSuffix(p[:i], []byte("\r")), p[i+1:]
}

// number is -1 for what is none.
func number(p []byte) int {
	n := 0
	for _, c := range p {
		if c < '0' || c > '9' || n > 1<<40 {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	if len(p) == 0 {
		return -1
	}
	return n
}

// States of a reader.
const (
	inHead = iota
	inBody
	inChunkHead
	inChunk
	inChunkEnd
	inTrailer
	untilClose
)

// reader takes requests or answers apart, whatever pieces it comes in. The zero value is ready for a first answer.
type reader struct {
	state  int
	head   head
	left   int    // bytes of the body or chunk to come
	kept   []byte // the beginning of a head or a line
	broken bool   // what came is no answer; the rest is ignored
}

var blankLine = []byte("\r\n\r\n")

// next takes bytes from p: a piece of a body, or nothing. done says that the answer has ended; the next begins in rest.
func (d *reader) next(p []byte) (body, rest []byte, done bool) {
	switch d.state {
	case inHead:
		return d.nextHead(p)
	case untilClose:
		return p, nil, false
	case inBody, inChunk:
		n := min(d.left, len(p))
		d.left -= n
		if d.left == 0 {
			if d.state == inBody {
				d.state = inHead
				return p[:n], p[n:], true
			}
			d.state = inChunkEnd
		}
		return p[:n], p[n:], false
	}
	line, rest, ok := d.line(p)
	if !ok {
		return nil, nil, false
	}
	switch d.state {
	case inChunkEnd:
		d.state = inChunkHead
	case inTrailer:
		if len(line) == 0 {
			d.state = inHead
			return nil, rest, true
		}
	case inChunkHead:
		if d.left = hexadecimal(line); d.left < 0 {
			d.broken = true
			return nil, nil, false
		}
		d.state = inChunk
		if d.left == 0 {
			d.state = inTrailer
		}
	}
	return nil, rest, false
}

func (d *reader) nextHead(p []byte) (body, rest []byte, done bool) {
	whole := p
	if len(d.kept) > 0 {
		d.kept = append(d.kept, p...)
		whole = d.kept
	}
	i := bytes.Index(whole, blankLine)
	if i < 0 {
		if len(d.kept) == 0 {
			d.kept = append(d.kept, p...)
		}
		d.broken = len(d.kept) > maxHeadBytes
		return nil, nil, false
	}
	end := i + len(blankLine)
	var ok bool
	if d.head, ok = parseHead(whole[:end]); !ok {
		d.broken = true
		return nil, nil, false
	}
	rest = p[len(p)-(len(whole)-end):]
	d.kept = d.kept[:0]
	switch {
	case d.head.status/100 == 1:
	case d.head.status == 204 || d.head.status == 304 || d.head.length == 0 || d.head.ask && d.head.length < 0 && !d.head.chunked:
		return nil, rest, true
	case d.head.chunked:
		d.state = inChunkHead
	case d.head.length > 0:
		d.state, d.left = inBody, d.head.length
	default:
		d.state = untilClose
	}
	return nil, rest, false
}

// line takes a line that may have begun earlier.
func (d *reader) line(p []byte) (line, rest []byte, ok bool) {
	i := bytes.IndexByte(p, '\n')
	if i < 0 {
		d.kept = append(d.kept, p...)
		d.broken = len(d.kept) > maxHeadBytes
		return nil, nil, false
	}
	line = p[:i]
	if len(d.kept) > 0 {
		d.kept = append(d.kept, line...)
		line = d.kept
		d.kept = d.kept[:0]
	}
	return bytes.TrimSuffix(line, []byte("\r")), p[i+1:], true
}

// hexadecimal reads a chunk's size; extensions are ignored. -1: it is none.
func hexadecimal(line []byte) int {
	n, digits := 0, 0
	for _, c := range line {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | int(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n = n<<4 | int(c|0x20-'a'+10)
		case (c == ';' || c == ' ') && digits > 0:
			return n
		default:
			return -1
		}
		if digits++; digits > 8 {
			return -1
		}
	}
	if digits == 0 {
		return -1
	}
	return n
}
