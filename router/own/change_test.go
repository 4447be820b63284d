package own

import (
	"fmt"
	"sync"
	"testing"

	"sluice/router"
	"sluice/slo"
)

// TestAllReplicasAreExchanged swaps tables that have no replica in common under requests: none finds the model empty.
func TestAllReplicasAreExchanged(t *testing.T) {
	cfg := Default()
	cfg.EmptyWaitMs = 0 // such a moment would show
	r := New(cfg)
	defer r.Close()
	set := func(i int) {
		table, err := router.NewTable([]router.Model{{Name: "m", Replicas: []router.Replica{
			{ID: fmt.Sprintf("a%d", i), Addr: "a:1", MaxInFlight: 8}, {ID: fmt.Sprintf("b%d", i), Addr: "b:1", MaxInFlight: 8},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		r.SetTable(table)
	}
	set(0)
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ticket, err := r.Acquire(&router.Request{Model: "m"}, nil)
				if err != nil {
					t.Error(err)
					return
				}
				ticket.Release(Result{Outcome: slo.OK})
			}
		})
	}
	for i := range 2000 {
		set(i)
	}
	close(stop)
	all.Wait()
}
