package own

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"sluice/router"
	"sluice/router/prefix"
	"sluice/slo"
)

// maxTries of one round of picking: each loses a race for the last slot of a replica before the next.
const maxTries = 4

// maxLookups of a model whose line ends while a request enters it (a table change each time).
const maxLookups = 3

// Router is the live router. Make it with New; safe for concurrent use.
type Router struct {
	cfg    Config
	live   atomic.Pointer[live]
	closed atomic.Bool
	keeper *keeper

	index struct {
		mu sync.Mutex
		x  *prefix.Index // guarded by mu
	}

	mu       sync.Mutex          // SetTable and Close, one at a time
	counters map[string]*counter // guarded by mu; by replica id: of the table, and those that still drain
	lines    map[string]*line    // guarded by mu; by model name
	lastNum  prefix.Replica      // guarded by mu
}

// New returns a router without models. A Config that does not Validate is a programming error and panics.
func New(cfg Config) *Router {
	if err := cfg.Validate(); err != nil {
		panic(err)
	}
	if cfg.NowMs == nil {
		cfg.NowMs = processClock()
	}
	r := &Router{cfg: cfg, counters: make(map[string]*counter), lines: make(map[string]*line)}
	r.index.x = prefix.New(cfg.PrefixEntries, cfg.PrefixPerReplica)
	r.live.Store(&live{table: &router.Table{}})
	r.keeper = newKeeper(r)
	return r
}

// SetTable takes a new table. Counters go on by replica id, lines by model name; requests on replicas that left end as
// they would have. When it returns no request is sent any more to a replica that is not in the table.
func (r *Router) SetTable(t *router.Table) {
	if t == nil {
		t = &router.Table{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed.Load() {
		return
	}
	next := &live{
		table: t, counters: make([]*counter, t.Slots()),
		lines: make(map[string]*line), slots: make(map[prefix.Replica]int),
	}
	kept := make(map[string]bool, t.Slots())
	for slot := range next.counters {
		id := t.Replica(slot).ID
		kept[id] = true
		c := r.counterLocked(id)
		if !r.keeper.leases(t.Replica(slot)) {
			c.leaseMs.Store(always) // before anybody sees the table: all new replicas must not look like none
		}
		next.counters[slot] = c
		next.slots[c.num] = slot
	}
	for i := range t.Models() {
		name := t.Models()[i].Name
		if r.lines[name] == nil {
			r.lines[name] = newLine(r, name)
		}
		next.lines[name] = r.lines[name]
	}
	r.live.Store(next)
	r.leaveLocked(kept)
	r.keeper.update(next)
	for name, l := range r.lines {
		if next.lines[name] == nil {
			delete(r.lines, name)
			close(l.stop)
			<-l.done
			continue
		}
		l.poke()
	}
}

func (r *Router) counterLocked(id string) *counter {
	c := r.counters[id]
	if c == nil {
		r.lastNum++
		c = &counter{num: r.lastNum}
		r.counters[id] = c
	}
	return c
}

// leaveLocked closes the counters of replicas that are not kept, and drops those that are empty.
func (r *Router) leaveLocked(kept map[string]bool) {
	for id, c := range r.counters {
		if kept[id] {
			continue
		}
		if c.leaseMs.Swap(0) != 0 {
			r.index.mu.Lock()
			r.index.x.RemoveReplica(c.num)
			r.index.mu.Unlock()
		}
		if c.inFlight.Load() == 0 && r.keeper.idle(c) {
			delete(r.counters, id)
		}
	}
}

// Acquire chooses a replica for the request and charges it, waits in the model's queue until there is room, or refuses.
// gone ends the wait when the client has left; nil waits on. The error is router.ErrUnknownModel, a *router.Refusal,
// ErrGone or ErrClosed. The request must not change until Acquire returned; it is not kept after.
func (r *Router) Acquire(req *router.Request, gone <-chan struct{}) (*Ticket, error) {
	t := new(Ticket)
	if err := r.AcquireInto(t, req, gone); err != nil {
		return nil, err
	}
	return t, nil
}

// AcquireInto is Acquire with a ticket of the caller's, which allocates nothing on the fast path. The ticket must be new
// or released, and of the router's concern alone until AcquireInto returned. After an error it holds no charge.
func (r *Router) AcquireInto(t *Ticket, req *router.Request, gone <-chan struct{}) error {
	t.begin(r)
	for range maxLookups {
		lv := r.live.Load()
		m, ok := lv.table.Lookup(req.Model)
		if !ok {
			break
		}
		l := lv.lines[m.Name]
		if l.queued.Load() == 0 && r.try(lv, l, t, req) == router.Picked {
			return nil
		}
		w := &waiter{req: req, ticket: t, result: make(chan error, 1)}
		w.item = router.Item{
			Class: req.Class, Tenant: req.Tenant, Weight: req.TenantWeight, WorkMs: req.Work(), Ref: w,
		}
		if err, retry := l.wait(w, gone); retry {
			continue
		} else if err != nil {
			t.drop()
			return err
		}
		return nil
	}
	t.drop()
	if r.closed.Load() {
		return ErrClosed
	}
	return router.ErrUnknownModel
}

// try picks and charges without waiting, and fills in the ticket.
func (r *Router) try(lv *live, l *line, t *Ticket, req *router.Request) router.Verdict {
	m, ok := lv.table.Lookup(l.model)
	if !ok {
		return router.None
	}
	verdict := router.Full
	t.choice = choice{live: lv, line: l, nowMs: r.cfg.NowMs(), reserve: r.reserve(req.Class)}
	if len(m.Replicas) > 0 {
		t.choice.first = m.Replicas[0].Slot
	}
	var room [prefix.MaxMatches]router.Match
	matches := r.match(lv, req, &room)
	for range maxTries {
		var slot int
		slot, verdict = router.Pick(m, req, &t.choice, matches, rand.Uint64())
		if verdict != router.Picked {
			break
		}
		c, replica := lv.counters[slot], lv.table.Replica(slot)
		if workUs := int64(req.Work() * 1000); c.charge(t.choice.limit(replica), workUs, t.choice.nowMs) {
			l.inFlight.Add(1)
			t.replica, t.counter, t.workUs, t.chargeMs = replica, c, workUs, t.choice.nowMs
			r.insert(c, req)
			return router.Picked
		}
		if c.leaseMs.Load() == 0 {
			r.keeper.poke() // the undone charge may have been seen as one in flight
		}
		verdict = router.Full
	}
	return verdict
}

// reserve is the share of slots that the class leaves free for more urgent ones.
func (r *Router) reserve(class slo.Class) float64 {
	switch class {
	case slo.Interactive:
		return 0
	case slo.Standard:
		return r.cfg.Reserve / 2
	}
	return r.cfg.Reserve
}

// match asks the prefix index, if the request has a prefix.
func (r *Router) match(lv *live, req *router.Request, room *[prefix.MaxMatches]router.Match) []router.Match {
	if len(req.Prefix) == 0 {
		return nil
	}
	var found [prefix.MaxMatches]prefix.Match
	r.index.mu.Lock()
	got := r.index.x.Match(found[:0], req.Prefix)
	r.index.mu.Unlock()
	n := 0
	for _, f := range got {
		if slot, ok := lv.slots[f.Replica]; ok {
			room[n] = router.Match{Slot: slot, Blocks: f.Blocks}
			n++
		}
	}
	return room[:n]
}

func (r *Router) insert(c *counter, req *router.Request) {
	if len(req.Prefix) == 0 {
		return
	}
	r.index.mu.Lock()
	r.index.x.Insert(c.num, req.Prefix)
	r.index.mu.Unlock()
}

// Close ends all goroutines, refuses who waits with ErrClosed, and returns leases that have nothing in flight. Tickets
// may still be released after it.
func (r *Router) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed.Swap(true) {
		return
	}
	r.live.Store(&live{table: &router.Table{}})
	for name, l := range r.lines {
		delete(r.lines, name)
		close(l.stop)
		<-l.done
	}
	for _, c := range r.counters {
		c.leaseMs.Store(0)
	}
	r.keeper.close()
}
