package fill

import (
	"cmp"
	"math/bits"
	"slices"

	"sluice/nodes/registry"
)

// key orders ways to place a replica: first whether it is late, then whose
// gang it stops, then the price.
type key struct {
	late     bool
	tier     int // 1: takes a tenant below its guarantee
	priority int
	cost     float64 // GPU-milliseconds
}

func (k key) compare(o key) int {
	if k.late != o.late {
		if k.late {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(k.tier, o.tier), cmp.Compare(k.priority, o.priority), cmp.Compare(k.cost, o.cost))
}

// option is one way to place a replica.
type option struct {
	key  key
	gpus []int32
	wake *registry.Replica
	// beginCost is the part of the price that is the replica's own: its start
	// or wake, and the loose ends it leaves.
	beginCost float64
}

// impossible is a price that nobody pays.
const impossible = 1e17

// chooser searches placements for the replicas of one model. What it chooses
// is marked on the floor and can be taken back.
type chooser struct {
	ps      *pass
	n       *need
	burstMs int64
	bytes   int64
	takes   []option
	banned  []bool // by job index: not to be a victim
	woken   map[string]bool
	// over lets a replica take GPUs on which memory of sleepers or yielded
	// gangs is in the way: they are ended. Tried only when nothing else is left.
	over bool
	// wakeOnly holds starts back after failures.
	wakeOnly bool

	// cached[i] is the key of the i-th span, priced as of the last change of
	// anybody in it; what a choice touches is priced anew.
	cached []spanKey

	// scratch of one span
	avail  []int32
	jobs   []int32
	cand   []int32
	counts []int32
}

type spanKey struct {
	key    key
	ok     bool
	priced bool
}

func (ps *pass) newChooser(n *need) *chooser {
	return &chooser{ps: ps, n: n, burstMs: n.memo.burst.valueMs(ps.cfg.BurstMs), bytes: n.model.Spec.ActiveBytes,
		banned: make([]bool, len(ps.f.jobs)), cached: make([]spanKey, len(ps.f.islands)), woken: map[string]bool{}}
}

// best finds the cheapest way to place one more replica.
func (c *chooser) best(freeOnly bool) (option, bool) {
	var best option
	found := false
	better := func(k key) bool { return !found || k.compare(best.key) < 0 }
	for _, r := range c.n.asleep {
		if c.woken[r.ID] || c.ps.moved[r.ID] || r.Version < c.n.model.Version {
			continue
		}
		if o, ok := c.wake(r, freeOnly); ok && better(o.key) {
			best, found = o, true
		}
	}
	if c.wakeOnly {
		return best, found
	}
	at := -1
	var least key
	for i := range c.ps.f.islands {
		k, ok := c.priced(i, freeOnly)
		if ok && better(k) && (at < 0 || k.compare(least) < 0) {
			at, least = i, k
		}
	}
	if at >= 0 {
		best = option{}
		best.key, found = c.inSpan(c.ps.f.islands[at], freeOnly, &best)
	}
	if found || c.n.size == 1 {
		return best, found
	}
	// A replica's GPUs talk all the time: a node is searched only when no
	// island can hold them.
	for i := range c.ps.f.nodes {
		if k, ok := c.inSpan(c.ps.f.nodes[i].gpus, freeOnly, nil); ok && better(k) {
			best = option{}
			best.key, found = c.inSpan(c.ps.f.nodes[i].gpus, freeOnly, &best)
		}
	}
	return best, found
}

// priced is the key of an island, from the cache unless only free GPUs are asked for.
func (c *chooser) priced(island int, freeOnly bool) (key, bool) {
	if freeOnly {
		return c.inSpan(c.ps.f.islands[island], true, nil)
	}
	e := &c.cached[island]
	if !e.priced {
		e.key, e.ok = c.inSpan(c.ps.f.islands[island], false, nil)
		e.priced = true
	}
	return e.key, e.ok
}

// forget drops the cached keys of the islands of some GPUs.
func (c *chooser) forget(gpus []int32) {
	for _, i := range gpus {
		c.cached[c.ps.f.gpus[i].island].priced = false
	}
}

// ban forbids or allows a gang as a victim.
func (c *chooser) ban(job int32, banned bool) {
	c.banned[job] = banned
	c.forget(c.ps.f.jobs[job].gpus)
}

func (c *chooser) startMs() int64 { return c.n.memo.start.valueMs(c.ps.cfg.StartMs) }

// wake prices waking a sleeper: exactly its GPUs must come free.
func (c *chooser) wake(r *registry.Replica, freeOnly bool) (option, bool) {
	f := c.ps.f
	o := option{wake: r}
	c.jobs, c.counts = c.jobs[:0], c.counts[:0]
	readyMs := int64(0)
	for _, id := range r.GPUs {
		at, ok := f.byUUID[id]
		if !ok {
			return o, false
		}
		g := &f.gpus[at]
		others := g.residentBytes
		for i := range g.fact.Residents {
			if g.fact.Residents[i].Holder == r.ID {
				others -= g.fact.Residents[i].Bytes
			}
		}
		fits := g.fits(c.bytes, others, g.residents-1)
		switch {
		case !g.usable || g.claimed || g.reserved != "":
			return o, false
		case !g.active && fits:
		case g.comingFree() && fits:
			readyMs = max(readyMs, c.comingMs(g))
		case g.job >= 0 && !freeOnly && fits && c.mayTake(g.job):
			c.note(g.job)
		default:
			return o, false
		}
		o.gpus = append(o.gpus, at)
	}
	wakeMs := c.n.memo.wake.valueMs(c.ps.cfg.WakeMs)
	o.key = c.price(o.gpus, readyMs, wakeMs)
	o.beginCost = float64(wakeMs) * float64(len(o.gpus))
	return o, true
}

// comingMs is how long a GPU whose holder is on its way out may still be held:
// a replica ends the requests it has, which can take far longer than a gang
// takes to stop.
func (c *chooser) comingMs(g *floorGPU) int64 {
	r := c.ps.st.Replicas[g.fact.Active]
	if r == nil {
		return c.ps.fleet.stop.valueMs(c.ps.cfg.StopMs)
	}
	return max(0, c.ps.fleet.drain.valueMs(c.ps.cfg.DrainMs)-(c.ps.nowMs-r.SinceMs))
}

// mayTake tells whether a gang may be asked to give way.
func (c *chooser) mayTake(job int32) bool {
	j := &c.ps.f.jobs[job]
	switch j.job.Phase {
	case registry.JobRunning, registry.JobPreparing, registry.JobStarting:
		return !c.banned[job] && !j.touched && len(j.gpus) > 0
	}
	return false
}

// fits tells whether the replica's memory fits on g.
func (c *chooser) fits(g *floorGPU) bool {
	if g.fits(c.bytes, g.residentBytes, g.residents) {
		return true
	}
	return c.over && g.fits(c.bytes, 0, 0) && c.ps.mayClear(g)
}

// mayClear tells whether everything resident on g may be ended: sleepers, and
// gangs that yielded.
func (ps *pass) mayClear(g *floorGPU) bool {
	if g.lent >= 0 && (ps.f.jobs[g.lent].touched || ps.f.jobs[g.lent].job.Phase != registry.JobYielded) {
		return false
	}
	for i := range g.fact.Residents {
		r := ps.st.Replicas[g.fact.Residents[i].Holder]
		if r != nil && (r.Phase != registry.ReplicaAsleep || ps.moved[r.ID]) {
			return false
		}
		if r == nil && g.lent < 0 {
			return false // somebody whom no present job or replica owns
		}
	}
	return true
}

// note collects the distinct gangs of a set of GPUs.
func (c *chooser) note(job int32) {
	if !slices.Contains(c.jobs, job) {
		c.jobs = append(c.jobs, job)
	}
}

// price marks gpus as needed, asks the ladder of every gang in c.jobs, and
// takes the marks back.
func (c *chooser) price(gpus []int32, readyMs, beginMs int64) key {
	f := c.ps.f
	c.mark(gpus)
	k := key{}
	for _, at := range c.jobs {
		j := &f.jobs[at]
		o, ok := c.ps.ladder(j, c.burstMs, c.n.deadlineMs)
		if !ok {
			k.cost = 2 * impossible
			continue
		}
		readyMs = max(readyMs, o.readyMs)
		k.cost += o.cost
		if j.offer.rung == "" { // not a victim yet
			k.priority = max(k.priority, j.priority)
			k.tier = max(k.tier, j.tier(o))
		} else {
			k.cost -= j.offer.cost
		}
	}
	c.unmark(gpus)
	k.late = readyMs+beginMs > c.n.deadlineMs
	k.cost += float64(beginMs) * float64(len(gpus))
	if k.late {
		k.cost += float64(readyMs) * float64(len(gpus))
	}
	return k
}

// tier is 1 when an offer takes the gang's tenant below its guarantee.
func (j *floorJob) tier(o offer) int {
	if j.tenant.held-(len(j.gpus)-o.world*j.size) < j.tenant.guarantee {
		return 1
	}
	return 0
}

func (c *chooser) mark(gpus []int32) {
	for _, i := range gpus {
		g := &c.ps.f.gpus[i]
		g.takeBytes = c.bytes
		if g.job >= 0 && !g.leaving {
			g.need = true
			c.ps.f.jobs[g.job].needN++
		}
	}
}

func (c *chooser) unmark(gpus []int32) {
	for _, i := range gpus {
		g := &c.ps.f.gpus[i]
		if g.need && g.job >= 0 {
			g.need = false
			c.ps.f.jobs[g.job].needN--
		}
		g.takeBytes = 0
	}
}

// inSpan prices the cheapest way to start a replica on GPUs of one island or
// node: free ones first, then those of the cheapest set of gangs, searched
// exactly when they are few. With out it also says which GPUs.
func (c *chooser) inSpan(s span, freeOnly bool, out *option) (key, bool) {
	f, size := c.ps.f, c.n.size
	if int(s.hi-s.lo) < size {
		return key{}, false
	}
	c.avail, c.jobs, c.counts = c.avail[:0], c.jobs[:0], c.counts[:0]
	free, serving, coming := 0, 0, int64(0)
	for pass := range 2 { // free GPUs before those that are coming free
		for i := s.lo; i < s.hi; i++ {
			g := &f.gpus[i]
			switch {
			case pass == 0 && g.free():
				free++
				if c.fits(g) {
					c.avail = append(c.avail, i)
				}
			case pass == 1 && g.comingFree() && len(c.avail) < size && c.fits(g):
				c.avail = append(c.avail, i)
				coming = max(coming, c.comingMs(g))
			case pass == 0 && g.active && g.job < 0 || g.claimed:
				serving++
			}
		}
	}
	beginMs := c.startMs()
	// Pack: few free GPUs left over, next to other replicas.
	loose := float64(max(0, free-size))*10 - float64(serving)
	if len(c.avail) >= size {
		c.jobs = c.jobs[:0]
		if free >= size {
			coming = 0
		}
		k := c.price(c.avail[:size], coming, beginMs)
		k.cost += loose
		if out != nil {
			out.gpus = slices.Clone(c.avail[:size])
			out.beginCost = float64(beginMs)*float64(size) + loose
		}
		return k, true
	}
	if freeOnly {
		return key{}, false
	}
	k, ok := c.victims(s, beginMs, out)
	k.cost += loose
	if out != nil {
		out.beginCost = float64(beginMs)*float64(size) + loose
	}
	return k, ok
}

// victims searches the sets of gangs in a span that free what the free GPUs
// lack.
func (c *chooser) victims(s span, beginMs int64, out *option) (key, bool) {
	f, lack := c.ps.f, c.n.size-len(c.avail)
	free := len(c.avail)
	c.jobs, c.counts = c.jobs[:0], c.counts[:0]
	for i := s.lo; i < s.hi; i++ {
		g := &f.gpus[i]
		if g.job < 0 || g.leaving || g.claimed || g.need || !g.usable || g.reserved != "" || !c.mayTake(g.job) {
			continue
		}
		if !c.fits(g) {
			continue // a sleeper's memory is in the way here
		}
		if at := slices.Index(c.jobs, g.job); at >= 0 {
			c.counts[at]++
		} else if len(c.jobs) < maxVictimsInSpan {
			c.jobs, c.counts = append(c.jobs, g.job), append(c.counts, 1)
		}
	}
	c.cand = append(c.cand[:0], c.jobs...)
	cand, counts := c.cand, c.counts
	var best key
	found := false
	for set := uint(1); set < 1<<len(cand); set++ {
		sum, least := 0, int32(1<<30)
		for b := range cand {
			if set>>b&1 == 1 {
				sum += int(counts[b])
				least = min(least, counts[b])
			}
		}
		if sum < lack || sum-int(least) >= lack {
			continue // too little, or a member could be spared
		}
		for last := range cand { // whose GPUs are left over, if any
			if set>>last&1 == 0 {
				continue
			}
			c.avail = c.gather(c.avail[:free], s, cand, set, last)
			c.jobs = c.jobs[:0]
			for b := range cand {
				if set>>b&1 == 1 {
					c.jobs = append(c.jobs, cand[b])
				}
			}
			k := c.price(c.avail, 0, beginMs)
			if !found || k.compare(best) < 0 {
				best, found = k, true
				if out != nil {
					out.gpus = append(out.gpus[:0], c.avail...)
				}
			}
			if sum == lack || bits.OnesCount(set) == 1 {
				break
			}
		}
	}
	c.avail = c.avail[:free]
	return best, found
}

// gather appends the GPUs of the gangs in set, the last gang's last, until the
// replica has enough. Within a gang the highest ranks give first.
func (c *chooser) gather(into []int32, s span, cand []int32, set uint, last int) []int32 {
	f := c.ps.f
	add := func(job int32) {
		gpus := f.jobs[job].gpus
		for k := len(gpus) - 1; k >= 0 && len(into) < c.n.size; k-- {
			i := gpus[k]
			g := &f.gpus[i]
			if i >= s.lo && i < s.hi && !g.claimed && !g.need && !g.leaving && g.usable && g.reserved == "" && c.fits(g) {
				into = append(into, i)
			}
		}
	}
	for b := range cand {
		if set>>b&1 == 1 && b != last {
			add(cand[b])
		}
	}
	add(cand[last])
	return into
}

// choose marks an option as part of the plan.
func (c *chooser) choose(o option) {
	c.mark(o.gpus)
	for _, i := range o.gpus {
		c.ps.f.gpus[i].claimed = true
	}
	c.offers(o.gpus)
	if o.wake != nil {
		c.woken[o.wake.ID] = true
	}
	c.takes = append(c.takes, o)
}

// undo takes the t-th choice back.
func (c *chooser) undo(t int) option {
	o := c.takes[t]
	c.takes = slices.Delete(c.takes, t, t+1)
	c.unmark(o.gpus)
	for _, i := range o.gpus {
		c.ps.f.gpus[i].claimed = false
	}
	c.offers(o.gpus)
	if o.wake != nil {
		delete(c.woken, o.wake.ID)
	}
	return o
}

// offers prices anew the gangs that hold gpus.
func (c *chooser) offers(gpus []int32) {
	c.forget(gpus)
	for _, i := range gpus {
		at := c.ps.f.gpus[i].job
		if at < 0 {
			continue
		}
		j := &c.ps.f.jobs[at]
		c.forget(j.gpus)
		j.offer = offer{}
		if j.needN > 0 {
			j.offer, _ = c.ps.ladder(j, c.burstMs, c.n.deadlineMs)
		}
	}
}
