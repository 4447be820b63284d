package own

import (
	"context"
	"errors"
	"sync"
	"time"

	"sluice/router"
)

// Limits of the keeper.
const (
	maxLeaseCalls   = 32     // to agents at once
	leaseCallMs     = 2000   // longest call
	leaseRetryMs    = 200    // after an error
	refusedRetryMs  = 1000   // after a refusal, when nothing is in flight
	minLeaseTTLMs   = 10     // a shorter lease could never be used
	closeReturnMs   = 1000   // for returning leases at the end
	keeperIdleMs    = 60_000 // the keeper looks at least that often
	leaseMarginPart = 10     // a tenth of the lease is not used
)

// lease is the keeper's side of one replica's lease. Its fields are guarded by keeper.mu.
type lease struct {
	replica   router.Replica
	wanted    bool  // the replica is in the table
	held      bool  // the agent believes that we may send
	heldMs    int64 // until then at the latest
	refused   bool
	calling   bool  // one call at a time
	nextMs    int64 // of the next call
	returnMs  int64 // of the next try to return it
	intervals int64 // ttl/3 of the last lease
	table     int64 // the last one that it was in
}

// keeper renews, gives up and returns leases. One goroutine decides; calls to agents run beside it, at most
// maxLeaseCalls at once.
type keeper struct {
	router *Router
	wake   chan struct{}
	ctx    context.Context
	cancel context.CancelFunc
	calls  chan struct{} // a place for each running call
	done   chan struct{}
	wg     sync.WaitGroup

	mu     sync.Mutex
	leased map[*counter]struct{} // guarded by mu: counters whose lease is wanted or held
	tables int64                 // guarded by mu: counts updates
}

func newKeeper(r *Router) *keeper {
	k := &keeper{
		router: r, wake: make(chan struct{}, 1), calls: make(chan struct{}, maxLeaseCalls),
		done: make(chan struct{}), leased: make(map[*counter]struct{}),
	}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	if r.cfg.Leaser == nil {
		close(k.done)
		return k
	}
	go k.run()
	return k
}

func (k *keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// leases reports whether requests may go to the replica under a lease only.
func (k *keeper) leases(r *router.Replica) bool {
	return r.AgentAddr != "" && k.router.cfg.Leaser != nil
}

// update takes over which leases are wanted. Replicas without an agent are opened at once.
func (k *keeper) update(lv *live) {
	k.mu.Lock()
	k.tables++
	for slot, c := range lv.counters {
		replica, l := lv.table.Replica(slot), &c.lease
		if !k.leases(replica) {
			c.leaseMs.Store(always)
			continue
		}
		if c.leaseMs.Load() == always { // it had no agent before
			c.leaseMs.Store(0)
		}
		if !l.wanted {
			l.nextMs = 0 // new, or back: ask now
		}
		l.replica, l.wanted, l.table = *replica, true, k.tables
		k.leased[c] = struct{}{}
	}
	for c := range k.leased {
		if c.lease.table != k.tables {
			c.lease.wanted = false
		}
	}
	k.mu.Unlock()
	k.poke()
}

// idle reports whether nothing is held or under way for the counter.
func (k *keeper) idle(c *counter) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !c.lease.held && !c.lease.calling
}

func (k *keeper) run() {
	defer close(k.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		nowMs := k.router.cfg.NowMs()
		nextMs := k.round(nowMs)
		timer.Reset(time.Duration(max(1, nextMs-nowMs)) * time.Millisecond)
	}
}

// round starts the calls that are due and returns when the next one will be.
func (k *keeper) round(nowMs int64) (nextMs int64) {
	nextMs = nowMs + keeperIdleMs
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.leased {
		if c.lease.calling {
			continue
		}
		if at := k.stepLocked(c, nowMs); at > 0 {
			nextMs = min(nextMs, max(at, nowMs+1))
		}
	}
	return nextMs
}

// stepLocked does what is due for one lease and returns when to look again; 0: when something happens.
func (k *keeper) stepLocked(c *counter, nowMs int64) (nextMs int64) {
	l := &c.lease
	giveUp := !l.wanted || l.refused
	if giveUp && c.leaseMs.Load() != always {
		c.leaseMs.Store(0) // before the count is read
	}
	idle := c.inFlight.Load() == 0
	if l.held && idle && nowMs >= l.heldMs {
		l.held = false // it ran out by itself
	}
	call, dueMs := (*keeper).renew, l.nextMs
	switch {
	case !l.wanted && !l.held:
		delete(k.leased, c)
		l.refused = false
		return 0
	case giveUp && l.held && idle:
		call, dueMs = (*keeper).giveBack, l.returnMs
	}
	if dueMs <= nowMs {
		if !k.start(c, call) {
			return nowMs + leaseRetryMs
		}
		return 0
	}
	return dueMs
}

// start runs a call beside the keeper; false when too many run.
func (k *keeper) start(c *counter, call func(*keeper, *counter, router.Replica)) bool {
	select {
	case k.calls <- struct{}{}:
	default:
		return false
	}
	c.lease.calling = true
	replica := c.lease.replica
	k.wg.Go(func() {
		call(k, c, replica)
		<-k.calls
		k.poke()
	})
	return true
}

// renew asks the agent. What counts is the time before the question was sent.
func (k *keeper) renew(c *counter, replica router.Replica) {
	askedMs := k.router.cfg.NowMs()
	ctx, cancel := context.WithTimeout(k.ctx, leaseCallMs*time.Millisecond)
	ttlMs, err := k.router.cfg.Leaser.Renew(ctx, replica)
	cancel()
	nowMs := k.router.cfg.NowMs()
	k.mu.Lock()
	defer k.mu.Unlock()
	l := &c.lease
	l.calling = false
	switch {
	case err == nil && ttlMs >= minLeaseTTLMs:
		l.held, l.refused, l.heldMs = true, false, askedMs+ttlMs
		l.intervals = ttlMs / 3
		l.nextMs = askedMs + l.intervals
		if l.wanted {
			was := c.leaseMs.Swap(askedMs + ttlMs - ttlMs/leaseMarginPart)
			if was <= nowMs {
				k.openedLocked(replica.Model)
			}
		}
	case errors.Is(err, router.ErrLeaseRefused):
		c.leaseMs.Store(0)
		l.refused = true
		l.nextMs = nowMs + refusedRetryMs
		if c.inFlight.Load() > 0 && l.intervals > 0 {
			l.nextMs = nowMs + l.intervals
		}
	default: // what is held runs out by itself
		l.nextMs = nowMs + leaseRetryMs
		if l.intervals > 0 {
			l.nextMs = nowMs + min(leaseRetryMs, l.intervals)
		}
	}
}

// openedLocked wakes who waits for the model.
func (k *keeper) openedLocked(model string) {
	if l := k.router.live.Load().lines[model]; l != nil {
		l.poke()
	}
}

// giveBack returns a lease with nothing in flight and none to come, as its deadline is cleared.
func (k *keeper) giveBack(c *counter, replica router.Replica) {
	ctx, cancel := context.WithTimeout(k.ctx, leaseCallMs*time.Millisecond)
	err := k.router.cfg.Leaser.Return(ctx, replica)
	cancel()
	nowMs := k.router.cfg.NowMs()
	k.mu.Lock()
	defer k.mu.Unlock()
	l := &c.lease
	l.calling = false
	l.returnMs = nowMs + leaseRetryMs
	if err == nil || nowMs >= l.heldMs {
		l.held, l.returnMs = false, 0
	}
}

// close ends the keeper and returns what it can in closeReturnMs. The counters are closed already.
func (k *keeper) close() {
	k.cancel()
	<-k.done
	k.wg.Wait()
	if k.router.cfg.Leaser == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeReturnMs*time.Millisecond)
	defer cancel()
	k.mu.Lock()
	var held []router.Replica
	for c := range k.leased {
		if c.lease.held && c.inFlight.Load() == 0 {
			held = append(held, c.lease.replica)
		}
		c.leaseMs.Store(0)
	}
	k.mu.Unlock()
	for _, replica := range held {
		k.wg.Go(func() {
			k.calls <- struct{}{}
			// An agent that does not answer lets the lease run out.
			_ = k.router.cfg.Leaser.Return(ctx, replica)
			<-k.calls
		})
	}
	k.wg.Wait()
}
