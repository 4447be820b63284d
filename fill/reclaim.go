package fill

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sluice/nodes/registry"
)

// takes places what is missing, model by model: those below their guarantee
// first, then those that are short now, then the rest. Each reclaim is whole
// before anything of it is emitted, and what it claims the next one sees.
func (ps *pass) takes() {
	order := slices.Clone(ps.needs)
	slices.SortStableFunc(order, func(a, b *need) int {
		return cmp.Or(cmp.Compare(rankOfNeed(a), rankOfNeed(b)), cmp.Compare(a.name, b.name))
	})
	for _, n := range order {
		if n.missing <= 0 {
			n.memo.missingSinceMs = 0
			continue
		}
		if n.model.RetryAtMs > ps.nowMs && len(n.asleep) == 0 {
			n.cause = CauseBackoff
			n.text = fmt.Sprintf("%d starts failed in a row; next try in %d ms", n.model.Failures, n.model.RetryAtMs-ps.nowMs)
			ps.keepFor(n)
			continue
		}
		ps.reclaim(n)
	}
}

func rankOfNeed(n *need) int {
	switch {
	case n.have() < n.guaranteed():
		return 0
	case n.urgent:
		return 1
	}
	return 2
}

// keepFor keeps free GPUs from training for replicas that cannot start just
// yet, when they may before training there is worth its start.
func (ps *pass) keepFor(n *need) {
	if n.model.RetryAtMs-ps.nowMs > ps.cfg.MinWorthMs {
		return
	}
	left := (n.missing - n.placed) * n.size
	for _, s := range ps.f.islands {
		if int(s.hi-s.lo) < n.size && n.size <= ps.f.largestIsland {
			continue // a replica will not come here
		}
		for i := s.lo; i < s.hi && left > 0; i++ {
			if g := &ps.f.gpus[i]; g.free() && !g.held && g.fits(n.model.Spec.ActiveBytes, g.residentBytes, g.residents) {
				g.held = true
				left--
			}
		}
	}
}

// reclaim places the missing replicas of one model and emits one command.
func (ps *pass) reclaim(n *need) {
	c := ps.newChooser(n)
	if n.model.RetryAtMs > ps.nowMs {
		c.wakeOnly = true
	}
	if n.freeOnly && !c.freeExists() {
		n.missing = 0
		return
	}
	count := min(n.missing, maxTakesPerModel)
	c.fill(count)
	if len(c.takes) > 0 {
		c.improve()
	}
	if len(c.takes) == 0 && !c.wakeOnly {
		c.over = true
		clear(c.cached)
		c.fill(1)
	}
	n.placed = len(c.takes)
	if n.placed > 0 {
		c.emit()
	}
	if n.placed == n.missing {
		n.memo.missingSinceMs = 0
		return
	}
	if n.memo.missingSinceMs == 0 {
		n.memo.missingSinceMs = ps.nowMs
	}
	if ps.nowMs-n.memo.missingSinceMs <= ps.cfg.MinWorthMs {
		ps.keepFor(n) // who is on the way out may complete a place
	}
	n.cause, n.text = ps.whyMissing(n)
}

// fill chooses greedily until count replicas are placed or none can be.
func (c *chooser) fill(count int) {
	for len(c.takes) < count {
		o, ok := c.best((c.n.surge || c.n.freeOnly) && len(c.takes) == 0 && c.freeExists())
		if !ok || o.key.cost >= impossible {
			return
		}
		c.choose(o)
	}
}

func (c *chooser) freeExists() bool {
	_, ok := c.best(true)
	return ok
}

// total is the key of all that is chosen.
func (c *chooser) total() key {
	k := key{}
	for i := range c.takes {
		k.late = k.late || c.takes[i].key.late
		k.cost += c.takes[i].beginCost
	}
	for _, at := range c.victimJobs() {
		j := &c.ps.f.jobs[at]
		k.cost += j.offer.cost
		k.priority = max(k.priority, j.priority)
		k.tier = max(k.tier, j.tier(j.offer))
	}
	return k
}

func (c *chooser) victimJobs() []int32 {
	var out []int32
	for t := range c.takes {
		for _, i := range c.takes[t].gpus {
			if g := &c.ps.f.gpus[i]; g.need && !slices.Contains(out, g.job) {
				out = append(out, g.job)
			}
		}
	}
	return out
}

// improve looks for a cheaper set of victims: first by sparing each of them in
// turn, then by starting from each single gang that holds several needed GPUs.
// The order in which replicas were placed must not be what gangs are stopped for.
func (c *chooser) improve() {
	victims := c.victimJobs()
	slices.SortFunc(victims, func(a, b int32) int {
		return cmp.Or(cmp.Compare(c.ps.f.jobs[b].offer.cost, c.ps.f.jobs[a].offer.cost), cmp.Compare(a, b))
	})
	for _, v := range victims[:min(len(victims), maxRepairs)] {
		c.spare(v)
	}
	if len(victims) > 1 {
		c.reseed()
	}
}

// spare tries the plan without victim v and keeps it when it is better.
func (c *chooser) spare(v int32) {
	if c.ps.f.jobs[v].needN == 0 {
		return
	}
	c.ban(v, true)
	defer c.ban(v, false)
	c.attempt(func(o *option) bool {
		for _, i := range o.gpus {
			if c.ps.f.gpus[i].job == v && c.ps.f.gpus[i].need {
				return true
			}
		}
		return false
	}, nil)
}

// attempt takes the choices that drop names back, chooses anew, and returns to
// the old plan unless the new one is better.
func (c *chooser) attempt(drop func(*option) bool, first func()) {
	before, count := c.total(), len(c.takes)
	old := slices.Clone(c.takes)
	for t := len(c.takes) - 1; t >= 0; t-- {
		if drop(&c.takes[t]) {
			c.undo(t)
		}
	}
	if first != nil {
		first()
	}
	c.fill(count)
	if len(c.takes) == count && c.total().compare(before) < 0 {
		return
	}
	for t := len(c.takes) - 1; t >= 0; t-- {
		c.undo(t)
	}
	for _, o := range old {
		c.choose(o)
	}
}

// reseed tries, for gangs that hold several GPUs, the plan that begins with
// all a gang can give.
func (c *chooser) reseed() {
	f := c.ps.f
	var seeds []int32
	for at := range f.jobs {
		j := &f.jobs[at]
		if c.mayTake(int32(at)) && len(j.gpus) >= 2*c.n.size && j.needN < len(j.gpus) {
			seeds = append(seeds, int32(at))
		}
	}
	slices.SortStableFunc(seeds, func(a, b int32) int {
		return cmp.Compare(c.ps.restartMs(f.jobs[a].memo)*int64(len(f.jobs[a].gpus)), c.ps.restartMs(f.jobs[b].memo)*int64(len(f.jobs[b].gpus)))
	})
	for _, at := range seeds[:min(len(seeds), maxSeeds)] {
		c.attempt(func(o *option) bool { return o.stops(f) }, func() { c.seed(at) })
	}
}

// stops tells whether an option takes GPUs of a gang.
func (o *option) stops(f *floor) bool {
	return slices.ContainsFunc(o.gpus, func(i int32) bool { return f.gpus[i].need })
}

// seed places replicas on GPUs of one gang, island by island.
func (c *chooser) seed(at int32) {
	f, limit := c.ps.f, min(c.n.missing, maxTakesPerModel)
	run := []int32{}
	for _, i := range f.jobs[at].gpus {
		if len(run) > 0 && f.gpus[run[0]].island != f.gpus[i].island {
			run = run[:0]
		}
		g := &f.gpus[i]
		if g.claimed || g.need || !g.usable || g.reserved != "" || !c.fits(g) {
			continue
		}
		if run = append(run, i); len(run) < c.n.size {
			continue
		}
		if len(c.takes) >= limit {
			return
		}
		o := option{gpus: slices.Clone(run), beginCost: float64(c.startMs()) * float64(c.n.size)}
		c.jobs = append(c.jobs[:0], at)
		o.key = c.price(o.gpus, 0, c.startMs())
		c.choose(o)
		run = run[:0]
	}
}

// emit makes the command of what was chosen and brings the floor up to date.
func (c *chooser) emit() {
	ps, n := c.ps, c.n
	cmd := &registry.Reclaim{}
	waitMs := int64(0)
	cleared := map[string]bool{}
	for t := range c.takes {
		o := &c.takes[t]
		take := c.take(o)
		cmd.Takes = append(cmd.Takes, take)
		if c.over {
			c.clear(o, take.Replica, cmd, cleared)
		}
	}
	for _, at := range c.victimJobs() {
		begun := ps.f.jobs[at].job.Phase == registry.JobRunning
		v := c.victim(at, cmd.Takes)
		waitMs = max(waitMs, v.TimeoutMs)
		if begun {
			cmd.Victims = append(cmd.Victims, v)
			continue
		}
		// A gang that has not started cannot be asked to stop: its generation
		// ends by a command of its own, just before the reclaim that claims its GPUs.
		j := ps.f.jobs[at].job
		ps.emit(registry.Command{JobEnding: &registry.JobEnding{Job: v.Job, Seq: v.Seq, After: registry.JobPaused, Rung: v.Rung,
			LastDone: j.FromStep, Clean: true, TimeoutMs: releaseTimeoutMs, Reason: v.Reason}}, v.Reason)
	}
	if waitMs == 0 {
		waitMs = ps.cfg.StopTimeoutMs
	}
	for i := range cmd.Takes {
		cmd.Takes[i].TimeoutMs = waitMs + releaseTimeoutMs + ps.cfg.StopTimeoutMs
	}
	for t := range c.takes {
		for _, i := range c.takes[t].gpus {
			g := &ps.f.gpus[i]
			g.need, g.reserved = false, cmd.Takes[t].Replica
		}
	}
	why := fmt.Sprintf("%s wants %d replicas (%s) and has %d", n.name, n.want, n.why, n.have())
	if n.surge {
		why = fmt.Sprintf("%s version %d starts beside the old ones", n.name, n.model.Version)
	}
	ps.emit(registry.Command{Reclaim: cmd}, why+victimsText(cmd.Victims))
}

func victimsText(vs []registry.Victim) string {
	var b strings.Builder
	for i := range vs {
		if i == 0 {
			b.WriteString("; gives way: ")
		} else {
			b.WriteString(", ")
		}
		b.WriteString(vs[i].Job + vs[i].Replica + " (" + string(vs[i].Rung) + ")")
	}
	return b.String()
}

func (c *chooser) take(o *option) registry.Take {
	ps, n := c.ps, c.n
	t := registry.Take{Model: n.name, Version: n.model.Version}
	kind := "start"
	if o.wake != nil {
		kind, ps.moved[o.wake.ID] = "wake", true
		t.Replica, t.Wake, t.GPUs, t.Node = o.wake.ID, true, o.wake.GPUs, o.wake.Node
	} else {
		ps.newID++
		t.Replica, t.Node = ps.st.NewReplicaID(n.name, ps.newID), ps.f.nodes[ps.f.gpus[o.gpus[0]].node].id
		rankOrder(o.gpus)
		for _, i := range o.gpus {
			t.GPUs = append(t.GPUs, ps.f.gpus[i].uuid)
		}
	}
	ps.act(Action{Kind: kind, Object: t.Replica, GPUs: len(t.GPUs), PriceGPUMs: int64(o.beginCost), Reason: n.why})
	return t
}

// victim turns a gang's offer into an order and frees what it gives.
func (c *chooser) victim(at int32, takes []registry.Take) registry.Victim {
	ps := c.ps
	j := &ps.f.jobs[at]
	beneficiary := ""
	for t := range c.takes {
		for _, i := range c.takes[t].gpus {
			if beneficiary == "" && ps.f.gpus[i].job == at {
				beneficiary = takes[t].Replica
			}
		}
	}
	o := j.offer
	var next []int32
	if o.rung == registry.RungShrink {
		next = ps.keptGPUs(j, o.world)
	}
	why := fmt.Sprintf("%s needs %d of %s's %d GPUs; %s costs %.0f GPU-s", beneficiary, j.needN, j.name, len(j.gpus), o.rung, o.cost/1000)
	v := registry.Victim{Job: j.name, Seq: j.job.Seq, Rung: o.rung, Next: ps.ranks(j, next),
		Beneficiary: beneficiary, TimeoutMs: ps.stopTimeoutMs(j, o.rung), Reason: why}
	ps.act(Action{Kind: "evict", Object: j.name, Beneficiary: beneficiary, Rung: o.rung, GPUs: j.needN, PriceGPUMs: int64(o.cost), Reason: why})
	if o.rung == registry.RungYield {
		j.touched = true
		for _, i := range j.gpus {
			g := &ps.f.gpus[i]
			g.lent, g.leaving = at, true
			g.residentBytes += j.job.Spec.ResidentBytes
			g.residents++
		}
	} else {
		ps.lets(j, len(next))
		ps.vacate(j, next)
	}
	for _, i := range j.gpus {
		ps.f.gpus[i].job = -1
	}
	j.needN, j.offer = 0, offer{}
	return v
}

// clear ends the sleepers and yielded gangs whose memory is in o's way.
func (c *chooser) clear(o *option, beneficiary string, cmd *registry.Reclaim, cleared map[string]bool) {
	ps := c.ps
	for _, i := range o.gpus {
		g := &ps.f.gpus[i]
		if g.fits(c.bytes, g.residentBytes, g.residents) {
			continue
		}
		why := "its memory is in the way of " + beneficiary
		for _, res := range g.fact.Residents {
			r := ps.st.Replicas[res.Holder]
			if r == nil || cleared[r.ID] || o.wake == r {
				continue
			}
			cleared[r.ID], ps.moved[r.ID] = true, true
			cmd.Victims = append(cmd.Victims, registry.Victim{Replica: r.ID, Seq: r.Seq, Rung: registry.RungPause,
				Beneficiary: beneficiary, TimeoutMs: ps.cfg.DrainTimeoutMs, Reason: why})
			ps.act(Action{Kind: "evict", Object: r.ID, Beneficiary: beneficiary, Rung: registry.RungPause, Reason: why})
		}
		if g.lent < 0 || ps.f.jobs[g.lent].touched {
			continue
		}
		j := &ps.f.jobs[g.lent]
		cmd.Victims = append(cmd.Victims, registry.Victim{Job: j.name, Seq: j.job.Seq, Rung: registry.RungPause,
			Beneficiary: beneficiary, TimeoutMs: ps.stopTimeoutMs(j, registry.RungPause), Reason: why})
		ps.act(Action{Kind: "evict", Object: j.name, Beneficiary: beneficiary, Rung: registry.RungPause,
			PriceGPUMs: ps.restartMs(j.memo) * int64(len(j.gpus)), Reason: why})
		ps.lets(j, 0)
		ps.vacate(j, nil)
	}
}

// whyMissing says in words why a replica could not be placed.
func (ps *pass) whyMissing(n *need) (Cause, string) {
	short := n.missing - n.placed
	free := 0
	for i := range ps.f.gpus {
		if ps.f.gpus[i].free() {
			free++
		}
	}
	sick, largest := ps.countFleet().sick, ps.countFleet().largest
	switch {
	case largest < n.size:
		return CauseTopology, fmt.Sprintf("a replica needs %d GPUs of one node; the largest node has %d", n.size, largest)
	case ps.f.usable < n.size:
		return CauseHealth, fmt.Sprintf("%d replicas missing: only %d GPUs take anything new; the rest are lost, fenced, cordoned or draining", short, ps.f.usable)
	case free >= n.size:
		return CauseFragmentation, fmt.Sprintf("%d replicas missing: %d GPUs are free, but no %d of one node with enough memory", short, free, n.size)
	case sick >= n.size:
		return CauseHealth, fmt.Sprintf("%d replicas missing: %d GPUs are lost or fenced, and no gang can give way", short, sick)
	}
	return CauseShortage, fmt.Sprintf("%d replicas missing: all GPUs serve, and no gang can give way", short)
}
