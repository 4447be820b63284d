package gateway

import (
	"bytes"

	"github.com/valyala/fasthttp"

	"sluice/slo"
)

// isToken holds the characters of RFC 9110's token, which header names are made of.
var isToken = func() (t [256]bool) {
	for _, ch := range "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		t[ch] = true
	}
	return t
}()

// sound refuses what fasthttp takes although two readers may understand it differently, which is what request smuggling
// lives on. The connection ends with the refusal, so that nothing behind the request is taken for another one.
func (k *call) sound() bool {
	h := &k.ctx.Request.Header
	status, code, text := fasthttp.StatusBadRequest, "malformed_request", ""
	switch uri := h.RequestURI(); {
	case !h.IsHTTP11() && string(h.Protocol()) != "HTTP/1.0":
		status, code, text = fasthttp.StatusHTTPVersionNotSupported, "unsupported_http_version", "Use HTTP/1.1."
	case len(uri) == 0 || uri[0] != '/':
		text = "Send the path alone in the request line."
	default:
		text = unsoundHeaders(h.RawHeaders())
	}
	if text == "" {
		return true
	}
	k.refuse(status, slo.BadRequest, code, text, 0)
	k.ctx.SetConnectionClose()
	return false
}

// unsoundHeaders says what is wrong with the header lines of a request; nothing when it is empty.
func unsoundHeaders(raw []byte) string {
	length, coding := false, false
	for len(raw) > 0 { // ends: each turn takes a line
		end := bytes.IndexByte(raw, '\n')
		if end < 1 || raw[end-1] != '\r' {
			return "End each header line with CR and LF."
		}
		line := raw[:end-1]
		raw = raw[end+1:]
		if len(line) == 0 {
			break
		}
		colon := 0
		for colon < len(line) && isToken[line[colon]] {
			colon++
		}
		if colon == 0 || colon == len(line) || line[colon] != ':' {
			return "A header line has no proper name; lines are not folded."
		}
		switch name := line[:colon]; {
		case len(name) == len("Content-Length") && bytes.EqualFold(name, []byte("Content-Length")):
			length = true
		case len(name) == len("Transfer-Encoding") && bytes.EqualFold(name, []byte("Transfer-Encoding")):
			coding = true
			if !bytes.EqualFold(bytes.Trim(line[colon+1:], " \t"), []byte("chunked")) {
				return "The only Transfer-Encoding is chunked."
			}
		}
	}
	if length && coding {
		return "Send either Content-Length or Transfer-Encoding."
	}
	return ""
}

// oneLine reports that a text may stand in a header: no character in it ends a line or is unseen.
func oneLine(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}
