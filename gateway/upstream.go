package gateway

import (
	"bytes"
	"errors"
	"time"

	"github.com/valyala/fasthttp"

	"sluice/gateway/relay"
	"sluice/gateway/wire"
	"sluice/slo"
)

// failure is a try that brought no answer, kept in case no other try does.
type failure struct {
	status      int // for the client; 0: none
	outcome     slo.Outcome
	code        string
	message     string
	body        []byte // an error object of the engine, when it sent one
	retryAfterS int64
	busy        bool // the engine said 429 or 503: alive, but full
}

func (f *failure) reset() { *f = failure{body: f.body[:0]} }

func (f *failure) set(status int, outcome slo.Outcome, code, message string) {
	f.reset()
	f.status, f.outcome, f.code, f.message = status, outcome, code, message
}

// try sends the request to the replica of the ticket and relays the answer. again says that the try failed in a way
// that another replica may not, and that nothing has reached the client; failure and outcome say how.
func (k *call) try() (again bool) {
	k.failure.reset()
	k.prepare()
	x := &k.exchange
	x.Begin()
	k.conn.attach(x)
	if err := k.srv.client.Do(x, &k.upstream); err != nil {
		return k.lost(err)
	}
	switch status := x.Status(); {
	case status >= 200 && status < 300:
		return k.relay()
	case status >= 300 && status < 400:
		k.failure.set(fasthttp.StatusBadGateway, slo.UpstreamError, "upstream_redirect", "The engine answered with a redirect, which is never followed.")
		k.outcome = slo.UpstreamError
		k.tellFailure()
		return false
	default:
		return k.refusedUpstream(status)
	}
}

// prepare builds the request for the engine: the body with its edits, and headers of our own. Of the client's headers
// only those of tracing go on, so no credential, hop-by-hop or internal header can.
func (k *call) prepare() {
	body := k.ctx.Request.Body()
	k.stream.Reset()
	k.usage.Reset()
	k.stream.HideUsage = k.head.Stream && !k.head.IncludeUsage
	k.parts, k.scratch = k.head.AppendEdits(k.parts[:0], k.scratch[:0], body, wire.Edits{
		Model: k.replica.UpstreamModel, IncludeUsage: k.head.Stream,
	})
	h := append(k.header[:0], "Content-Type: application/json\r\nUser-Agent: sluice\r\nAccept-Encoding: identity\r\nAccept: "...)
	if k.head.Stream {
		h = append(h, "text/event-stream\r\nX-Request-Id: "...)
	} else {
		h = append(h, "application/json\r\nX-Request-Id: "...)
	}
	h = append(h, k.id...)
	h = append(h, "\r\nX-Forwarded-For: "...)
	h = append(h, k.conn.peer...)
	h = append(h, "\r\n"...)
	h = appendHeader(h, "Traceparent: ", k.ctx.Request.Header.Peek("Traceparent"))
	h = appendHeader(h, "Tracestate: ", k.ctx.Request.Header.Peek("Tracestate"))
	if auth := k.srv.deps.UpstreamAuth(k.replica.ID); auth != "" {
		h = append(h, "Authorization: "...)
		h = append(h, auth...)
		h = append(h, "\r\n"...)
	}
	k.header = h
	k.upstream.Addr, k.upstream.Header, k.upstream.Body = k.replica.Addr, h, k.parts
	k.upstream.FirstByteTimeout = max(time.Until(k.deadline), time.Millisecond)
}

// maxHeaderValue bounds the client headers that are passed on.
const maxHeaderValue = 512

// appendHeader passes a client's header on if its value is printable ASCII and short.
func appendHeader(dst []byte, name string, value []byte) []byte {
	if len(value) == 0 || len(value) > maxHeaderValue {
		return dst
	}
	for _, ch := range value {
		if ch < ' ' || ch > '~' {
			return dst
		}
	}
	dst = append(dst, name...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}

// lost classifies a failure of the exchange before any byte of its answer went to the client.
func (k *call) lost(err error) (again bool) {
	switch {
	case errors.Is(err, relay.ErrCancelled):
		k.clientLeft()
		return false
	case errors.Is(err, relay.ErrFirstByte), errors.Is(err, relay.ErrIdle):
		k.outcome = slo.Timeout
		k.failure.set(fasthttp.StatusGatewayTimeout, slo.Timeout, "upstream_timeout", "The engine did not answer in time.")
		k.tellFailure()
		return false
	case errors.Is(err, relay.ErrProtocol):
		k.outcome = slo.UpstreamError
		k.failure.set(fasthttp.StatusBadGateway, slo.UpstreamError, "upstream_malformed", "The engine's answer was malformed.")
	case errors.Is(err, relay.ErrConnect):
		k.outcome = slo.UpstreamLost
		k.failure.set(fasthttp.StatusBadGateway, slo.UpstreamLost, "upstream_unreachable", "The engine could not be reached.")
	default:
		k.outcome = slo.UpstreamLost
		k.failure.set(fasthttp.StatusBadGateway, slo.UpstreamLost, "upstream_lost", "The connection to the engine broke.")
	}
	return true
}

// refusedUpstream keeps an engine's error answer. Busy and broken engines may be followed by another.
func (k *call) refusedUpstream(status int) (again bool) {
	x := &k.exchange
	k.outcome = slo.UpstreamError
	if status == fasthttp.StatusUnauthorized || status == fasthttp.StatusProxyAuthRequired {
		// The engine wants a credential, and never saw the client's: the client's key is not at fault.
		k.failure.set(fasthttp.StatusBadGateway, k.outcome, "upstream_auth", "The engine refused the gateway's credential.")
		k.tellFailure()
		return false
	}
	if status < 500 && status != 429 {
		k.outcome = slo.BadRequest // the engine found fault with the request, as it would have anywhere
	}
	k.failure.set(status, k.outcome, "upstream_error", "The engine answered with an error.")
	k.failure.busy = status == 429 || status == 503
	k.failure.retryAfterS = retryAfter(x.Find("retry-after"), time.Now())
	body := k.failure.body[:0]
	for len(body) < maxErrorBytes { // ends: each turn reads a byte or breaks
		n, err := x.Read(k.buf[:min(len(k.buf), maxErrorBytes-len(body))])
		body = append(body, k.buf[:n]...)
		if err != nil {
			break
		}
	}
	if x.Ended() && hasErrorObject(body) {
		k.failure.body = body
	} else {
		k.failure.body = body[:0]
	}
	if k.conn.left() {
		k.clientLeft()
		return false
	}
	if status >= 500 && status != 501 || status == 429 {
		return true
	}
	k.tellFailure()
	return false
}

// hasErrorObject reports that a body is JSON with an error member that is an object, the only form that is passed on.
func hasErrorObject(body []byte) bool {
	at := bytes.Index(body, []byte(`"error"`))
	if at < 0 || wire.ReadEvent(nil, body).Malformed || !wire.ReadEvent(nil, body).Error {
		return false
	}
	rest := bytes.TrimLeft(body[at+len(`"error"`):], " \t\r\n")
	return len(rest) > 1 && rest[0] == ':' && bytes.TrimLeft(rest[1:], " \t\r\n")[0] == '{'
}

// retryAfter reads a Retry-After header, seconds or a date; 0 without one.
func retryAfter(value []byte, now time.Time) int64 {
	if len(value) == 0 {
		return 0
	}
	if n, err := fasthttp.ParseUint(value); err == nil {
		return int64(n)
	}
	if at, err := fasthttp.ParseHTTPDate(value); err == nil {
		return max(1, int64(at.Sub(now).Seconds()+0.999))
	}
	return 0
}

// tellFailure answers with the failure that was kept.
func (k *call) tellFailure() {
	f := &k.failure
	k.outcome = f.outcome
	if len(f.body) == 0 {
		k.refuseParam(f.status, f.code, f.message, "", f.retryAfterS*1000)
		return
	}
	if f.status == 429 || f.status == 503 {
		k.refuseParam(f.status, f.code, f.message, "", f.retryAfterS*1000) // for its Retry-After
	}
	k.answer(f.status, f.body)
}
