package router

import "sluice/slo"

// Item is one waiting request. Its owner embeds or refers to it; the queue owns its place while it is inside.
type Item struct {
	Class      slo.Class
	Tenant     string
	Weight     float64 // of the tenant; 0 is read as 1
	WorkMs     float64
	DeadlineMs int64 // fleet time; 0: none
	EnqueuedMs int64
	Ref        any // the owner's

	seq    uint64 // order of arrival, kept when it is put back
	at     int    // place in the tenant's heap
	queued bool
}

// before orders within one tenant: deadline, then arrival.
func (a *Item) before(b *Item) bool {
	if a.DeadlineMs != b.DeadlineMs && (a.DeadlineMs > 0 || b.DeadlineMs > 0) {
		return a.DeadlineMs > 0 && (b.DeadlineMs == 0 || a.DeadlineMs < b.DeadlineMs)
	}
	return a.seq < b.seq
}

// tenantLine holds the waiting requests of one tenant in one class.
type tenantLine struct {
	tenant  string
	heap    []*Item
	virtual float64 // work served ÷ weight, as virtual time
}

// classLine holds one class. Start-time fair queueing (Goyal, Vin, Cheng 1996): the tenant with the least virtual time
// is next; one that comes back from idleness starts at the present, so idling saves up nothing.
type classLine struct {
	tenants []*tenantLine // with someone waiting
	now     float64       // virtual time of the last one served
	idle    map[string]float64
	n       int
	workMs  float64
}

// maxIdleTenants whose virtual time is remembered; beyond it all are forgotten, which costs nobody more than one turn.
const maxIdleTenants = 4096

// Queue orders waiting requests: class first, then fair share of work between tenants, then deadline, then arrival.
// It is bounded; when full a newcomer takes the place of the last of a lower class, or is refused itself.
// Make it with NewQueue. Not safe for concurrent use.
type Queue struct {
	limit   int
	n       int
	seq     uint64
	classes [slo.NumClasses]classLine
}

// NewQueue returns an empty queue for at most limit requests (at least 1).
func NewQueue(limit int) *Queue {
	q := &Queue{limit: max(1, limit)}
	for i := range q.classes {
		q.classes[i].idle = make(map[string]float64)
	}
	return q
}

// Contains reports whether the item waits here now.
func (q *Queue) Contains(it *Item) bool { return it.queued }

// Len is how many wait.
func (q *Queue) Len() int { return q.n }

// LenClass is how many of one class wait.
func (q *Queue) LenClass(c slo.Class) int { return q.classes[c].n }

// AheadOf returns how many requests, and how much work, a newcomer of the class would find before it at worst.
func (q *Queue) AheadOf(c slo.Class) (requests int, workMs float64) {
	for i := slo.Class(0); i <= c; i++ {
		requests += q.classes[i].n
		workMs += q.classes[i].workMs
	}
	return requests, workMs
}

// Push puts it in. When the queue is full it either displaces a request of a lower class, which is returned, out of
// the queue, for its owner to refuse; or ok is false and it stays outside.
func (q *Queue) Push(it *Item) (displaced *Item, ok bool) {
	if !it.Class.Valid() {
		it.Class = slo.Batch
	}
	if q.n >= q.limit {
		if displaced = q.lastBelow(it.Class); displaced == nil {
			return nil, false
		}
		q.Remove(displaced)
	}
	q.seq++
	it.seq = q.seq
	q.insert(it)
	return displaced, true
}

// PutBack returns an item that was removed, to the place it had. It may exceed the limit by it.
func (q *Queue) PutBack(it *Item) { q.insert(it) }

func (q *Queue) insert(it *Item) {
	line := &q.classes[it.Class]
	t := line.tenant(it.Tenant)
	it.at = len(t.heap)
	t.heap = append(t.heap, it)
	t.up(it.at)
	it.queued = true
	line.n++
	line.workMs += it.WorkMs
	q.n++
}

func (c *classLine) tenant(name string) *tenantLine {
	for _, t := range c.tenants {
		if t.tenant == name {
			return t
		}
	}
	t := &tenantLine{tenant: name, virtual: max(c.now, c.idle[name])}
	delete(c.idle, name)
	c.tenants = append(c.tenants, t)
	return t
}

// lastBelow is the newest request of the lowest class below c; nil if there is none.
func (q *Queue) lastBelow(c slo.Class) *Item {
	for i := slo.NumClasses - 1; i > int(c); i-- {
		var last *Item
		for _, t := range q.classes[i].tenants {
			for _, it := range t.heap {
				if last == nil || it.seq > last.seq {
					last = it
				}
			}
		}
		if last != nil {
			return last
		}
	}
	return nil
}

// Head is who is next; nil when nobody waits.
func (q *Queue) Head() *Item {
	for i := range q.classes {
		var next *tenantLine
		for _, t := range q.classes[i].tenants {
			if next == nil || t.virtual < next.virtual ||
				(t.virtual == next.virtual && t.heap[0].seq < next.heap[0].seq) {
				next = t
			}
		}
		if next != nil {
			return next.heap[0]
		}
	}
	return nil
}

// Take removes a request that is going to be served, and charges its tenant's share.
func (q *Queue) Take(it *Item) {
	if !it.queued {
		return
	}
	line := &q.classes[it.Class]
	t := line.tenant(it.Tenant)
	weight := it.Weight
	if weight <= 0 {
		weight = 1
	}
	line.now = max(line.now, t.virtual)
	t.virtual += it.WorkMs / weight
	q.Remove(it)
}

// Remove takes a request out that is not served. Removing one that is not inside does nothing.
func (q *Queue) Remove(it *Item) {
	if !it.queued {
		return
	}
	line := &q.classes[it.Class]
	t := line.tenant(it.Tenant)
	last := len(t.heap) - 1
	at := it.at
	t.heap[at] = t.heap[last]
	t.heap[at].at = at
	t.heap[last] = nil
	t.heap = t.heap[:last]
	if at < last {
		t.down(at)
		t.up(at)
	}
	it.queued = false
	line.n--
	q.n--
	if line.workMs -= it.WorkMs; line.n == 0 {
		line.workMs = 0 // no rounding is carried on
	}
	if last == 0 {
		line.leave(t)
	}
}

// leave drops a tenant with nobody waiting and remembers how far it was served.
func (c *classLine) leave(t *tenantLine) {
	for i := range c.tenants {
		if c.tenants[i] == t {
			c.tenants[i] = c.tenants[len(c.tenants)-1]
			c.tenants = c.tenants[:len(c.tenants)-1]
			break
		}
	}
	if len(c.idle) >= maxIdleTenants {
		clear(c.idle)
	}
	if t.virtual > c.now {
		c.idle[t.tenant] = t.virtual
	}
}

// Expire calls late for every request whose deadline is at or before nowMs, after taking it out, and returns the
// earliest deadline left, 0 when there is none. It looks at everyone.
func (q *Queue) Expire(nowMs int64, late func(*Item)) (nextMs int64) {
	var gone []*Item
	for i := range q.classes {
		for _, t := range q.classes[i].tenants {
			for _, it := range t.heap {
				switch {
				case it.DeadlineMs == 0:
				case it.DeadlineMs <= nowMs:
					gone = append(gone, it)
				case nextMs == 0 || it.DeadlineMs < nextMs:
					nextMs = it.DeadlineMs
				}
			}
		}
	}
	for _, it := range gone {
		q.Remove(it)
		late(it)
	}
	return nextMs
}

// OldestMs is the fleet time since which the longest waiting one waits; 0 when nobody does. It looks at everyone.
func (q *Queue) OldestMs() int64 {
	var oldest int64
	for i := range q.classes {
		for _, t := range q.classes[i].tenants {
			for _, it := range t.heap {
				if oldest == 0 || it.EnqueuedMs < oldest {
					oldest = it.EnqueuedMs
				}
			}
		}
	}
	return oldest
}

// Each calls visit for everyone, in no order. visit must not change the queue.
func (q *Queue) Each(visit func(*Item)) {
	for i := range q.classes {
		for _, t := range q.classes[i].tenants {
			for _, it := range t.heap {
				visit(it)
			}
		}
	}
}

func (t *tenantLine) swap(i, j int) {
	t.heap[i], t.heap[j] = t.heap[j], t.heap[i]
	t.heap[i].at, t.heap[j].at = i, j
}

func (t *tenantLine) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !t.heap[i].before(t.heap[parent]) {
			return
		}
		t.swap(i, parent)
		i = parent
	}
}

func (t *tenantLine) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(t.heap); child++ {
			if t.heap[child].before(t.heap[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		t.swap(i, least)
		i = least
	}
}
