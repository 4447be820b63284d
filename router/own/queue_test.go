package own

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice/router"
	"sluice/slo"
)

func TestCase_SLO_01_WaitingIsHereNotInTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(1, 8))
		defer r.Close()
		var mu sync.Mutex
		running, peak := 0, 0
		var order []slo.Class
		var wg sync.WaitGroup
		for i := range 200 {
			class := slo.Batch
			if i%10 == 9 {
				class = slo.Interactive
			}
			wg.Go(func() {
				ticket := must(t, r, router.Request{Class: class})
				mu.Lock()
				running++
				peak = max(peak, running)
				mu.Unlock()
				time.Sleep(100 * time.Millisecond)
				mu.Lock()
				running--
				order = append(order, class)
				mu.Unlock()
				ticket.Release(Result{Outcome: slo.OK})
			})
		}
		wg.Wait()
		batch := 0
		interactive := 0
		for _, class := range order {
			if class == slo.Batch {
				batch++
			} else if interactive++; batch >= 40 {
				t.Errorf("interactive %d finished after batch %d", interactive, batch)
			}
		}
		if peak > 8 {
			t.Errorf("%d requests were at the engine, room for 8", peak)
		}
		settled(t, r)
	})
}

func TestCase_SLO_02_LosersKeepTheirPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(4, 4))
		defer r.Close()
		now := r.cfg.NowMs
		for burst := range 50 {
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					req := router.Request{Model: "chat", DeadlineMs: now() + 30_000}
					ticket, err := r.Acquire(&req, nil)
					if err != nil {
						t.Errorf("burst %d: %v", burst, err)
						return
					}
					time.Sleep(10 * time.Millisecond)
					ticket.Release(Result{Outcome: slo.OK})
				})
			}
			wg.Wait()
		}
		settled(t, r)
	})
}

// Within one class and tenant the order is that of arrival, while every slot is fought for.
func TestFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(1, 1))
		defer r.Close()
		holder := must(t, r, router.Request{})
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				ticket := must(t, r, router.Request{})
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				ticket.Release(Result{Outcome: slo.OK})
			})
			synctest.Wait()
			time.Sleep(time.Millisecond)
		}
		holder.Release(Result{Outcome: slo.OK})
		wg.Wait()
		for i, got := range order {
			if got != i {
				t.Fatalf("order %v", order)
			}
		}
	})
}

func TestCase_SLO_03_BatchLeavesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Default()
		cfg.MaxWaitMs = 3_600_000
		r := start(t, cfg, replicas(1, 16))
		defer r.Close()
		var wg sync.WaitGroup
		var mu sync.Mutex
		held, peakHeld := 0, 0
		for range 200 {
			wg.Go(func() {
				ticket := must(t, r, router.Request{Tenant: "a", Class: slo.Batch})
				mu.Lock()
				held++
				peakHeld = max(peakHeld, held)
				mu.Unlock()
				time.Sleep(60 * time.Second)
				mu.Lock()
				held--
				mu.Unlock()
				ticket.Release(Result{Outcome: slo.OK})
			})
		}
		time.Sleep(5 * time.Second)
		for range 50 {
			began := time.Now()
			ticket := must(t, r, router.Request{Tenant: "b", Class: slo.Interactive})
			if waited := time.Since(began); waited > 0 {
				t.Errorf("b waited %v", waited)
			}
			go func() {
				time.Sleep(500 * time.Millisecond)
				ticket.Release(Result{Outcome: slo.OK})
			}()
			time.Sleep(2 * time.Second)
		}
		wg.Wait()
		if peakHeld != 14 {
			t.Errorf("a held %d of 16 slots, want 14", peakHeld)
		}
		settled(t, r)
	})
}

// Streams that still run on replicas which left do not count against those that stay.
func TestDrainingDoesNotHoldUpTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := replicas(4, 8)
		r := start(t, Default(), list)
		defer r.Close()
		for range 24 {
			defer must(t, r, router.Request{Class: slo.Batch}).Release(Result{})
		}
		r.SetTable(table(t, list[3:]))
		began := time.Now()
		for _, class := range []slo.Class{slo.Batch, slo.Interactive} {
			defer must(t, r, router.Request{Class: class}).Release(Result{})
		}
		if waited := time.Since(began); waited > 0 {
			t.Errorf("waited %v beside idle slots", waited)
		}
	})
}

// Four replicas of two slots reserve one for the urgent, as one of eight does.
func TestReserveIsSpreadOverSmallReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(4, 2))
		defer r.Close()
		for range 7 {
			defer must(t, r, router.Request{Class: slo.Batch}).Release(Result{})
		}
		_, err := r.Acquire(&router.Request{Model: "chat", Class: slo.Batch, DeadlineMs: r.cfg.NowMs() + 100}, nil)
		var refusal *router.Refusal
		if !errors.As(err, &refusal) {
			t.Errorf("an eighth of batch: %v", err)
		}
		must(t, r, router.Request{Class: slo.Interactive}).Release(Result{})
	})
}

func TestDeadlineRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(1, 1))
		defer r.Close()
		for range 3 { // it learns that a request holds its slot for 2 s
			ticket := must(t, r, router.Request{})
			time.Sleep(2 * time.Second)
			ticket.Release(Result{Outcome: slo.OK})
		}
		holder := must(t, r, router.Request{})
		defer holder.Release(Result{})
		began := time.Now()
		_, err := r.Acquire(&router.Request{Model: "chat", DeadlineMs: r.cfg.NowMs() + 1000}, nil)
		var refusal *router.Refusal
		if !errors.As(err, &refusal) || refusal.Outcome != slo.RefusedDeadline || time.Since(began) > 0 {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		if refusal.RetryAfterMs != 2000 {
			t.Errorf("retry after %d ms, one request of 2 s is ahead", refusal.RetryAfterMs)
		}
		began = time.Now()
		_, err = r.Acquire(&router.Request{Model: "chat", DeadlineMs: r.cfg.NowMs() + 3000}, nil)
		if !errors.As(err, &refusal) || refusal.Outcome != slo.RefusedDeadline || time.Since(began) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

func TestFullQueueYieldsToTheUrgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Default()
		cfg.QueueLimit = 3
		r := start(t, cfg, replicas(1, 1))
		defer r.Close()
		holder := must(t, r, router.Request{})
		results := make(chan string, 8)
		ask := func(name string, class slo.Class) {
			go func() {
				ticket, err := r.Acquire(&router.Request{Model: "chat", Class: class}, nil)
				var refusal *router.Refusal
				switch {
				case err == nil:
					ticket.Release(Result{Outcome: slo.OK})
					results <- name + " ok"
				case errors.As(err, &refusal):
					results <- name + " " + refusal.Outcome.String()
				default:
					results <- name + " " + err.Error()
				}
			}()
			synctest.Wait()
		}
		ask("batch1", slo.Batch)
		ask("batch2", slo.Batch)
		ask("standard", slo.Standard)
		ask("batch3", slo.Batch)
		ask("interactive", slo.Interactive)
		if got := <-results; got != "batch3 refused_queue_full" {
			t.Error(got)
		}
		if got := <-results; got != "batch2 refused_queue_full" {
			t.Error(got)
		}
		holder.Release(Result{Outcome: slo.OK})
		for _, want := range []string{"interactive ok", "standard ok", "batch1 ok"} {
			if got := <-results; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
	})
}

func TestGoneLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Default(), replicas(1, 1))
		defer r.Close()
		holder := must(t, r, router.Request{})
		gone := make(chan struct{})
		errs := make(chan error, 1)
		go func() {
			_, err := r.Acquire(&router.Request{Model: "chat"}, gone)
			errs <- err
		}()
		synctest.Wait()
		close(gone)
		if err := <-errs; !errors.Is(err, ErrGone) {
			t.Errorf("ended with %v", err)
		}
		holder.Release(Result{Outcome: slo.OK})
		synctest.Wait()
		settled(t, r)
	})
}

// Random clients, tables and results: every request ends, in-flight is never above the limit, nothing is left.
func TestCase_RT_07_ChurnEndsEveryRequest(t *testing.T) {
	seeds := uint64(20)
	if raceEnabled {
		seeds = 5
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { churn(t, seed) })
	}
}

func churn(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	list := replicas(6, 3)
	r := start(t, Default(), list)
	defer r.Close()
	var mu sync.Mutex
	running := map[string]int{}
	var wg sync.WaitGroup
	for i := range 400 {
		class, tenant := slo.Class(rng.IntN(3)), fmt.Sprint(rng.IntN(4))
		hold, leave := time.Duration(rng.IntN(400))*time.Millisecond, time.Duration(rng.IntN(2000))*time.Millisecond
		kind := rng.IntN(10)
		wg.Go(func() {
			gone := make(chan struct{})
			timer := time.AfterFunc(leave, func() { close(gone) })
			defer timer.Stop()
			ticket, err := r.Acquire(&router.Request{Model: "chat", Class: class, Tenant: tenant}, gone)
			if err != nil {
				var refusal *router.Refusal
				if !errors.As(err, &refusal) && !errors.Is(err, ErrGone) {
					t.Errorf("seed %d, request %d: %v", seed, i, err)
				}
				return
			}
			id := ticket.Replica().ID
			mu.Lock()
			if running[id]++; running[id] > 3 {
				t.Errorf("seed %d: %d requests on %s", seed, running[id], id)
			}
			mu.Unlock()
			time.Sleep(hold)
			mu.Lock()
			running[id]--
			mu.Unlock()
			res := Result{Outcome: slo.OK}
			switch kind {
			case 0:
				res = Result{Outcome: slo.UpstreamLost}
			case 1:
				res = Result{Outcome: slo.UpstreamError, Busy: true}
			}
			ticket.Release(res)
		})
		time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
		if i%10 == 9 {
			from := rng.IntN(len(list))
			r.SetTable(table(t, list[from:]))
		}
	}
	wg.Wait()
	r.SetTable(table(t, list))
	settled(t, r)
	for id := range running {
		if running[id] != 0 {
			t.Errorf("seed %d: %d left on %s", seed, running[id], id)
		}
	}
}

// An idle replica more never makes the queue longer: the same arrivals wait no more in sum.
func TestAReplicaMoreNeverLengthensTheQueue(t *testing.T) {
	for seed := range uint64(5) {
		last := time.Duration(1 << 62)
		for n := 2; n <= 5; n++ {
			var waited time.Duration
			synctest.Test(t, func(t *testing.T) { waited = waits(t, n, seed) })
			if waited > last {
				t.Errorf("seed %d: %d replicas wait %v in sum, one less %v", seed, n, waited, last)
			}
			last = waited
		}
	}
}

func waits(t *testing.T, n int, seed uint64) (sum time.Duration) {
	rng := rand.New(rand.NewPCG(seed, 5))
	r := start(t, Default(), replicas(n, 2))
	defer r.Close()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 300 {
		hold := time.Duration(rng.IntN(400)) * time.Millisecond
		wg.Go(func() {
			began := time.Now()
			ticket := must(t, r, router.Request{})
			mu.Lock()
			sum += time.Since(began)
			mu.Unlock()
			time.Sleep(hold)
			ticket.Release(Result{Outcome: slo.OK})
		})
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
	}
	wg.Wait()
	return sum
}
