package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"net"

	"github.com/valyala/fasthttp"

	"sluice/gateway/wire"
)

// refusal is an answer to a request whose body is not read.
type refusal struct {
	status     int
	code, text string
}

func (s *Server) tooLarge() refusal {
	return refusal{fasthttp.StatusRequestEntityTooLarge, "body_too_large", fmt.Sprintf("The body is larger than %d bytes.", s.cfg.MaxBodyBytes)}
}

func noKey() refusal {
	return refusal{fasthttp.StatusUnauthorized, "invalid_api_key", wantKey}
}

func noRoom() refusal {
	return refusal{fasthttp.StatusServiceUnavailable, "bodies_too_large", "The bodies of the requests that are here leave no room for this one. Wait as Retry-After says."}
}

// expect answers a client that asks before it sends its body: what would be refused anyway is refused now.
func (s *Server) expect(ctx *fasthttp.RequestCtx) int {
	var no refusal
	h := &ctx.Request.Header
	switch {
	case h.ContentLength() > s.cfg.MaxBodyBytes:
		no = s.tooLarge()
	case s.stranger(ctx):
		no = noKey()
	case !s.bodies.holds(h):
		no = noRoom()
	default:
		return fasthttp.StatusContinue
	}
	s.tellUnread(ctx, no)
	return no.status
}

// unreadable answers what fasthttp could not read as a request.
func (s *Server) unreadable(ctx *fasthttp.RequestCtx, err error) {
	no := refusal{fasthttp.StatusBadRequest, "malformed_request", "The request is not valid HTTP."}
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	h := &ctx.Request.Header
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge) && oddExpectation(h):
		no = refusal{fasthttp.StatusExpectationFailed, "unknown_expectation", "Of the values of the Expect header only 100-continue is known here."}
	case errors.Is(err, fasthttp.ErrBodyTooLarge) && s.stranger(ctx):
		no = noKey()
	case errors.Is(err, fasthttp.ErrBodyTooLarge) && h.ContentLength() <= s.cfg.MaxBodyBytes && !s.bodies.holds(h):
		no = noRoom()
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		no = s.tooLarge()
	case errors.As(err, &small):
		no = refusal{fasthttp.StatusRequestHeaderFieldsTooLarge, "headers_too_large", fmt.Sprintf("The request line and headers are larger than %d bytes.", s.cfg.MaxHeaderBytes)}
	case errors.As(err, &timeout) && timeout.Timeout():
		no = refusal{fasthttp.StatusRequestTimeout, "request_timeout", "The request did not come in time."}
	}
	s.tellUnread(ctx, no)
}

// tellUnread answers in the dialect of the path, with an id that the access log has too.
func (s *Server) tellUnread(ctx *fasthttp.RequestCtx, no refusal) {
	s.bodies.release(&ctx.Request.Header)
	ctx.Response.Reset()
	h := &ctx.Response.Header
	if no.status == fasthttp.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	if no.status == fasthttp.StatusUnauthorized {
		h.Set("Www-Authenticate", "Bearer")
	}
	ctx.Response.SetStatusCode(no.status)
	h.SetContentType("application/json")
	id := appendNewID(nil)
	h.SetBytesV("X-Request-Id", id)
	d := dialectOpenAI
	if e := endpointOf(ctx.Request.Header.RequestURI()); e != nil {
		d = e.dialect
	}
	if d == dialectAnthropic {
		h.SetBytesV("Request-Id", id)
	}
	s.setCORS(ctx)
	body := d.appendError(nil, no.status, wire.Error{Message: no.text, Type: errorType(no.status), Code: no.code}, id)
	ctx.Response.SetBody(body)
	s.recordUnreadable(ctx, no, id, len(body))
}

// oddExpectation reports an Expect header that asks for something else than 100-continue.
func oddExpectation(h *fasthttp.RequestHeader) bool {
	expect := h.Peek("Expect")
	return len(expect) > 0 && !bytes.EqualFold(expect, []byte("100-continue"))
}

// stranger reports that a request that could be read up to its body has no good key.
func (s *Server) stranger(ctx *fasthttp.RequestCtx) bool {
	_, ok := s.keyOf(&ctx.Request.Header, &keyHash{})
	return !ok
}
