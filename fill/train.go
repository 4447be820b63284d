package fill

import (
	"cmp"
	"fmt"
	"slices"

	"sluice/nodes/registry"
)

// start is a gang that this plan places.
type start struct {
	at   int32
	gpus []int32
	most int // largest legal world within limits
}

// training gives what inference does not need to gangs.
func (ps *pass) training() {
	ps.rankPriorities()
	ps.resumeYielded()
	ps.keepPromises()
	ps.moveFromDraining()
	ps.settleLimits()
	starts := ps.startWaiting()
	ps.extend(starts)
	for i := range starts {
		ps.emitStart(&starts[i])
	}
	ps.giveGuarantees()
	ps.convertYielded()
	ps.growOne()
}

// resumeYielded lets gangs go on whose GPUs are all free again. They come
// before everybody else: their memory is still there.
func (ps *pass) resumeYielded() {
	for i := range ps.f.jobs {
		j := &ps.f.jobs[i]
		if j.job.Phase != registry.JobYielded || j.touched || j.job.Want != "" || len(j.gpus) == 0 {
			continue
		}
		priceMs := ps.yieldMs(j.memo) + ps.resumeMs(j.memo)
		if !ps.allFree(j) || !ps.mayReturn(j.memo, priceMs, len(j.gpus)) {
			continue
		}
		ps.spendReturn(j.memo, priceMs, len(j.gpus))
		why := fmt.Sprintf("all %d GPUs of %s are free again", len(j.gpus), j.name)
		ps.emit(registry.Command{JobPhase: &registry.PhaseChange{Name: j.name, Seq: j.job.Seq, To: string(registry.JobResuming),
			TimeoutMs: ps.cfg.ResumeTimeoutMs, Reason: why}}, why)
		ps.act(Action{Kind: "resume", Object: j.name, GPUs: len(j.gpus), PriceGPUMs: priceMs * int64(len(j.gpus)), Reason: why})
		j.touched = true
		for _, g := range j.gpus {
			ps.f.gpus[g].claimed = true
		}
	}
}

func (ps *pass) allFree(j *floorJob) bool {
	for _, i := range j.gpus {
		g := &ps.f.gpus[i]
		// A cordoned node takes nothing new, but what is resident may go on.
		ok := g.fact != nil && g.fact.Fenced == "" && ps.f.nodes[g.node].present && !ps.f.nodes[g.node].fact.Draining
		if !ok || g.active || g.claimed || g.held || (g.reserved != "" && g.reserved != j.name) {
			return false
		}
		if g.residents > 1 && !g.fits(j.job.Spec.ActiveBytes, g.residentBytes-j.job.Spec.ResidentBytes, g.residents-1) {
			return false
		}
	}
	return true
}

// waits tells whether a job may be placed, and why not.
func (ps *pass) waits(j *floorJob) bool {
	return (j.job.Phase == registry.JobPending || j.job.Phase == registry.JobPaused) &&
		j.job.Want == "" && j.job.BackoffToMs <= ps.nowMs && !j.touched
}

// startWaiting places waiting gangs at their smallest legal world, in order:
// tenants below their guarantee, then the least weighted share; within a tenant
// priority, then age. Priority counts within a tenant only: between tenants
// everybody would claim the highest.
func (ps *pass) startWaiting() []start {
	queues := ps.queues()
	var out []start
	gathering := "" // a gang that starves: nobody smaller passes it
	for {
		t := nextTenant(queues)
		if t == nil {
			return out
		}
		at := queues[t][0]
		queues[t] = queues[t][1:]
		j := &ps.f.jobs[at]
		if gathering != "" && len(j.memo.promise) == 0 {
			j.cause, j.text = CauseShortage, "free GPUs gather for "+gathering+", which has waited longest"
			continue
		}
		s, ok := ps.tryStart(j, at)
		if ok {
			out = append(out, s)
			continue
		}
		if j.cause == CauseShortage && ps.nowMs-j.job.SinceMs >= ps.cfg.StarveAfterMs && ps.cfg.StarveAfterMs > 0 &&
			smallestWorld(&j.job.Spec)*j.size <= ps.f.usable {
			gathering = j.name
		}
	}
}

// queues are the waiting jobs by tenant, in the tenant's own order.
func (ps *pass) queues() map[*floorTenant][]int32 {
	queues := map[*floorTenant][]int32{}
	for i := range ps.f.jobs {
		if ps.waits(&ps.f.jobs[i]) {
			t := ps.f.jobs[i].tenant
			queues[t] = append(queues[t], int32(i))
		}
	}
	for _, q := range queues {
		slices.SortFunc(q, func(a, b int32) int {
			x, y := &ps.f.jobs[a], &ps.f.jobs[b]
			return cmp.Or(cmp.Compare(y.job.Spec.Priority, x.job.Spec.Priority),
				cmp.Compare(x.job.SubmittedMs, y.job.SubmittedMs), cmp.Compare(x.name, y.name))
		})
	}
	return queues
}

func nextTenant(queues map[*floorTenant][]int32) *floorTenant {
	var best *floorTenant
	for t, q := range queues {
		if len(q) == 0 {
			continue
		}
		if best == nil || t.before(best) {
			best = t
		}
	}
	return best
}

// before orders tenants for what is free.
func (t *floorTenant) before(o *floorTenant) bool {
	if below, other := t.held < t.guarantee, o.held < o.guarantee; below != other {
		return below
	}
	if t.share() != o.share() {
		return t.share() < o.share()
	}
	return t.name < o.name
}

// tryStart places one gang at its smallest legal world.
func (ps *pass) tryStart(j *floorJob, at int32) (start, bool) {
	spec := &j.job.Spec
	least := smallestWorld(spec)
	if least == 0 {
		j.cause, j.text = CauseTopology, fmt.Sprintf("no world size within [%d, %d] is a multiple of %d", spec.MinWorld, spec.MaxWorld, spec.WorldMultiple)
		return start{}, false
	}
	most := legalWorld(spec, ps.withinLimit(j.tenant, spec.MaxWorld*j.size)/j.size)
	if most == 0 {
		j.cause, j.text = CauseQuota, fmt.Sprintf("tenant %s holds %d of at most %d GPUs; %d more are needed", j.tenant.name, j.tenant.held+j.tenant.leaving, j.tenant.limit, least*j.size)
		return start{}, false
	}
	priceMs := ps.restartMs(j.memo)
	// What its owner stopped and wants again is no switch of ours.
	if j.job.Generation > 0 && j.job.EndRung != registry.RungUser && !ps.mayReturn(j.memo, priceMs, least*j.size) {
		j.cause, j.text = CauseBackoff, "restarted so often that it would only switch; waits until that share of its time has passed"
		return start{}, false
	}
	open := ps.placer.count(j, at)
	gpus := ps.placer.place(j, at, least)
	if gpus == nil {
		j.cause, j.text = ps.whyWaiting(j, open, least*j.size)
		return start{}, false
	}
	ps.placer.take(gpus)
	j.tenant.held += len(gpus)
	j.touched = true
	return start{at: at, gpus: gpus, most: most}, true
}

// withinLimit is how many of n GPUs more the tenant may hold.
func (ps *pass) withinLimit(t *floorTenant, n int) int {
	if t.limit <= 0 {
		return n
	}
	return max(0, min(n, t.limit-t.held-t.leaving))
}

// extend shares what is left among the gangs just placed: step by step to the
// tenant with the least share, then each gang is placed anew, whole.
func (ps *pass) extend(starts []start) {
	left := ps.placer.left()
	if len(starts) == 0 || left == 0 {
		return
	}
	targets := make([]int, len(starts))
	for i := range starts {
		targets[i] = len(starts[i].gpus)
	}
	for range ps.f.usable { // each round gives a GPU at least
		best := -1
		for i := range starts {
			j := &ps.f.jobs[starts[i].at]
			step := max(1, j.job.Spec.WorldMultiple) * j.size
			if step > left || (targets[i]+step)/j.size > starts[i].most || ps.withinLimit(j.tenant, step) < step {
				continue
			}
			if best < 0 || moreDeserving(&ps.f.jobs[starts[i].at], targets[i], &ps.f.jobs[starts[best].at], targets[best]) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		j := &ps.f.jobs[starts[best].at]
		step := max(1, j.job.Spec.WorldMultiple) * j.size
		targets[best] += step
		left -= step
		j.tenant.held += step
	}
	for i := range starts {
		ps.enlarge(&starts[i], targets[i])
	}
}

func moreDeserving(a *floorJob, has int, b *floorJob, other int) bool {
	if a.tenant != b.tenant {
		return a.tenant.before(b.tenant)
	}
	if a.job.Spec.Priority != b.job.Spec.Priority {
		return a.job.Spec.Priority > b.job.Spec.Priority
	}
	return has < other
}

// enlarge places a start anew at target GPUs, or at the largest legal world
// that fits; its first placement is kept when none does.
func (ps *pass) enlarge(s *start, target int) {
	j := &ps.f.jobs[s.at]
	if target == len(s.gpus) {
		return
	}
	ps.placer.giveBack(s.gpus)
	old := s.gpus
	ps.placer.count(j, s.at)
	step := max(1, j.job.Spec.WorldMultiple)
	for world := target / j.size; world*j.size > len(old); world -= step {
		if gpus := ps.placer.place(j, s.at, world); gpus != nil {
			s.gpus = gpus
			break
		}
	}
	j.tenant.held += len(s.gpus) - target
	ps.placer.take(s.gpus)
}

func (ps *pass) emitStart(s *start) {
	j := &ps.f.jobs[s.at]
	priceMs := ps.restartMs(j.memo)
	if j.job.Generation > 0 {
		ps.spendReturn(j.memo, priceMs, len(s.gpus))
	}
	timeoutMs := j.job.Spec.StartTimeoutMs
	if timeoutMs <= 0 {
		timeoutMs = ps.cfg.StartTimeoutMs
	}
	why := fmt.Sprintf("%d GPUs on %s are free for %d ranks", len(s.gpus), ps.places(s.gpus), len(s.gpus)/j.size)
	ps.emit(registry.Command{JobPlace: &registry.JobPlace{Job: j.name, Seq: j.job.Seq, Ranks: ps.ranks(j, s.gpus), TimeoutMs: timeoutMs}}, why)
	ps.act(Action{Kind: "place", Object: j.name, GPUs: len(s.gpus), PriceGPUMs: priceMs * int64(len(s.gpus)), Reason: why})
	j.memo.promise = nil
}

// places names the nodes of a set of GPUs, or how many there are.
func (ps *pass) places(gpus []int32) string {
	first, count := ps.f.gpus[gpus[0]].node, 1
	for k := 1; k < len(gpus); k++ {
		if ps.f.gpus[gpus[k]].node != ps.f.gpus[gpus[k-1]].node {
			count++
		}
	}
	if count == 1 {
		return ps.f.nodes[first].id
	}
	return fmt.Sprintf("%d nodes", count)
}

// census counts the fleet once a plan, for explanations.
type census struct {
	done    bool
	sick    int // GPUs that are lost, fenced or unheard of
	shut    int // GPUs of nodes that are cordoned or draining
	blocked int // free but for the memory of sleepers
	largest int // GPUs of the largest node
}

func (ps *pass) countFleet() *census {
	c := &ps.census
	if c.done {
		return c
	}
	c.done = true
	for i := range ps.f.nodes {
		c.largest = max(c.largest, int(ps.f.nodes[i].gpus.hi-ps.f.nodes[i].gpus.lo))
	}
	least := ps.leastActive()
	for i := range ps.f.gpus {
		g := &ps.f.gpus[i]
		switch {
		case g.fact == nil || g.fact.Fenced != "" || !ps.f.nodes[g.node].present:
			c.sick++
		case !g.usable:
			c.shut++
		case g.free() && g.lent < 0 && g.residents > 0 && !g.fits(least, g.residentBytes, g.residents):
			c.blocked++
		}
	}
	return c
}

// leastActive is the least memory that a rank of any job computes with.
func (ps *pass) leastActive() int64 {
	least := int64(0)
	for i := range ps.f.jobs {
		if bytes := ps.f.jobs[i].job.Spec.ActiveBytes; i == 0 || bytes < least {
			least = bytes // 0, not declared, fits beside nobody
		}
	}
	return least
}

// whyWaiting says in words why a gang does not fit.
func (ps *pass) whyWaiting(j *floorJob, open, need int) (Cause, string) {
	c := ps.countFleet()
	switch {
	case c.largest < j.size:
		return CauseTopology, fmt.Sprintf("a rank needs %d GPUs of one node; the largest node has %d", j.size, c.largest)
	case len(ps.f.gpus) < need:
		return CauseTopology, fmt.Sprintf("needs %d GPUs; the fleet has %d", need, len(ps.f.gpus))
	case open >= need:
		return CauseFragmentation, fmt.Sprintf("needs %d GPUs, %d together on a node; %d are free but apart", need, j.size, open)
	case open+c.sick >= need:
		return CauseHealth, fmt.Sprintf("needs %d GPUs; %d are free, %d are lost or fenced", need, open, c.sick)
	case open+c.sick+c.shut >= need && c.shut > 0:
		return CauseHealth, fmt.Sprintf("needs %d GPUs; %d are free, %d are on nodes that are cordoned or draining", need, open, c.shut)
	case c.blocked > 0:
		ps.wakeless(j, need-open)
		return CauseShortage, fmt.Sprintf("needs %d GPUs; %d are free, and up to %d more but for the memory of sleeping replicas", need, open, c.blocked)
	}
	return CauseShortage, fmt.Sprintf("needs %d GPUs; %d are free", need, open)
}

// wakeless stops sleepers whose memory has kept a gang waiting for long enough.
func (ps *pass) wakeless(j *floorJob, lack int) {
	if ps.nowMs-j.job.SinceMs < ps.cfg.EvictAsleepAfterMs {
		return
	}
	for i := range ps.f.gpus {
		g := &ps.f.gpus[i]
		if lack <= 0 || !g.free() || g.lent >= 0 || g.residents == 0 || g.leaving || !g.fits(j.job.Spec.ActiveBytes, 0, 0) ||
			g.fits(j.job.Spec.ActiveBytes, g.residentBytes, g.residents) || !ps.mayClear(g) {
			continue
		}
		for _, res := range g.fact.Residents {
			if r := ps.st.Replicas[res.Holder]; r != nil && !ps.moved[r.ID] {
				why := fmt.Sprintf("its memory has kept %s waiting for %d ms", j.name, ps.nowMs-j.job.SinceMs)
				ps.moved[r.ID] = true
				ps.emit(registry.Command{ReplicaPhase: &registry.PhaseChange{Name: r.ID, Seq: r.Seq, To: string(registry.ReplicaStopping),
					TimeoutMs: ps.cfg.DrainTimeoutMs, Reason: why}}, why)
				ps.act(Action{Kind: "stop", Object: r.ID, Beneficiary: j.name, GPUs: len(r.GPUs), Reason: why})
			}
		}
		lack--
	}
}
