package own

import (
	"sync/atomic"

	"sluice/router"
	"sluice/slo"
)

// Result is how an exchange with a replica ended.
type Result struct {
	Outcome      slo.Outcome
	TTFTMs       float64 // 0: no byte of an answer came
	E2EMs        float64
	InputTokens  int
	OutputTokens int
	// Busy: the engine answered 429 or 503. It is alive; it is left alone for a moment, for RetryAfterMs if it said so.
	Busy         bool
	RetryAfterMs int64
	// Aside: it was no ordinary work of the model, so nothing is learned from how long it took.
	Aside bool
}

// Ticket is the charge of one request on one replica. Its methods may be called from any goroutine; Release counts once.
// The zero value holds no charge: releasing it does nothing. It may be used again, by AcquireInto, once Release returned
// and nobody else can still call its methods.
type Ticket struct {
	router   *Router
	choice   choice
	replica  *router.Replica
	counter  *counter
	workUs   int64
	chargeMs int64
	queueMs  int64
	first    atomic.Bool
	held     atomic.Bool // from the beginning of Acquire to Release
}

// begin makes t ready for a new charge. A ticket that still holds one is the caller's fault: the slot would be lost.
func (t *Ticket) begin(r *Router) {
	if t.held.Load() {
		panic("own: a ticket is used again before its release")
	}
	t.router, t.choice, t.replica, t.counter = r, choice{}, nil, nil
	t.workUs, t.chargeMs, t.queueMs = 0, 0, 0
	t.first.Store(false)
	t.held.Store(true)
}

// drop leaves t without a charge: it got none.
func (t *Ticket) drop() {
	t.choice, t.replica, t.counter = choice{}, nil, nil
	t.held.Store(false)
}

// Replica is where the request goes.
func (t *Ticket) Replica() router.Replica { return *t.replica }

// QueueMs is how long the request waited in the queue, 0 on the fast path.
func (t *Ticket) QueueMs() float64 { return float64(t.queueMs) }

// FirstByte tells that the answer has begun: the replica is well.
func (t *Ticket) FirstByte() {
	if t.first.CompareAndSwap(false, true) {
		t.counter.connected()
	}
}

// Release gives the charge back at the end of the exchange, however it ended, and lets the next one in. Only the first
// call counts.
func (t *Ticket) Release(res Result) {
	if !t.held.CompareAndSwap(true, false) {
		return
	}
	nowMs := t.router.cfg.NowMs()
	t.learn(&res, nowMs)
	t.counter.discharge(t.workUs)
	line := t.choice.line
	line.inFlight.Add(-1)
	if line.queued.Load() > 0 {
		line.poke()
	}
	if t.counter.leaseMs.Load() == 0 {
		t.router.keeper.poke()
	}
}

func (t *Ticket) learn(res *Result, nowMs int64) {
	began := t.first.Load() || res.TTFTMs > 0
	switch {
	case res.Busy:
		t.counter.saidBusy(&t.router.cfg, nowMs, res.RetryAfterMs)
		t.counter.connected()
		return
	case res.Outcome == slo.UpstreamLost && !began:
		t.counter.unreachable(&t.router.cfg, nowMs)
		return
	case began || res.Outcome == slo.OK:
		t.counter.connected()
	}
	if res.Outcome == slo.OK && !res.Aside {
		t.counter.busyRow.Store(0)
		heldMs := max(0.5, float64(nowMs-t.chargeMs))
		t.choice.line.heldMs.learn(heldMs)
		ratio := heldMs / max(0.001, float64(t.workUs)/1000)
		t.counter.ratio.learn(ratio)
		t.choice.line.ratio.learn(ratio)
	}
}
