package exec

import (
	"context"
	"sync"

	"sluice/nodes/registry"
)

// ringEvents is how many events are kept for readers; older ones are in the
// history file only.
const ringEvents = 8192

// Recorded is an event with its place in the history. Places grow also over
// restarts: a reader that goes on from the place it had misses nothing that is
// still kept, and may hear the latest events from before the restart again.
type Recorded struct {
	Seq int64 `json:"seq"`
	registry.Event
}

// ring keeps the latest events. Safe for concurrent use.
type ring struct {
	mu   sync.Mutex
	base int64         // the place before the first
	buf  []Recorded    // guarded by mu; buf[(seq-1)%ringEvents]
	next int64         // guarded by mu; the last seq given
	more chan struct{} // guarded by mu; closed when an event is added
}

// newRing gives places from base+1 on. With the unix milliseconds of the start
// as base they grow over restarts, for fewer events than milliseconds pass.
func newRing(base int64) *ring {
	return &ring{base: base, next: base, buf: make([]Recorded, ringEvents), more: make(chan struct{})}
}

func (r *ring) add(events []registry.Event) {
	if len(events) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		r.next++
		r.buf[(r.next-1)%ringEvents] = Recorded{Seq: r.next, Event: e}
	}
	close(r.more)
	r.more = make(chan struct{})
}

func (r *ring) since(seq int64, limit int) ([]Recorded, int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	from := max(seq, r.next-ringEvents, r.base)
	var out []Recorded
	for s := from + 1; s <= r.next && len(out) < limit; s++ {
		out = append(out, r.buf[(s-1)%ringEvents])
	}
	if len(out) == 0 {
		return nil, r.next
	}
	return out, out[len(out)-1].Seq
}

func (r *ring) wait(ctx context.Context, seq int64) {
	for {
		r.mu.Lock()
		have, more := r.next > seq, r.more
		r.mu.Unlock()
		if have {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-more:
		}
	}
}
