package gateway

import (
	"fmt"
	"sync/atomic"
	"time"

	"sluice/slo"
)

// Limits of hedging.
const (
	hedgeLoad  = 0.6 // of a model's slots in use, beyond which a second try would only add to the trouble
	hedgeBurst = 16  // second tries that may be saved up
)

// race is a request's second try, beside the one under way. The serving goroutine owns it, but for winner. The second
// try has a goroutine of its own until it says so in ended; after that it belongs to the serving goroutine.
//
// Whichever try first has something worth sending wins, and cancels the other. Only the serving goroutine writes to the
// client: a second try that won stops with the bytes in its room and is gone on with from there.
type race struct {
	second *attempt
	winner atomic.Pointer[attempt]
	ended  chan struct{} // made for the first race of a call, and kept
	run    bool          // one a request
}

// closedChan is for asking the router without waiting in its queue.
var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// planHedge sets when a second try would begin. Most answers are there before that, so whether it may is asked then.
func (k *call) planHedge() {
	if k.ask.Class != slo.Interactive || k.ask.Only != "" || k.srv.cfg.HedgeRatio == 0 || k.race.run || len(k.model.Replicas) < 2 {
		return
	}
	if late := k.waits().lateMs(); late > 0 {
		k.at.hedgeAt = k.at.started.Add(time.Duration(late * float64(time.Millisecond)))
	}
}

// waits are those of the model's answers of the request's kind.
func (k *call) waits() *waits {
	if k.head.Stream {
		return &k.books.waits[1]
	}
	return &k.books.waits[0]
}

// hedge begins a second try if the budget, the load and the router let it.
func (k *call) hedge() {
	if k.race.run || k.conn.left() || float64(k.books.inFlight.Load()) > hedgeLoad*float64(k.model.Capacity()) || !k.srv.hedges.spend() {
		return
	}
	b := k.srv.attempts.Get().(*attempt)
	b.call = k
	b.begin()
	k.leaveOut(k.at.replica.ID)
	if b.acquire(closedChan) != nil {
		k.srv.hedges.refund()
		b.putBack()
		return
	}
	b.racing = true
	b.noteBegin()
	b.prepare()
	b.start()
	k.srv.books.hedges.Inc()
	r := &k.race
	if r.ended == nil {
		r.ended = make(chan struct{}, 1)
	}
	r.second, r.run = b, true
	r.winner.Store(nil)
	k.conn.attach(1, &b.exchange)
	go b.compete()
}

// compete runs a second try until it has something worth sending, or has failed. It ends when its exchange does, which
// the first try's victory, a departed client and the deadline bring about.
func (a *attempt) compete() {
	k := a.call
	defer func() {
		if r := recover(); r != nil {
			k.srv.books.panics.Inc()
			k.srv.deps.Log.Error("a second try panicked", "requestId", string(k.id), "panic", fmt.Sprint(r))
			a.fate = slo.Internal
		}
		k.race.ended <- struct{}{}
	}()
	if err := a.open(); err != nil {
		a.fate = endingOf(err)
		return
	}
	if status := a.exchange.Status(); status < 200 || status > 299 {
		a.fate, a.failure.busy = slo.UpstreamError, status == 429 || status == 503
		return
	}
	if a.look(); a.misformed() {
		a.fate = slo.UpstreamError
		return
	}
	switch err := a.pump(); {
	case err != nil:
		a.fate = endingOf(err)
	case a.stream.Error:
		a.fate = slo.UpstreamError
	default:
		a.fate = slo.ClientGone // it has won, or lost to the other
	}
}

// claim makes a the try whose answer the client gets. It reports false when the other one was first.
func (k *call) claim(a *attempt) bool {
	r := &k.race
	if r.second == nil {
		return true
	}
	if !r.winner.CompareAndSwap(nil, a) {
		return r.winner.Load() == a
	}
	if a == r.second {
		k.attempt.exchange.Cancel()
	} else {
		r.second.exchange.Cancel()
	}
	return true
}

// beaten reports that the second try won.
func (k *call) beaten() bool { return k.race.second != nil && k.race.winner.Load() == k.race.second }

// outcomeOfRace waits for the second try when the first has failed or was beaten. If the second won it is gone on with,
// else v stands.
func (k *call) outcomeOfRace(v verdict) verdict {
	r := &k.race
	b := r.second
	<-r.ended
	if r.winner.Load() != b {
		k.leaveOut(b.replica.ID)
		k.dropEnded()
		return v
	}
	a := k.at
	r.second = nil
	k.srv.books.hedgesWon.Inc()
	if k.outcome == slo.ClientGone {
		k.waits().observe(msSince(a.started), k.srv.deps.NowMs()) // it would have been longer
	}
	a.release(k.outcome)
	k.at, b.racing = b, false
	return k.resume()
}

// endRace cancels the second try and waits for its end, so that nothing of the request is in use any more.
func (k *call) endRace() {
	b := k.race.second
	if b == nil {
		return
	}
	b.exchange.Cancel()
	<-k.race.ended
	k.dropEnded()
}

// dropEnded gives back what an ended second try holds. Its tokens are nobody's: the tenant is charged for one answer.
func (k *call) dropEnded() {
	b := k.race.second
	k.race.second = nil
	k.conn.attach(1, nil)
	b.release(b.fate)
	b.putBack()
}

// putBack returns an attempt that is not a call's own to the pool.
func (a *attempt) putBack() {
	srv := a.call.srv
	a.reset()
	a.call = nil
	srv.attempts.Put(a)
}

// resume goes on with a try that stopped when it had something worth sending.
func (k *call) resume() verdict {
	a := k.at
	n := a.held
	if a.events {
		if !k.pass(n, a.kept-n) || a.stream.Error || !k.inTime() {
			return k.endStream(nil)
		}
		return k.relayEvents()
	}
	a.held, a.kept = 0, 0
	if !k.passBody(n) {
		return k.endBody(nil)
	}
	return k.relayBody()
}
