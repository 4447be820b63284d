package gossip

import (
	"sync"
)

// Kind is what happened to a node.
type Kind uint8

const (
	// Join: the node is there (again).
	Join Kind = iota + 1
	// Leave: it left or was declared dead.
	Leave
	// Update: its description or address changed.
	Update
	// Conflict: another node speaks under a name that is taken; Member is the
	// one that was refused. If its ID is this node's own, this node or its
	// clone is not accepted by the others.
	Conflict
	// Resync: events were dropped; read Members.
	Resync
)

func (k Kind) String() string {
	switch k {
	case Join:
		return "join"
	case Leave:
		return "leave"
	case Update:
		return "update"
	case Conflict:
		return "conflict"
	case Resync:
		return "resync"
	}
	return "unknown"
}

// Event is the latest change of one node.
type Event struct {
	Kind   Kind
	Member Member // zero for Resync
}

// backlog holds at most one event a node (and one conflict a node), oldest
// first. memberlist calls put under its own lock, so put never waits.
type backlog struct {
	mu      sync.Mutex
	order   []slot         // guarded by mu; oldest first; each slot is in latest
	latest  map[slot]Event // guarded by mu; invariant: len(latest) == len(order)
	resync  bool           // guarded by mu; events were dropped since the last Resync
	changed chan struct{}  // capacity 1: something was put
}

// slot is where an event replaces an older one.
type slot struct {
	id       string
	conflict bool
}

func newBacklog() *backlog {
	return &backlog{latest: map[slot]Event{}, changed: make(chan struct{}, 1)}
}

func (b *backlog) put(e Event) {
	b.mu.Lock()
	s := slot{e.Member.ID, e.Kind == Conflict}
	if _, have := b.latest[s]; !have {
		if len(b.order) >= MaxPending {
			clear(b.latest)
			b.order, b.resync = b.order[:0], true
		}
		b.order = append(b.order, s)
	}
	b.latest[s] = e
	b.mu.Unlock()
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// head is the event to deliver next, without taking it.
func (b *backlog) head() (Event, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.resync {
		return Event{Kind: Resync}, true
	}
	if len(b.order) == 0 {
		return Event{}, false
	}
	return b.latest[b.order[0]], true
}

// took removes e after its delivery, unless a newer one took its place.
func (b *backlog) took(e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Kind == Resync {
		b.resync = false
		return
	}
	if len(b.order) == 0 {
		return
	}
	s := b.order[0]
	if b.latest[s] == e {
		delete(b.latest, s)
		b.order = b.order[1:]
	}
}

// deliver is the one goroutine that sends on out, until stop closes. A newer
// event of the same node replaces the one on offer.
func (b *backlog) deliver(out chan<- Event, stop <-chan struct{}) {
	defer close(out)
	for {
		e, ok := b.head()
		offer := out
		if !ok {
			offer = nil
		}
		select {
		case offer <- e:
			b.took(e)
		case <-b.changed:
		case <-stop:
			return
		}
	}
}
