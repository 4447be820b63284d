package gateway

import (
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

// verdict is how a try ended for its client.
type verdict uint8

const (
	answered  verdict = iota // the client has its answer, or nobody waits for one any more
	failed                   // the failure is what the client is to be told
	elsewhere                // it failed before anything reached the client, in a way that another replica may not
)

// try sends the request to the replica that was acquired and relays the answer. Unless it says answered, failure and
// outcome say how it failed.
func (k *call) try() verdict {
	a := k.at
	a.begin()
	a.noteBegin()
	a.prepare()
	a.start()
	k.conn.attach(0, &a.exchange)
	k.planHedge()
	v := k.run()
	if k.race.second == nil {
		return v
	}
	switch v {
	case elsewhere:
		v = k.outcomeOfRace(v)
	case failed:
		if !k.claim(a) {
			v = k.outcomeOfRace(v)
		}
	}
	return v
}

// run is one try by itself.
func (k *call) run() verdict {
	if err := k.at.open(); err != nil {
		return k.lost(err)
	}
	switch status := k.at.exchange.Status(); {
	case status >= 200 && status < 300:
		return k.relay()
	case status >= 300 && status < 400:
		k.fail(fasthttp.StatusBadGateway, slo.UpstreamError, "upstream_redirect", "The engine answered with a redirect, which is never followed.")
		return failed
	default:
		return k.refusedUpstream(status)
	}
}

// fail notes how the try failed.
func (k *call) fail(status int, outcome slo.Outcome, code, message string) {
	k.outcome = outcome
	k.at.failure.set(status, outcome, code, message)
}

// prepare builds the request for the engine: the body with its edits, and headers of our own. Of the client's headers
// only those of tracing go on, so no credential, hop-by-hop or internal header can.
func (a *attempt) prepare() {
	k := a.call
	k.translation.begin()
	k.beginVectors()
	options := k.head.Stream && k.endpoint.options
	a.stream.HideUsage = options && !k.head.IncludeUsage
	if k.kept.method == "" {
		a.parts, a.scratch = k.head.AppendEdits(a.parts[:0], a.scratch[:0], k.payload(), wire.Edits{
			Model: k.upstreamModel(&a.replica), IncludeUsage: options,
		})
	}
	h := append(a.header[:0], "Content-Type: "...)
	if k.endpoint.form {
		h = append(h, k.ctx.Request.Header.ContentType()...)
	} else {
		h = append(h, "application/json"...)
	}
	h = append(h, "\r\nUser-Agent: sluice\r\nAccept-Encoding: identity\r\nAccept: "...)
	switch {
	case k.head.Stream:
		h = append(h, "text/event-stream"...)
	case k.endpoint.form:
		h = append(h, "*/*"...)
	default:
		h = append(h, "application/json"...)
	}
	h = append(h, "\r\nX-Request-Id: "...)
	h = append(h, k.id...)
	h = append(h, "\r\nX-Forwarded-For: "...)
	h = append(h, k.conn.peer...)
	h = append(h, "\r\n"...)
	h = k.appendTrace(h)
	if k.endpoint.dialect == dialectAnthropic && k.translation == nil {
		h = appendVersions(h, &k.ctx.Request.Header)
	}
	if auth := k.srv.deps.UpstreamAuth(a.replica.ID); auth != "" && oneLine(auth) {
		h = append(h, "Authorization: "...)
		h = append(h, auth...)
		h = append(h, "\r\n"...)
	}
	a.header = h
	a.upstream = relay.Request{
		Addr: a.replica.Addr, Method: "POST", Path: k.enginePath(), Header: h, Body: a.parts,
		Deadline: k.deadline,
	}
	if k.kept.method != "" {
		a.upstream.Method, a.upstream.Path, a.upstream.Body = k.kept.method, k.kept.path, nil
	}
}

// lost classifies a failure of the exchange before any byte of its answer went to the client.
func (k *call) lost(err error) verdict {
	switch {
	case k.beaten():
		k.outcome = slo.ClientGone
	case errors.Is(err, relay.ErrCancelled):
		k.clientLeft()
		return answered
	case errors.Is(err, relay.ErrFirstByte), errors.Is(err, relay.ErrIdle):
		k.fail(fasthttp.StatusGatewayTimeout, slo.Timeout, "upstream_timeout", "The engine did not answer in time.")
		if !k.inTime() {
			return failed
		}
	case errors.Is(err, relay.ErrProtocol):
		k.fail(fasthttp.StatusBadGateway, slo.UpstreamError, "upstream_malformed", "The engine's answer was malformed.")
	case errors.Is(err, relay.ErrConnect):
		k.fail(fasthttp.StatusBadGateway, slo.UpstreamLost, "upstream_unreachable", "The engine could not be reached.")
	default:
		k.fail(fasthttp.StatusBadGateway, slo.UpstreamLost, "upstream_lost", "The connection to the engine broke.")
	}
	return elsewhere
}

// refusedUpstream keeps an engine's error answer. Busy and broken engines may be followed by another.
func (k *call) refusedUpstream(status int) verdict {
	a := k.at
	x, f := &a.exchange, &a.failure
	outcome := slo.UpstreamError
	if status == fasthttp.StatusUnauthorized || status == fasthttp.StatusProxyAuthRequired {
		// The engine wants a credential, and never saw the client's: the client's key is not at fault.
		k.fail(fasthttp.StatusBadGateway, outcome, "upstream_auth", "The engine refused the gateway's credential.")
		return failed
	}
	if status < 500 && status != 429 {
		outcome = slo.BadRequest // the engine found fault with the request, as it would have anywhere
	}
	code := "upstream_error"
	switch status {
	case fasthttp.StatusTooManyRequests:
		code = "upstream_rate_limit"
	case fasthttp.StatusServiceUnavailable:
		code = "upstream_overloaded"
	}
	k.fail(status, outcome, code, "The engine answered with an error.")
	f.busy = status == 429 || status == 503
	f.retryAfterS = retryAfter(x.Find("retry-after"), time.Now())
	room, body := a.body(), f.body[:0]
	for len(body) < maxErrorBytes { // ends: each turn reads a byte or breaks
		n, err := x.Read(room[:maxErrorBytes-len(body)])
		body = append(body, room[:n]...)
		if err != nil {
			break
		}
	}
	if f.body = body[:0]; x.Ended() && hasErrorObject(body) {
		f.body = body
	}
	if k.conn.left() {
		k.clientLeft()
		return answered
	}
	if status >= 500 && status != 501 || status == 429 {
		return elsewhere
	}
	return failed
}

// hasErrorObject reports that a body is JSON with an error member that is an object, the only form that is passed on.
func hasErrorObject(body []byte) bool {
	found := false
	m := wire.ReadMembers(body)
	for m.Next() {
		found = found || string(m.Name) == "error" && m.Value[0] == '{' && len(m.Value) > len("{}")
	}
	return found && !m.Malformed()
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
	if k.estimates() {
		k.tellEstimate()
		return
	}
	f := &k.at.failure
	k.outcome, k.told.code = f.outcome, f.code
	if len(f.body) == 0 {
		k.refuseParam(f.status, f.code, f.message, "", f.retryAfterS*1000)
		return
	}
	if f.status == 429 || f.status == 503 {
		k.refuseParam(f.status, f.code, f.message, "", f.retryAfterS*1000) // for its Retry-After
	}
	k.out = k.endpoint.dialect.appendEngineError(k.out[:0], f.body, f.status, k.id)
	k.answer(f.status, k.out)
}
