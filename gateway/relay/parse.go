package relay

import (
	"bytes"
	"fmt"
)

// span is a range of the head buffer. Spans, not slices: the buffer may be grown while the head is read.
type span struct{ from, to int }

type header struct{ name, value span }

// framing says where a body ends.
type framing uint8

const (
	framingNone   framing = iota // no body
	framingLength                // after a known number of bytes
	framingChunks                // after the last chunk
	framingClose                 // with the connection
)

// head is a parsed answer head.
type head struct {
	status  int
	http10  bool
	headers []header
	framing framing
	length  int64
	keep    bool // the engine wants to keep the connection
}

func malformed(what string) error { return fmt.Errorf("%w: %s", ErrProtocol, what) }

// headEnd returns the length of the head in b, its empty line included; 0 when more bytes are needed.
func headEnd(b []byte) int {
	i := bytes.Index(b, []byte("\r\n\r\n"))
	if i < 0 {
		return 0
	}
	return i + 4
}

// parse reads a whole head, as headEnd found it. noBody says that this answer has none (HEAD).
func (h *head) parse(b []byte, noBody bool) error {
	*h = head{headers: h.headers[:0]}
	end := bytes.IndexByte(b, '\r')
	if err := h.statusLine(b[:end]); err != nil {
		return err
	}
	var length, coding span
	closes, keeps := false, false
	for at := end + 2; at < len(b)-2; {
		eol := bytes.IndexByte(b[at:], '\r') + at
		if b[eol+1] != '\n' {
			return malformed("a bare carriage return in its head")
		}
		hd, err := headerLine(b, at, eol)
		if err != nil {
			return err
		}
		if len(h.headers) == MaxHeaders {
			return malformed("too many headers")
		}
		h.headers = append(h.headers, hd)
		value := b[hd.value.from:hd.value.to]
		switch name := b[hd.name.from:hd.name.to]; {
		case equalFold(name, "content-length"):
			if length.to > 0 && !bytes.Equal(b[length.from:length.to], value) {
				return malformed("two different lengths")
			}
			length = hd.value
			if h.length, err = contentLength(value); err != nil {
				return err
			}
		case equalFold(name, "transfer-encoding"):
			if coding.to > 0 || !equalFold(value, "chunked") {
				return malformed("a transfer coding other than chunked")
			}
			coding = hd.value
		case equalFold(name, "connection"):
			closes = closes || hasToken(value, "close")
			keeps = keeps || hasToken(value, "keep-alive")
		}
		at = eol + 2
	}
	if length.to > 0 && coding.to > 0 {
		return malformed("both a length and a transfer coding")
	}
	if coding.to > 0 && h.http10 {
		return malformed("a transfer coding in HTTP/1.0")
	}
	h.keep = !closes && (!h.http10 || keeps)
	switch {
	case noBody || h.status < 200 || h.status == 204 || h.status == 304:
		h.framing = framingNone
	case coding.to > 0:
		h.framing = framingChunks
	case length.to > 0:
		h.framing = framingLength
		if h.length == 0 {
			h.framing = framingNone
		}
	default:
		h.framing, h.keep = framingClose, false
	}
	return nil
}

func (h *head) statusLine(b []byte) error {
	// HTTP/1.1 200 OK
	if len(b) < 12 || string(b[:7]) != "HTTP/1." || (b[7] != '0' && b[7] != '1') || b[8] != ' ' || (len(b) > 12 && b[12] != ' ') {
		return malformed("no HTTP/1 status line")
	}
	for _, ch := range b[9:12] {
		if ch-'0' > 9 {
			return malformed("no status number")
		}
		h.status = h.status*10 + int(ch-'0')
	}
	for _, ch := range b[12:] {
		if ch < ' ' && ch != '\t' {
			return malformed("a control character in its status line")
		}
	}
	if h.status < 100 || h.status == 101 {
		return malformed("a status that cannot be")
	}
	h.http10 = b[7] == '0'
	return nil
}

// headerLine reads the line b[from:to]. Names are tokens, values hold no control characters; folding is refused.
func headerLine(b []byte, from, to int) (header, error) {
	line := b[from:to]
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 {
		return header{}, malformed("a header line without a name")
	}
	for _, ch := range line[:colon] {
		if !isToken[ch] {
			return header{}, malformed("a header name with an odd character")
		}
	}
	hd := header{name: span{from, from + colon}, value: span{from + colon + 1, to}}
	for hd.value.from < hd.value.to && isBlank(b[hd.value.from]) {
		hd.value.from++
	}
	for hd.value.to > hd.value.from && isBlank(b[hd.value.to-1]) {
		hd.value.to--
	}
	for _, ch := range b[hd.value.from:hd.value.to] {
		if ch < ' ' && ch != '\t' || ch == 0x7f {
			return header{}, malformed("a control character in a header")
		}
	}
	return hd, nil
}

func isBlank(ch byte) bool { return ch == ' ' || ch == '\t' }

// isToken holds the characters of RFC 9110's token.
var isToken = func() (t [256]bool) {
	for _, ch := range "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		t[ch] = true
	}
	return t
}()

func contentLength(b []byte) (int64, error) {
	if len(b) == 0 || len(b) > 18 {
		return 0, malformed("a length that is no number")
	}
	var n int64
	for _, ch := range b {
		if ch-'0' > 9 {
			return 0, malformed("a length that is no number")
		}
		n = n*10 + int64(ch-'0')
	}
	return n, nil
}

// equalFold compares with a lower-case ASCII word.
func equalFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, ch := range b {
		if ch-'A' <= 'Z'-'A' {
			ch |= 0x20
		}
		if ch != lower[i] {
			return false
		}
	}
	return true
}

// hasToken looks for a word in a comma-separated list.
func hasToken(list []byte, lower string) bool {
	for len(list) > 0 {
		item := list
		if comma := bytes.IndexByte(list, ','); comma >= 0 {
			item, list = list[:comma], list[comma+1:]
		} else {
			list = nil
		}
		if equalFold(bytes.Trim(item, " \t"), lower) {
			return true
		}
	}
	return false
}
