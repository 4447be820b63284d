package engine

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"sluice/bench/perf"
)

func TestMain(m *testing.M) {
	// net/http lingers half a second on a connection that it ends.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

func testProfile(t testing.TB) *perf.Profile {
	t.Helper()
	p, err := perf.Lookup("llama2-70b", "a100-80gb", 2)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func testScheduler(t testing.TB) scheduler {
	return scheduler{profile: testProfile(t), maxBatch: 4, maxWaiting: 3, kvLimit: 10_000, prefillTokens: 2048}
}

// inBubble runs f beside a loop in virtual time.
func inBubble(t *testing.T, sched scheduler, speed float64, f func(t *testing.T, b *batcher)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := newBatcher(sched, speed, new(stats))
		b.open()
		go b.run(ctx)
		f(t, b)
		cancel()
		synctest.Wait()
	})
}

func submit(t *testing.T, b *batcher, prompt, out int) *sequence {
	t.Helper()
	s := newSequence(prompt, out, 1)
	if err := b.submit(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// endsAt waits for the end of s and checks the virtual time since start.
func endsAt(t *testing.T, what string, s *sequence, start time.Time, wantMs float64) {
	t.Helper()
	<-s.finished
	if got := float64(time.Since(start)) / 1e6; math.Abs(got-wantMs) > 0.001 {
		t.Errorf("%s ended after %.4f ms, want %.4f", what, got, wantMs)
	}
}

func TestOneSequenceTakesTheMeasuredTime(t *testing.T) {
	for _, speed := range []float64{1, 25} {
		inBubble(t, testScheduler(t), speed, func(t *testing.T, b *batcher) {
			p, start := testProfile(t), time.Now()
			s := submit(t, b, 512, 1000)
			<-s.notify
			want := p.PrefillMs(512)
			if got := float64(time.Since(start)) / 1e6 * speed; math.Abs(got-want) > 0.001 {
				t.Errorf("first token after %.4f ms, want %.4f", got, want)
			}
			for i := 1; i < 1000; i++ {
				want += p.DecodeMs(1, 512+i)
			}
			<-s.finished
			// 1,000 iterations, each rounded to a nanosecond.
			if got := float64(time.Since(start)) / 1e6 * speed; math.Abs(got-want) > 0.001*speed {
				t.Errorf("speed %v: last token after %.4f ms, want %.4f", speed, got, want)
			}
		})
	}
}

// A prefill stops the decoding of the others for its length, and from then on
// all take the steps of the larger batch.
func TestContinuousBatchingIsExact(t *testing.T) {
	inBubble(t, testScheduler(t), 1, func(t *testing.T, b *batcher) {
		p, start := testProfile(t), time.Now()
		first := submit(t, b, 500, 4)
		<-first.notify // it has one token, the first decode step is under way
		second := submit(t, b, 300, 3)
		third := submit(t, b, 200, 2)
		at := p.PrefillMs(500) + p.DecodeMs(1, 501) // first has 2
		at += p.PrefillMs(300 + 200)                // second and third have 1
		at += p.DecodeMs(3, (502+301+201)/3)        // 3, 2, 2
		endsAt(t, "third", third, start, at)
		at += p.DecodeMs(2, (503+302)/2) // 4, 3
		endsAt(t, "first", first, start, at)
		endsAt(t, "second", second, start, at)
		if _, _, kv := b.load(); kv != 0 {
			t.Errorf("cache use %v after the end", kv)
		}
	})
}

func TestPrefillBudget(t *testing.T) {
	sched := testScheduler(t)
	inBubble(t, sched, 1, func(t *testing.T, b *batcher) {
		p, start := testProfile(t), time.Now()
		long := submit(t, b, 4000, 1) // above the budget: alone
		a := submit(t, b, 1500, 1)
		c := submit(t, b, 600, 1) // does not fit beside a
		at := p.PrefillMs(4000)
		endsAt(t, "long", long, start, at)
		at += p.PrefillMs(1500)
		endsAt(t, "a", a, start, at)
		at += p.PrefillMs(600)
		endsAt(t, "c", c, start, at)
	})
}

func TestCacheBoundsTheBatch(t *testing.T) {
	sched := testScheduler(t)
	sched.kvLimit = 1000
	inBubble(t, sched, 1, func(t *testing.T, b *batcher) {
		a := submit(t, b, 400, 100)
		c := submit(t, b, 400, 101) // 501: does not fit beside 500
		<-a.notify
		if running, waiting, kv := b.load(); running != 1 || waiting != 1 || kv != 0.5 {
			t.Errorf("%d run, %d wait, cache %v", running, waiting, kv)
		}
		<-a.finished
		<-c.notify
		<-c.finished
	})
}

func TestFullQueueRefuses(t *testing.T) {
	inBubble(t, testScheduler(t), 1, func(t *testing.T, b *batcher) {
		var all []*sequence
		all = append(all, submit(t, b, 10, 50))
		synctest.Wait() // it is in its prefill, so the next ones wait
		for range 3 {
			all = append(all, submit(t, b, 10, 50))
		}
		if err := b.submit(newSequence(10, 1, 1)); !errors.Is(err, errQueueFull) {
			t.Fatalf("the fifth got %v", err)
		}
		for _, s := range all {
			<-s.finished
		}
		if b.stats.cut.Load()+b.stats.ended.Load() != 4 || b.stats.generationTokens.Load() != 200 {
			t.Errorf("%d ended, %d tokens", b.stats.ended.Load(), b.stats.generationTokens.Load())
		}
	})
}

// A sequence that is cancelled in any place leaves it at once.
func TestCancelFreesAtOnce(t *testing.T) {
	inBubble(t, testScheduler(t), 1, func(t *testing.T, b *batcher) {
		filling := submit(t, b, 100, 50)
		synctest.Wait()
		waiting := submit(t, b, 100, 50)
		b.cancel(waiting)
		b.cancel(filling)
		if running, queued, kv := b.load(); running != 0 || queued != 0 || kv != 0 {
			t.Errorf("%d run, %d wait, cache %v", running, queued, kv)
		}
		// The prefill of nobody ends and changes nothing.
		run := submit(t, b, 100, 50)
		<-run.notify
		b.cancel(run)
		b.cancel(run)
		if running, _, kv := b.load(); running != 0 || kv != 0 {
			t.Errorf("%d run, cache %v", running, kv)
		}
		if n := b.stats.aborted.Load(); n != 3 {
			t.Errorf("%d aborted", n)
		}
		last := submit(t, b, 100, 2)
		<-last.finished
		if b.sched.contextSum != 0 || b.sched.kvUsed != 0 {
			t.Errorf("left over: context %d, cache %d", b.sched.contextSum, b.sched.kvUsed)
		}
	})
}

func TestDrainFinishesWhatWasAccepted(t *testing.T) {
	inBubble(t, testScheduler(t), 1, func(t *testing.T, b *batcher) {
		s := submit(t, b, 100, 20)
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := b.drain(short, errAsleep); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("impatient drain: %v", err)
		}
		if err := b.submit(newSequence(1, 1, 1)); !errors.Is(err, errAsleep) {
			t.Fatalf("submit while draining: %v", err)
		}
		if err := b.drain(t.Context(), errAsleep); err != nil {
			t.Fatal(err)
		}
		if s.produced.Load() != 20 {
			t.Errorf("drained at token %d", s.produced.Load())
		}
		if err := b.drain(t.Context(), errAsleep); err != nil {
			t.Fatal(err)
		}
		b.open()
		<-submit(t, b, 1, 1).finished
	})
}

func TestEndOfLifeStopsSequences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := newBatcher(testScheduler(t), 1, new(stats))
		b.open()
		go b.run(ctx)
		s := submit(t, b, 10, 100)
		cancel()
		<-s.finished
		if !s.stopped.Load() {
			t.Error("cut sequence looks complete")
		}
		if err := b.submit(newSequence(1, 1, 1)); !errors.Is(err, errStopped) {
			t.Error(err)
		}
		b.cancel(s)
	})
}

// A loop that was a little late catches up; one that was stopped for a minute
// begins anew.
func TestLatenessIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatcher(testScheduler(t), 1, new(stats))
		b.open()
		p, now := testProfile(t), time.Now()
		submit(t, b, 512, 10)
		prefill := time.Duration(p.PrefillMs(512) * 1e6)
		end, _ := b.begin(now.Add(-100 * time.Millisecond))
		if got := end.Sub(now); got != prefill-100*time.Millisecond {
			t.Errorf("a late iteration ends after %v", got)
		}
		b.end()
		end, _ = b.begin(now.Add(-time.Minute))
		if got := end.Sub(now); got <= 0 || b.stats.lagged.Load() != 1 {
			t.Errorf("after a minute an iteration ends after %v, lagged %d", got, b.stats.lagged.Load())
		}
	})
}

// Whatever comes and goes, the limits hold and nothing is left at the end.
func TestSchedulerLimitsHold(t *testing.T) {
	d := testScheduler(t)
	var live []*sequence
	for i := range uint64(20_000) {
		switch x := mix(i); x % 4 {
		case 0:
			s := newSequence(1+int(x>>8%3000), int(x>>20%40), 1+int(x>>40%3))
			if d.add(s) == nil {
				live = append(live, s)
			}
		case 1:
			if len(live) > 0 {
				d.remove(live[x>>8%uint64(len(live))])
			}
		default:
			if d.step == nothing {
				d.plan()
			}
			if d.step != nothing {
				d.complete(func(*sequence) {})
			}
		}
		kv, ctx := 0, 0
		for _, s := range d.filling {
			kv += s.kvTokens()
		}
		for _, s := range d.running {
			kv += s.kvTokens()
			ctx += s.promptTokens + int(s.produced.Load())
		}
		if kv != d.kvUsed || ctx != d.contextSum || kv > d.kvLimit || len(d.running)+len(d.filling) > d.maxBatch || len(d.waiting) > d.maxWaiting {
			t.Fatalf("step %d: cache %d/%d, context %d/%d, %d run, %d wait", i, d.kvUsed, kv, d.contextSum, ctx, len(d.running), len(d.waiting))
		}
	}
}
