package own

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sluice/router"
	"sluice/slo"
)

// agent leases engines for ttl and puts one to sleep only when its lease was returned or ran out, by its own watch.
type agent struct {
	mu       sync.Mutex
	ttl      time.Duration
	until    map[string]time.Time // lease by replica; absent: returned
	draining map[string]bool
	broken   bool
	delay    time.Duration
	asked    map[string]int
	returned map[string]int
}

func newAgent(ttl time.Duration) *agent {
	return &agent{
		ttl: ttl, until: map[string]time.Time{}, draining: map[string]bool{},
		asked: map[string]int{}, returned: map[string]int{},
	}
}

func (a *agent) Renew(ctx context.Context, r router.Replica) (int64, error) {
	a.mu.Lock()
	a.asked[r.ID]++
	delay, broken, draining := a.delay, a.broken, a.draining[r.ID]
	if !broken && !draining {
		a.until[r.ID] = time.Now().Add(a.ttl) // from when it heard, before the answer travels
	}
	a.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	switch {
	case broken:
		return 0, errors.New("no route to the agent")
	case draining:
		return 0, fmt.Errorf("%s is about to sleep: %w", r.ID, router.ErrLeaseRefused)
	}
	return a.ttl.Milliseconds(), nil
}

func (a *agent) Return(_ context.Context, r router.Replica) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken {
		return errors.New("no route to the agent")
	}
	a.returned[r.ID]++
	delete(a.until, r.ID)
	return nil
}

// maySleep is the agent's own judgement.
func (a *agent) maySleep(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	until, leased := a.until[id]
	return a.draining[id] && (!leased || !time.Now().Before(until))
}

func (a *agent) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

func leasedReplicas(n, maxInFlight int) []router.Replica {
	list := replicas(n, maxInFlight)
	for i := range list {
		list[i].AgentAddr = "agent:1"
	}
	return list
}

func leasedRouter(t *testing.T, a *agent, list []router.Replica) *Router {
	t.Helper()
	cfg := Default()
	cfg.Leaser = a
	r := start(t, cfg, list)
	synctest.Wait()
	return r
}

func TestLeaseIsAskedKeptAndReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(3 * time.Second)
		list := leasedReplicas(2, 8)
		r := leasedRouter(t, a, list)
		for range 100 { // 100 s on 3 s leases
			must(t, r, router.Request{}).Release(Result{Outcome: slo.OK})
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if n := a.asked["r0"]; n < 90 || n > 110 {
			t.Errorf("asked %d times in 100 s for a third of 3 s", n)
		}
		r.SetTable(table(t, list[1:]))
		synctest.Wait()
		if a.returned["r0"] != 1 || a.returned["r1"] != 0 {
			t.Errorf("returned %v, want r0 once", a.returned)
		}
		r.Close()
		if a.returned["r1"] != 1 {
			t.Errorf("returned %v after Close", a.returned)
		}
	})
}

func TestLeaseRunsOutWhenTheAgentIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(3 * time.Second)
		r := leasedRouter(t, a, leasedReplicas(1, 8))
		defer r.Close()
		a.set(func() { a.broken = true })
		time.Sleep(1700 * time.Millisecond)
		must(t, r, router.Request{}).Release(Result{Outcome: slo.OK}) // the lease of up to 1 s ago still holds
		time.Sleep(1700 * time.Millisecond)
		_, err := r.Acquire(&router.Request{Model: "chat", DeadlineMs: r.cfg.NowMs() + 100}, nil)
		var refusal *router.Refusal
		if !errors.As(err, &refusal) || refusal.Outcome != slo.NoReplica {
			t.Errorf("with a dead lease: %v", err)
		}
		a.set(func() { a.broken = false })
		time.Sleep(time.Second)
		must(t, r, router.Request{}).Release(Result{Outcome: slo.OK})
	})
}

func TestRefusedLeaseGoesBackWhenEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(3 * time.Second)
		r := leasedRouter(t, a, leasedReplicas(1, 8))
		defer r.Close()
		stream := must(t, r, router.Request{})
		a.set(func() { a.draining["r0"] = true })
		time.Sleep(1100 * time.Millisecond) // the next renewal is refused
		if s := r.Stats(r.cfg.NowMs()); s.Replicas[0].Standing != router.Out {
			t.Error("refused and still chosen")
		}
		synctest.Wait()
		if a.returned["r0"] != 0 {
			t.Error("returned with a request in flight")
		}
		stream.Release(Result{Outcome: slo.OK})
		synctest.Wait()
		if a.returned["r0"] != 1 {
			t.Errorf("returned %d times after the last request", a.returned["r0"])
		}
		a.set(func() { a.draining["r0"] = false }) // it changed its mind
		must(t, r, router.Request{}).Release(Result{Outcome: slo.OK})
	})
}

// Whatever the delays, losses and orders, no request starts on an engine that its agent holds for free to sleep.
func TestNoRequestReachesASleepingEngine(t *testing.T) {
	seeds := uint64(50)
	if raceEnabled {
		seeds = 10 // each is slow there, and one shows a race as well as another
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { fence(t, seed) })
	}
}

func fence(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 11))
	a := newAgent(time.Duration(300+rng.IntN(1000)) * time.Millisecond)
	list := leasedReplicas(3, 4)
	r := leasedRouter(t, a, list)
	var wg sync.WaitGroup
	var served atomic.Int64
	for i := range 600 {
		hold := time.Duration(rng.IntN(200)) * time.Millisecond
		wg.Go(func() {
			ticket, err := r.Acquire(&router.Request{Model: "chat", DeadlineMs: r.cfg.NowMs() + 1500}, nil)
			if err != nil {
				return
			}
			served.Add(1)
			id := ticket.Replica().ID
			if a.maySleep(id) {
				t.Errorf("seed %d, request %d: sent to %s, which may sleep", seed, i, id)
			}
			time.Sleep(hold)
			ticket.Release(Result{Outcome: slo.OK})
		})
		time.Sleep(time.Duration(rng.IntN(15)) * time.Millisecond)
		switch rng.IntN(30) {
		case 0:
			id := list[rng.IntN(3)].ID
			a.set(func() { a.draining[id] = !a.draining[id] })
		case 1:
			a.set(func() { a.broken = !a.broken })
		case 2:
			a.set(func() { a.delay = time.Duration(rng.IntN(250)) * time.Millisecond })
		case 3, 4, 5:
			a.set(func() { a.broken = false; clear(a.draining) })
		case 6:
			r.SetTable(table(t, list[rng.IntN(3):]))
		}
	}
	wg.Wait()
	if served.Load() < 100 {
		t.Errorf("seed %d: only %d of 600 served, the test shows little", seed, served.Load())
	}
	r.Close()
}
