package gossip

import (
	"fmt"
	"testing"
	"testing/synctest"
)

func TestEventsKeepTheLatestOfEachNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBacklog()
		out, stop := make(chan Event), make(chan struct{})
		go b.deliver(out, stop)
		put := func(k Kind, id, addr string) { b.put(Event{k, Member{ID: id, Addr: addr}}) }
		put(Join, "a", "1")
		put(Join, "b", "1")
		synctest.Wait() // nobody reads: a's join is on offer, nothing blocks
		put(Leave, "a", "1")
		put(Join, "a", "2")
		put(Conflict, "a", "3") // a conflict hides no state
		synctest.Wait()
		got := ""
		for range 3 {
			e := <-out
			got += fmt.Sprintf("%v %s@%s, ", e.Kind, e.Member.ID, e.Member.Addr)
			synctest.Wait()
		}
		if want := "join a@2, join b@1, conflict a@3, "; got != want {
			t.Fatalf("got %s", got)
		}
		select {
		case e := <-out:
			t.Fatalf("one more: %v", e)
		default:
		}
		close(stop)
		if _, more := <-out; more {
			t.Fatal("not closed")
		}
	})
}

func TestEventsBeyondTheLimitBecomeOneResync(t *testing.T) {
	b := newBacklog()
	for i := range MaxPending + 3 {
		b.put(Event{Join, Member{ID: fmt.Sprint(i)}})
	}
	e, ok := b.head()
	if !ok || e.Kind != Resync {
		t.Fatalf("%v, %v", e, ok)
	}
	b.took(e)
	for i := range 3 {
		e, ok := b.head()
		if !ok || e.Member.ID != fmt.Sprint(MaxPending+i) {
			t.Fatalf("%d: %v, %v", i, e, ok)
		}
		b.took(e)
	}
	if e, ok := b.head(); ok {
		t.Fatalf("one more: %v", e)
	}
}
