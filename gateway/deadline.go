package gateway

import (
	"errors"
	"time"

	"github.com/valyala/fasthttp"

	"sluice/gateway/relay"
	"sluice/slo"
)

// times reads the request's deadline: the model's, else the gateway's, or an earlier one that the client asks for.
func (k *call) times() bool {
	limit := k.srv.cfg.RequestTimeoutMs
	if k.model.RequestTimeoutMs > 0 {
		limit = k.model.RequestTimeoutMs
	}
	if sent := k.ctx.Request.Header.Peek("X-Request-Timeout-Ms"); len(sent) > 0 {
		n, err := fasthttp.ParseUint(sent)
		if err != nil || n < 1 {
			k.refuse(fasthttp.StatusBadRequest, slo.BadRequest, "invalid_timeout",
				"x-request-timeout-ms must be a whole number above 0.", 0)
			return false
		}
		if int64(n) < limit {
			limit, k.patienceMs = int64(n), int64(n)
		}
	}
	k.deadline = k.arrived.Add(ms(limit))
	k.ask.DeadlineMs = k.srv.deps.NowMs() + limit
	return true
}

// inTime reports that the request's time is not over.
func (k *call) inTime() bool { return time.Now().Before(k.deadline) }

// firstBy is until when a try that begins now must have brought its first token, or the first byte of an answer that
// does not stream. The model's limit is for streams: a whole answer's first byte comes with its last token.
func (k *call) firstBy(now time.Time) time.Time {
	limit := k.srv.cfg.FirstByteMs
	if n := k.model.FirstTokenMs; n > 0 && k.head.Stream {
		limit = min(limit, n)
	}
	if by := now.Add(ms(limit)); by.Before(k.deadline) {
		return by
	}
	return k.deadline
}

// start sets the try's limits and makes it what a departing client cancels.
func (a *attempt) start() {
	a.exchange.Begin()
	a.started = time.Now()
	a.firstBy, a.hedgeAt = a.call.firstBy(a.started), time.Time{}
}

// open sends the request and waits for the answer's head.
func (a *attempt) open() error {
	a.hold()
	err := a.call.srv.client.Do(&a.exchange, &a.upstream)
	for a.hedgeDue(err) {
		err = a.call.srv.client.Await(&a.exchange, &a.upstream)
	}
	if err == nil {
		a.noteHead()
	}
	return err
}

// pump reads the answer; see relay.Exchange.Pump.
func (a *attempt) pump() error {
	err := a.exchange.Pump(a)
	for a.hedgeDue(err) {
		err = a.exchange.Pump(a)
	}
	return err
}

// hold sets what ends the waiting for the first token, comments and roles notwithstanding.
func (a *attempt) hold() {
	if !a.hedgeAt.IsZero() && a.hedgeAt.Before(a.firstBy) {
		a.exchange.Hold(a.hedgeAt)
		return
	}
	a.exchange.Hold(a.firstBy)
}

// hedgeDue reports that the wait ended for a second try to begin, begins it, and lets the first one wait on.
func (a *attempt) hedgeDue(err error) bool {
	if err == nil || a.hedgeAt.IsZero() || !errors.Is(err, relay.ErrFirstByte) || time.Now().Before(a.hedgeAt) {
		return false
	}
	a.hedgeAt = time.Time{}
	a.hold()
	a.call.hedge()
	return true
}
