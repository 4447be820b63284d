package own

import (
	"testing"

	"sluice/router"
	"sluice/slo"
)

// The ticket is the only allocation of the fast path, and with the caller's own there is none.
func TestFastPathAllocatesOneTicket(t *testing.T) {
	if raceEnabled {
		t.Skip("race detector allocates")
	}
	r := start(t, Default(), replicas(1000, 64))
	defer r.Close()
	req := router.Request{Model: "chat", PromptTokens: 500, MaxTokens: 100, Prefix: []uint64{1, 2, 3, 4}}
	acquire := func() {
		ticket, err := r.Acquire(&req, nil)
		if err != nil {
			t.Fatal(err)
		}
		ticket.FirstByte()
		ticket.Release(Result{Outcome: slo.OK})
	}
	acquire()
	if n := testing.AllocsPerRun(500, acquire); n > 1.1 { // the prefix index may grow now and then
		t.Errorf("%v allocations, want 1", n)
	}
	var own Ticket
	if n := testing.AllocsPerRun(500, func() {
		if err := r.AcquireInto(&own, &req, nil); err != nil {
			t.Fatal(err)
		}
		own.FirstByte()
		own.Release(Result{Outcome: slo.OK})
	}); n > 0.1 {
		t.Errorf("%v allocations with a ticket of the caller's, want 0", n)
	}
}

func BenchmarkAcquireRelease1000(b *testing.B) {
	r := start(b, Default(), replicas(1000, 64))
	defer r.Close()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		req := router.Request{Model: "chat", PromptTokens: 500, MaxTokens: 100}
		for pb.Next() {
			ticket, err := r.Acquire(&req, nil)
			if err != nil {
				b.Fatal(err)
			}
			ticket.Release(Result{Outcome: slo.OK})
		}
	})
}
