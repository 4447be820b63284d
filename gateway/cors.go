package gateway

import (
	"bytes"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"
)

// anyOrigin in Config.CORSOrigins lets pages of every site ask. No answer ever allows credentials, so a browser sends no
// cookie along, and a page needs a key of its own.
const anyOrigin = "*"

// Limits of CORS.
const (
	maxOrigins = 64
	// maxAskedHeaders bounds the header names of one preflight; real ones name about a dozen.
	maxAskedHeaders = 64
)

// What a preflight and an answer allow. Browsers keep a preflight for at most two hours.
const (
	allowMethods  = "GET, POST, DELETE"
	exposeHeaders = "X-Request-Id, Retry-After, X-Ratelimit-Limit-Requests, X-Ratelimit-Remaining-Requests, X-Ratelimit-Reset-Requests, " +
		"X-Ratelimit-Limit-Tokens, X-Ratelimit-Remaining-Tokens, X-Ratelimit-Reset-Tokens, " +
		"X-Ratelimit-Limit-Concurrent, X-Ratelimit-Remaining-Concurrent, Request-Id"
	preflightAgeS = "7200"
)

// validOrigins checks Config.CORSOrigins.
func validOrigins(origins []string) error {
	if len(origins) > maxOrigins {
		return fmt.Errorf("%w: corsOrigins has %d entries; write at most %d", ErrConfig, len(origins), maxOrigins)
	}
	for _, o := range origins {
		u, err := url.Parse(o)
		good := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && !strings.Contains(o, "*") && o == u.Scheme+"://"+strings.ToLower(u.Host)
		if o != anyOrigin && !good {
			return fmt.Errorf("%w: corsOrigins has %q; write scheme, host and port as a browser sends them, in lower case and without a path: https://app.example", ErrConfig, o)
		}
	}
	return nil
}

// allowedOrigin is what Access-Control-Allow-Origin says to a request, empty when its origin is not on the list.
func (s *Server) allowedOrigin(h *fasthttp.RequestHeader) string {
	if len(s.cfg.CORSOrigins) == 0 {
		return ""
	}
	origin := h.Peek("Origin")
	if len(origin) == 0 {
		return ""
	}
	for _, o := range s.cfg.CORSOrigins {
		if o == anyOrigin || o == string(origin) {
			return o
		}
	}
	return ""
}

// setCORS puts the headers of CORS on an answer of our own.
func (s *Server) setCORS(ctx *fasthttp.RequestCtx) {
	if len(s.cfg.CORSOrigins) == 0 {
		return
	}
	h := &ctx.Response.Header
	h.Add("Vary", "Origin")
	if origin := s.allowedOrigin(&ctx.Request.Header); origin != "" {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", exposeHeaders)
	}
}

// appendCORS appends the same headers to the head of an engine's answer.
func (k *call) appendCORS(b []byte) []byte {
	if len(k.srv.cfg.CORSOrigins) == 0 {
		return b
	}
	b = append(b, "Vary: Origin\r\n"...)
	if origin := k.srv.allowedOrigin(&k.ctx.Request.Header); origin != "" {
		b = append(b, "Access-Control-Allow-Origin: "...)
		b = append(b, origin...)
		b = append(b, "\r\nAccess-Control-Expose-Headers: "+exposeHeaders+"\r\n"...)
	}
	return b
}

// preflight answers a browser's question whether a page may send a request, which comes without a key. It reports false
// for everything else: an origin that is not on the list learns nothing.
func (k *call) preflight(path []byte) bool {
	ctx := k.ctx
	if !ctx.IsOptions() || !isAPI(path) || k.srv.allowedOrigin(&ctx.Request.Header) == "" || len(ctx.Request.Header.Peek("Access-Control-Request-Method")) == 0 {
		return false
	}
	h := &ctx.Response.Header
	h.Set("Access-Control-Allow-Methods", allowMethods)
	h.Set("Access-Control-Max-Age", preflightAgeS)
	h.Add("Vary", "Access-Control-Request-Headers")
	if allow := allowedHeaders(ctx.Request.Header.Peek("Access-Control-Request-Headers")); allow != "" {
		h.Set("Access-Control-Allow-Headers", allow)
	}
	k.answer(fasthttp.StatusNoContent, nil)
	h.Del("Content-Type")
	return true
}

// isAPI reports that pages may ask at a path.
func isAPI(path []byte) bool {
	e := endpointOf(path)
	return e != nil && e.path != "" || string(path) == "/v1/models" || bytes.HasPrefix(path, []byte("/v1/models/"))
}

// allowedHeaders are those of the asked names that clients of the API send.
func allowedHeaders(asked []byte) string {
	var out []string
	for name := range bytes.SplitSeq(asked, []byte(",")) {
		lower := strings.ToLower(string(bytes.TrimSpace(name)))
		if len(out) < maxAskedHeaders && clientHeader(lower) {
			out = append(out, lower)
		}
	}
	return strings.Join(out, ", ")
}

// clientHeader knows the headers that SDKs send, by name or by the beginning of it.
func clientHeader(lower string) bool {
	for i := range len(lower) {
		if !isToken[lower[i]] {
			return false
		}
	}
	if slices.Contains([]string{"authorization", "content-type", "accept", "user-agent", "idempotency-key", "traceparent", "tracestate"}, lower) {
		return true
	}
	return slices.ContainsFunc([]string{"x-", "anthropic-", "openai-"}, func(p string) bool { return strings.HasPrefix(lower, p) })
}
