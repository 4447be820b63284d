package gateway

import "sync"

// maxAccounts bounds the keys with books; beyond it the settled ones are forgotten.
const maxAccounts = 1 << 16

// accounts keeps what keys have used of their limits. Safe for concurrent use. All limits of a request are checked and
// charged in one step, so one that is refused by one limit has paid nothing to another.
type accounts struct {
	mu   sync.Mutex
	keys map[string]*account // guarded by mu
}

// account belongs to accounts.
type account struct {
	inFlight int
	// paidMs is the time up to which requests per minute are paid for: the theoretical arrival time of the generic cell
	// rate algorithm, with a minute's worth of burst. Fleet time.
	paidMs float64
}

const minuteMs = 60_000

// refusal of a limit. The zero value is none.
type refusal struct {
	code    string
	message string
	waitMs  float64
}

// reserve charges one request, or says which limit refuses it and when to come back.
func (a *accounts) reserve(id string, l Limits, nowMs int64) (*account, refusal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc := a.keys[id]
	if acc == nil {
		if len(a.keys) >= maxAccounts {
			a.forgetLocked(nowMs)
		}
		acc = &account{}
		a.keys[id] = acc
	}
	if l.Concurrent > 0 && acc.inFlight >= l.Concurrent {
		return nil, refusal{"concurrency_limit", "Too many requests of this key are running at once.", 1000}
	}
	if l.RequestsPerMin > 0 {
		stepMs := minuteMs / float64(l.RequestsPerMin)
		paidMs := max(acc.paidMs, float64(nowMs)) + stepMs
		if wait := paidMs - float64(nowMs) - minuteMs; wait > 0.001 {
			return nil, refusal{"requests_per_minute", "This key has used its requests of this minute.", wait}
		}
		acc.paidMs = paidMs
	}
	acc.inFlight++
	return acc, refusal{}
}

// release gives a concurrency slot back.
func (a *accounts) release(acc *account) {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc.inFlight--
	if acc.inFlight < 0 {
		panic("gateway: a concurrency slot was given back twice")
	}
}

// forgetLocked drops accounts that owe nothing.
func (a *accounts) forgetLocked(nowMs int64) {
	for id, acc := range a.keys {
		if acc.inFlight == 0 && acc.paidMs <= float64(nowMs) {
			delete(a.keys, id)
		}
	}
}

// inFlight is the sum over all keys.
func (a *accounts) inFlight() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, acc := range a.keys {
		n += acc.inFlight
	}
	return n
}
