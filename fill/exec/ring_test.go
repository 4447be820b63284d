package exec

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sluice/nodes/registry"
)

func named(from, to int) []registry.Event {
	var out []registry.Event
	for i := from; i <= to; i++ {
		out = append(out, registry.Event{Object: fmt.Sprint(i)})
	}
	return out
}

func TestRing(t *testing.T) {
	r := newRing(0)
	if got, next := r.since(0, 10); got != nil || next != 0 {
		t.Errorf("empty: %v %d", got, next)
	}
	r.add(nil)
	r.add(named(1, 5))
	for _, c := range []struct {
		since       int64
		limit       int
		first, last int64
	}{{0, 10, 1, 5}, {0, 2, 1, 2}, {2, 2, 3, 4}, {4, 10, 5, 5}, {-3, 10, 1, 5}} {
		got, next := r.since(c.since, c.limit)
		if len(got) == 0 || got[0].Seq != c.first || next != c.last || got[0].Object != fmt.Sprint(c.first) {
			t.Errorf("since %d: %v, next %d", c.since, got, next)
		}
	}
	if got, next := r.since(5, 10); got != nil || next != 5 {
		t.Errorf("nothing new: %v %d", got, next)
	}
	if got, next := r.since(99, 10); got != nil || next != 5 { // of a server before
		t.Errorf("a place that was never given: %v %d", got, next)
	}
	r.add(named(6, ringEvents+7))
	got, next := r.since(0, ringEvents*2)
	if len(got) != ringEvents || got[0].Seq != 8 || got[0].Object != "8" || next != ringEvents+7 {
		t.Errorf("full: %d events from %d, next %d", len(got), got[0].Seq, next)
	}
}

func TestRingWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(0)
		r.add(named(1, 1))
		r.wait(t.Context(), 0) // there is one already
		ended := false
		go func() {
			r.wait(context.Background(), 2)
			ended = true
		}()
		synctest.Wait()
		r.add(named(2, 2))
		synctest.Wait()
		if ended {
			t.Error("event 2 is not after 2")
		}
		r.add(named(3, 3))
		synctest.Wait()
		if !ended {
			t.Error("event 3 is")
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		r.wait(ctx, 3) // ends with its context
	})
}

// A reader from before a restart goes on: the new places are above its own.
func TestRingGrowsOverRestarts(t *testing.T) {
	r := newRing(1_000_000)
	r.add([]registry.Event{{Kind: "job", Object: "a"}})
	got, next := r.since(17, 10)
	if len(got) != 1 || got[0].Seq != 1_000_001 || next != 1_000_001 {
		t.Errorf("%+v, next %d", got, next)
	}
}
