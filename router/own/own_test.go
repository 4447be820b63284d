package own

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"sluice/router"
	"sluice/router/prefix"
	"sluice/slo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func replicas(n, maxInFlight int) []router.Replica {
	list := make([]router.Replica, n)
	for i := range list {
		list[i] = router.Replica{ID: fmt.Sprintf("r%d", i), Addr: fmt.Sprintf("10.0.0.%d:80", i), MaxInFlight: maxInFlight}
	}
	return list
}

func table(t testing.TB, list []router.Replica) *router.Table {
	t.Helper()
	tab, err := router.NewTable([]router.Model{{Name: "chat", Aliases: []string{"gpt"}, Replicas: list}})
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func start(t testing.TB, cfg Config, list []router.Replica) *Router {
	t.Helper()
	r := New(cfg)
	r.SetTable(table(t, list))
	return r
}

func must(t testing.TB, r *Router, req router.Request) *Ticket {
	t.Helper()
	if req.Model == "" {
		req.Model = "chat"
	}
	ticket, err := r.Acquire(&req, nil)
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	return ticket
}

// settled checks that nothing is left in flight or waiting.
func settled(t testing.TB, r *Router) {
	t.Helper()
	s := r.Stats(r.cfg.NowMs())
	for _, m := range s.Models {
		if m.InFlight != 0 || m.Depth() != 0 || r.Depth(m.Model) != 0 {
			t.Errorf("model %s: %d in flight, %d queued after the end", m.Model, m.InFlight, m.Depth())
		}
	}
	for _, rep := range s.Replicas {
		if rep.InFlight != 0 || rep.WorkMs != 0 {
			t.Errorf("replica %s: %d in flight, %v ms of work after the end", rep.ID, rep.InFlight, rep.WorkMs)
		}
	}
}

func TestCase_RT_01_LoadCountsUntilTheLastByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(2, 64))
		defer r.Close()
		running := map[string]int{}
		for i := range 20 {
			ticket := must(t, r, router.Request{PromptTokens: 100})
			ticket.FirstByte() // headers are there; the stream goes on
			running[ticket.Replica().ID]++
			if d := running["r0"] - running["r1"]; d < -1 || d > 1 {
				t.Fatalf("after %d requests %v", i+1, running)
			}
			go func() {
				time.Sleep(10 * time.Second)
				ticket.Release(Result{Outcome: slo.OK})
			}()
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(11 * time.Second)
		settled(t, r)
	})
}

func TestCase_RT_02_LoadCountsFromTheChoice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(4, 64))
		defer r.Close()
		var tickets []*Ticket
		count := map[string]int{}
		for i := range 16 {
			ticket := must(t, r, router.Request{PromptTokens: 5000, MaxTokens: 1, Prefix: []uint64{uint64(i)}})
			count[ticket.Replica().ID]++
			tickets = append(tickets, ticket)
		}
		for id, n := range count {
			if n != 4 {
				t.Errorf("%s got %d of 16, want 4", id, n)
			}
		}
		for _, ticket := range tickets {
			ticket.Release(Result{Outcome: slo.OK})
		}
		settled(t, r)
	})
}

func TestCase_RT_03_MissesAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(4, 8))
		defer r.Close()
		count := map[string]int{}
		for i := range 400 {
			ticket := must(t, r, router.Request{PromptTokens: 256, Prefix: []uint64{uint64(i) << 8, uint64(i)<<8 + 1}})
			count[ticket.Replica().ID]++
			time.Sleep(50 * time.Millisecond)
			ticket.Release(Result{Outcome: slo.OK})
		}
		for id, n := range count {
			if n < 60 || n > 140 {
				t.Errorf("%s got %d of 400, want 60 to 140", id, n)
			}
		}
	})
}

func TestCase_RT_04_HotPrefixIsCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(4, 8))
		defer r.Close()
		hot := make([]uint64, 62) // 4,000 tokens in blocks of 64
		for i := range hot {
			hot[i] = uint64(i) + 1000
		}
		count, holders, hits := map[string]int{}, map[string]bool{}, 0
		for range 200 {
			ticket := must(t, r, router.Request{PromptTokens: 4000, MaxTokens: 200, Prefix: hot})
			id := ticket.Replica().ID
			if holders[id] {
				hits++
			}
			holders[id] = true
			count[id]++
			go func() {
				time.Sleep(2 * time.Second)
				ticket.Release(Result{Outcome: slo.OK})
			}()
			time.Sleep(2 * time.Second / 8 / 3) // three times what one replica takes
		}
		for id, n := range count {
			if n >= 100 {
				t.Errorf("%s got %d of 200, want under half", id, n)
			}
		}
		if hits < 150 {
			t.Errorf("%d of 200 went where the prefix was", hits)
		}
		time.Sleep(5 * time.Second)
		settled(t, r)
	})
}

// A prefix that only one replica holds goes there while that costs nothing.
func TestPrefixGoesHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(40, 8)) // above ScanAll: the holder must be found among many
		defer r.Close()
		prompt := make([]byte, 8192)
		blocks := prefix.Hash(nil, prefix.Seed("chat", "", ""), prompt, 0)
		first := must(t, r, router.Request{PromptTokens: 2048, Prefix: blocks})
		home := first.Replica().ID
		first.Release(Result{Outcome: slo.OK})
		for range 20 {
			ticket := must(t, r, router.Request{PromptTokens: 2048, Prefix: blocks})
			if id := ticket.Replica().ID; id != home {
				t.Errorf("went to %s, the prefix is at %s", id, home)
			}
			ticket.Release(Result{Outcome: slo.OK})
		}
	})
}

func TestCase_RT_05_BusyIsNotBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(1, 20))
		defer r.Close()
		inside, served := 0, 0
		var mu sync.Mutex
		client := func() {
			for range 50 {
				req := router.Request{Model: "chat"}
				ticket, err := r.Acquire(&req, nil)
				if err != nil {
					t.Errorf("refused: %v", err)
					return
				}
				mu.Lock()
				busy := inside >= 4
				if !busy {
					inside++
				}
				mu.Unlock()
				if busy {
					ticket.Release(Result{Outcome: slo.UpstreamError, Busy: true, RetryAfterMs: 1000})
					continue
				}
				time.Sleep(time.Second)
				mu.Lock()
				inside--
				served++
				mu.Unlock()
				ticket.Release(Result{Outcome: slo.OK, TTFTMs: 10})
				return
			}
			t.Error("50 tries were all busy")
		}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(client)
		}
		wg.Wait()
		if served != 20 {
			t.Errorf("%d of 20 served", served)
		}
		time.Sleep(1100 * time.Millisecond)
		began := time.Now()
		must(t, r, router.Request{}).Release(Result{Outcome: slo.OK})
		if waited := time.Since(began); waited > 0 {
			t.Errorf("a second after the burst a request waited %v", waited)
		}
		settled(t, r)
	})
}

func TestUnreachableIsEjectedButNeverTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(2, 8))
		defer r.Close()
		lost := Result{Outcome: slo.UpstreamLost}
		bad := 0
		for range 40 {
			ticket := must(t, r, router.Request{})
			if ticket.Replica().ID == "r0" {
				bad++
				ticket.Release(lost)
			} else {
				ticket.FirstByte()
				ticket.Release(Result{Outcome: slo.OK})
			}
		}
		if bad != 3 {
			t.Errorf("%d requests went to a dead replica, want 3", bad)
		}
		for range 10 { // now the other one fails too
			must(t, r, router.Request{Exclude: []string{"r0"}}).Release(lost)
		}
		must(t, r, router.Request{}).Release(lost) // still: one of them is tried
		time.Sleep(31 * time.Second)
		ticket := must(t, r, router.Request{Exclude: []string{"r1"}})
		ticket.FirstByte()
		ticket.Release(Result{Outcome: slo.OK})
		if s := r.Stats(r.cfg.NowMs()); s.Replicas[0].Standing != router.Ready {
			t.Errorf("r0 answered and stands %d", s.Replicas[0].Standing)
		}
	})
}

func TestCase_RT_09_RemovedGetsNothingNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := replicas(2, 8)
		r := start(t, Default(), list)
		defer r.Close()
		var old *Ticket
		for old == nil || old.Replica().ID != "r0" {
			old = must(t, r, router.Request{})
			defer old.Release(Result{})
		}
		r.SetTable(table(t, list[1:]))
		if r.Drained("r0") {
			t.Error("r0 has a stream and is said to be drained")
		}
		for range 5 {
			ticket := must(t, r, router.Request{})
			if ticket.Replica().ID != "r1" {
				t.Error("a request went to the removed replica")
			}
			ticket.Release(Result{Outcome: slo.OK})
		}
		old.Release(Result{Outcome: slo.OK})
		if !r.Drained("r0") || r.Drained("r1") {
			t.Errorf("drained: r0 %v, r1 %v; want true, false", r.Drained("r0"), r.Drained("r1"))
		}
	})
}

func TestCase_RT_10_ReloadsLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := replicas(3, 8)
		r := start(t, Default(), list)
		defer r.Close()
		stream := must(t, r, router.Request{})
		id := stream.Replica().ID
		other, err := router.NewTable([]router.Model{{Name: "other", Replicas: []router.Replica{{ID: "c", Addr: "c:1", MaxInFlight: 1}}}})
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			r.SetTable(other)
			r.SetTable(table(t, list))
		}
		// The count was carried over; the line is a new one.
		for _, rep := range r.Stats(0).Replicas {
			if want := map[bool]int{true: 1}[rep.ID == id]; rep.InFlight != want {
				t.Errorf("%s: %d in flight, want %d", rep.ID, rep.InFlight, want)
			}
		}
		r.SetTable(other)
		if len(r.counters) != 2 || len(r.lines) != 1 {
			t.Errorf("%d counters and %d lines are kept; want c and the running one, and 1", len(r.counters), len(r.lines))
		}
		stream.Release(Result{Outcome: slo.OK})
		r.SetTable(other)
		if len(r.counters) != 1 {
			t.Errorf("%d counters are kept after the stream ended", len(r.counters))
		}
	})
}

func TestCase_RT_12_RefusedTriesLeakNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Default()
		r := start(t, cfg, replicas(4, 2))
		defer r.Close()
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				req := router.Request{Model: "chat", Tenant: fmt.Sprint(i % 7), Class: slo.Class(i % 3)}
				ticket, err := r.Acquire(&req, nil)
				if err != nil {
					var refusal *router.Refusal
					if !errors.As(err, &refusal) || refusal.RetryAfterMs < 1 {
						t.Errorf("ended with %v", err)
					}
					return
				}
				if i%2 == 0 {
					ticket.Release(Result{Outcome: slo.UpstreamError, Busy: true})
					return
				}
				time.Sleep(50 * time.Millisecond)
				ticket.Release(Result{Outcome: slo.OK})
				ticket.Release(Result{Outcome: slo.OK}) // only the first counts
			})
		}
		wg.Wait()
		settled(t, r)
	})
}

func TestUnknownModelAndAlias(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(1, 1))
		if _, err := r.Acquire(&router.Request{Model: "nope"}, nil); !errors.Is(err, router.ErrUnknownModel) {
			t.Errorf("unknown model: %v", err)
		}
		ticket := must(t, r, router.Request{Model: "gpt"})
		if got := ticket.Replica(); got.Model != "chat" || got.UpstreamModel != "chat" {
			t.Errorf("alias led to %+v", got)
		}
		r.Close()
		if _, err := r.Acquire(&router.Request{Model: "chat"}, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("closed: %v", err)
		}
		ticket.Release(Result{})
		ticket.Release(Result{})
	})
}

func TestNoReplicaWaitsForOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), nil)
		defer r.Close()
		var got string
		var wg sync.WaitGroup
		wg.Go(func() {
			ticket := must(t, r, router.Request{})
			got = ticket.Replica().ID
			ticket.Release(Result{Outcome: slo.OK})
		})
		time.Sleep(3 * time.Second)
		if s := r.Stats(r.cfg.NowMs()); s.Models[0].Depth() != 1 || s.Models[0].OldestWaitMs != 3000 {
			t.Errorf("while waiting: %+v", s.Models[0])
		}
		r.SetTable(table(t, replicas(1, 1)))
		wg.Wait()
		if got != "r0" {
			t.Errorf("served by %q", got)
		}
		r.SetTable(table(t, nil))
		began := time.Now()
		_, err := r.Acquire(&router.Request{Model: "chat"}, nil)
		var refusal *router.Refusal
		if !errors.As(err, &refusal) || refusal.Outcome != slo.NoReplica {
			t.Errorf("without any replica: %v", err)
		}
		if waited := time.Since(began); waited.Milliseconds() != Default().EmptyWaitMs {
			t.Errorf("waited %v for a replica", waited)
		}
	})
}

// A retry that has tried the only replica is refused at once.
func TestAllExcluded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(1, 8))
		defer r.Close()
		began := time.Now()
		_, err := r.Acquire(&router.Request{Model: "chat", Exclude: []string{"r0"}}, nil)
		var refusal *router.Refusal
		if !errors.As(err, &refusal) || refusal.Outcome != slo.NoReplica || time.Since(began) > 0 {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// The model leaves the table while requests wait.
func TestRemovedModelAnswersWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(1, 1))
		defer r.Close()
		holder := must(t, r, router.Request{})
		errs := make(chan error, 5)
		for range 5 {
			go func() {
				_, err := r.Acquire(&router.Request{Model: "chat"}, nil)
				errs <- err
			}()
		}
		synctest.Wait()
		r.SetTable(nil)
		for range 5 {
			if err := <-errs; !errors.Is(err, router.ErrUnknownModel) {
				t.Errorf("waiter ended with %v", err)
			}
		}
		holder.Release(Result{})
	})
}
