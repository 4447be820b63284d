package fill

import (
	"cmp"
	"fmt"
	"slices"

	"sluice/nodes/registry"
)

// ownersWishes stops running gangs whose owners paused or cancelled them. What
// does not run is moved by the life cycle.
func (ps *pass) ownersWishes() {
	for i := range ps.f.jobs {
		j := &ps.f.jobs[i]
		if j.job.Want == "" || (j.job.Phase != registry.JobRunning && j.job.Phase != registry.JobYielded) {
			continue
		}
		why := "its owner asked: " + j.job.Want
		ps.stopJob(j, registry.RungUser, nil, "", why)
	}
}

// stopJob emits the stop of a gang outside a reclaim and brings the floor up to date.
func (ps *pass) stopJob(j *floorJob, rung registry.Rung, next []int32, beneficiary, why string) {
	ps.emit(registry.Command{JobStop: &registry.Victim{Job: j.name, Seq: j.job.Seq, Rung: rung,
		Next: ps.ranks(j, next), Beneficiary: beneficiary, TimeoutMs: ps.stopTimeoutMs(j, rung), Reason: why}}, why)
	ps.lets(j, len(next))
	ps.vacate(j, next)
}

// lets books what a gang's tenant will hold when the gang has kept so many
// GPUs, and what is on its way out.
func (ps *pass) lets(j *floorJob, kept int) {
	j.tenant.held += kept - len(j.gpus)
	j.tenant.leaving += max(0, len(j.gpus)-kept)
}

// vacate marks the GPUs of a gang that stops as leaving, and those of its next
// generation as its own.
func (ps *pass) vacate(j *floorJob, next []int32) {
	j.touched = true
	for _, g := range j.gpus {
		gpu := &ps.f.gpus[g]
		if gpu.job, gpu.lent = -1, -1; gpu.heldBy(j.name) {
			gpu.leaving = true
		}
	}
	for _, g := range next {
		ps.f.gpus[g].reserved = j.name
	}
}

func (ps *pass) stopTimeoutMs(j *floorJob, rung registry.Rung) int64 {
	switch {
	case rung == registry.RungYield:
		return ps.cfg.YieldTimeoutMs
	case j.job.Spec.GraceMs <= 0:
		return ps.cfg.StopTimeoutMs
	case j.job.Spec.SpeaksProtocol():
		return j.job.Spec.GraceMs
	default:
		return j.job.Spec.GraceMs + stopMarginMs
	}
}

// retire takes replicas back that are no longer wanted.
func (ps *pass) retire() {
	for _, n := range ps.needs {
		switch {
		case n.model.Deleting:
			for _, list := range [][]*registry.Replica{n.fresh, n.stale, n.outgoing, n.asleep} {
				for _, r := range list {
					ps.retireOne(n, r, registry.ReplicaStopping, "the model is being deleted")
				}
			}
			n.missing, n.surge = 0, false
		default:
			ps.stopStaleSleepers(n)
			ps.replaceOld(n)
			ps.shed(n)
		}
	}
}

// stopStaleSleepers ends sleeping replicas of an older version and those on
// nodes that drain: they will not be woken.
func (ps *pass) stopStaleSleepers(n *need) {
	n.asleep = slices.DeleteFunc(n.asleep, func(r *registry.Replica) bool {
		switch {
		case ps.st.Nodes[r.Node].Draining:
			ps.retireOne(n, r, registry.ReplicaStopping, "its node drains")
		case r.Version < n.model.Version:
			ps.retireOne(n, r, registry.ReplicaStopping, fmt.Sprintf("version %d was replaced by %d", r.Version, n.model.Version))
		default:
			return false
		}
		return true
	})
}

// replaceOld retires replicas of an older version, one at a time, and those on
// draining nodes, as soon as the others meet the need.
func (ps *pass) replaceOld(n *need) {
	ready := n.ready
	for _, r := range n.outgoing {
		isReady := r.Phase == registry.ReplicaReady
		if !isReady || ready-1 >= n.want {
			ps.retireOne(n, r, registry.ReplicaStopping, "its node drains")
			if isReady {
				ready--
			}
		}
	}
	if len(n.stale) == 0 {
		n.memo.rolloutSinceMs = 0
		return
	}
	if n.memo.rolloutSinceMs == 0 {
		n.memo.rolloutSinceMs = ps.nowMs
	}
	why := fmt.Sprintf("version %d replaces %d", n.model.Version, n.stale[0].Version)
	switch {
	case len(n.fresh)+len(n.stale) > n.want && n.freshComing() == 0:
		r := ps.leastUseful(n, n.stale)
		ps.retireOne(n, r, registry.ReplicaStopping, why)
		n.stale = slices.DeleteFunc(n.stale, func(x *registry.Replica) bool { return x == r })
		n.missing, n.surge = 0, false
		n.memo.rolloutSinceMs = ps.nowMs
	case n.surge && ps.nowMs-n.memo.rolloutSinceMs >= ps.cfg.RolloutWaitMs && ps.nowMs >= n.model.RetryAtMs:
		// No GPU came for a replica beside the old ones: make room in place.
		r := ps.leastUseful(n, n.stale)
		ps.retireOne(n, r, registry.ReplicaStopping, why+"; no GPU was free for both")
		n.stale = slices.DeleteFunc(n.stale, func(x *registry.Replica) bool { return x == r })
		n.missing, n.surge = 0, false
		n.memo.rolloutSinceMs = ps.nowMs
	}
}

// shed gives replicas back that were not needed for long enough. Each level of
// supply (the k-th replica) is a ski rental of its own: it is held, idle, until
// holding has cost what giving back and taking again would, so no gap costs
// more than twice its optimum. See docs/ARCHITECTURE.md, "No thrash".
func (ps *pass) shed(n *need) {
	fresh := n.fresh
	if n.keepComing {
		fresh = slices.DeleteFunc(slices.Clone(fresh), func(r *registry.Replica) bool { return r.Phase != registry.ReplicaReady })
	}
	active := len(fresh) + len(n.stale)
	levels := n.memo.sinceMs
	for len(levels) < active {
		levels = append(levels, 0)
	}
	levels = levels[:active]
	due, idle := 0, 0
	patienceMs := ps.patienceMs(n)
	for k := range levels {
		switch {
		case k < n.want:
			levels[k] = 0
		case levels[k] == 0:
			levels[k] = ps.nowMs
		}
		if levels[k] != 0 && ps.nowMs-levels[k] >= patienceMs {
			due++
		}
		if levels[k] != 0 && ps.nowMs-levels[k] >= ps.cfg.DownAfterMs {
			idle++
		}
	}
	n.memo.sinceMs = levels
	// Those that do not serve yet go first and without the rental's patience:
	// what they cost is still to be paid.
	for range idle {
		r := ps.leastUseful(n, fresh)
		if r == nil {
			return
		}
		fresh = slices.DeleteFunc(slices.Clone(fresh), func(x *registry.Replica) bool { return x == r })
		begun := r.Phase == registry.ReplicaReady
		if begun && due == 0 {
			return
		}
		heldMs := ps.cfg.DownAfterMs
		if begun {
			heldMs = patienceMs
		}
		ps.retireOne(n, r, ps.retireTo(n, r), fmt.Sprintf("%d replicas were enough for %d ms: %s", n.want, heldMs, n.why))
		n.fresh = slices.DeleteFunc(n.fresh, func(x *registry.Replica) bool { return x == r })
		if due > 0 {
			due--
		}
	}
}

// patienceMs is the ski rental's purchase price for one replica, in
// milliseconds of holding it: drain, then get the GPU back, then wake or start.
func (ps *pass) patienceMs(n *need) int64 {
	again := n.memo.start.valueMs(ps.cfg.StartMs)
	if n.model.Spec.Sleep != "" && n.model.Spec.ResidentBytes > 0 {
		again = n.memo.wake.valueMs(ps.cfg.WakeMs) + ps.fleet.yield.valueMs(ps.cfg.YieldMs) + ps.fleet.resume.valueMs(ps.cfg.ResumeMs)
	}
	return max(ps.cfg.DownAfterMs, ps.cfg.DrainMs+again)
}

// leastUseful chooses whom to retire: one that does not serve yet, then one
// that lets a yielded gang go on, then one that stands alone among training.
func (ps *pass) leastUseful(n *need, of []*registry.Replica) *registry.Replica {
	var best *registry.Replica
	var bestKey [3]int
	for _, r := range of {
		key := [3]int{ps.begun(r), ps.unblocks(r), ps.company(r)}
		if best == nil || cmp.Or(cmp.Compare(key[0], bestKey[0]), cmp.Compare(key[1], bestKey[1]), cmp.Compare(key[2], bestKey[2])) < 0 {
			best, bestKey = r, key
		}
	}
	return best
}

func (ps *pass) begun(r *registry.Replica) int {
	switch r.Phase {
	case registry.ReplicaWaiting:
		return 0
	case registry.ReplicaReady:
		return 2
	}
	return 1
}

// unblocks is how many GPUs, besides r's, keep the yielded gang on r's GPU
// from going on; large when no gang waits there.
func (ps *pass) unblocks(r *registry.Replica) int {
	least := 1 << 20
	for _, id := range r.GPUs {
		g := ps.f.gpu(id)
		if g == nil || g.lent < 0 {
			continue
		}
		busy := 0
		for _, other := range ps.f.jobs[g.lent].gpus {
			if o := &ps.f.gpus[other]; o.fact.Active != r.ID && (o.active && !o.leaving || o.reserved != "") {
				busy++
			}
		}
		least = min(least, busy)
	}
	return least
}

// company counts the other replicas' GPUs in r's islands: retiring a lone
// replica makes the island whole again.
func (ps *pass) company(r *registry.Replica) int {
	c := 0
	for _, id := range r.GPUs {
		g := ps.f.gpu(id)
		if g == nil {
			continue
		}
		in := ps.f.islands[g.island]
		for k := in.lo; k < in.hi; k++ {
			if o := &ps.f.gpus[k]; o.active && o.job < 0 && o.fact.Active != r.ID {
				c++
			}
		}
	}
	return c
}

// retireTo says where a replica goes: back to sleep when it was only waiting
// to wake, asleep when it can and its memory is not in the way of training,
// else it stops.
func (ps *pass) retireTo(n *need, r *registry.Replica) registry.ReplicaPhase {
	spec := &n.model.Spec
	switch {
	case r.Phase == registry.ReplicaWaiting && r.Wake:
		return registry.ReplicaAsleep
	case r.Phase != registry.ReplicaReady || spec.Sleep == "" || spec.ResidentBytes <= 0 || r.Version < n.model.Version:
		return registry.ReplicaStopping
	}
	for _, id := range r.GPUs {
		if g := ps.f.gpu(id); g == nil || !ps.roomToSleep(g, r, spec.ResidentBytes) {
			return registry.ReplicaStopping
		}
	}
	return registry.ReplicaDraining
}

// roomToSleep tells whether whoever trains on g next fits beside the sleeper.
func (ps *pass) roomToSleep(g *floorGPU, r *registry.Replica, bytes int64) bool {
	resident := g.residentBytes + bytes
	if g.lent >= 0 { // the gang that waits for this GPU
		j := &ps.f.jobs[g.lent].job.Spec
		return g.fits(j.ActiveBytes, resident-j.ResidentBytes, 1)
	}
	jobs := 0
	for i := range ps.f.jobs {
		j := &ps.f.jobs[i]
		if j.job.Want != "" {
			continue
		}
		if g.fits(j.job.Spec.ActiveBytes, resident, 1) {
			return true
		}
		jobs++
	}
	return jobs == 0 && (g.memory == 0 || resident < g.memory)
}

// retireOne emits the end, or sleep, of a replica and frees what it had reserved.
func (ps *pass) retireOne(n *need, r *registry.Replica, to registry.ReplicaPhase, why string) {
	timeoutMs := int64(0)
	ps.moved[r.ID] = true
	if to != registry.ReplicaAsleep {
		if timeoutMs = n.model.Spec.DrainTimeoutMs; timeoutMs <= 0 {
			timeoutMs = ps.cfg.DrainTimeoutMs
		}
	}
	ps.emit(registry.Command{ReplicaPhase: &registry.PhaseChange{Name: r.ID, Seq: r.Seq, To: string(to), TimeoutMs: timeoutMs, Reason: why}}, why)
	kind := "stop"
	if to != registry.ReplicaStopping {
		kind = "sleep"
	}
	ps.act(Action{Kind: kind, Object: r.ID, GPUs: len(r.GPUs), PriceGPUMs: ps.patienceMs(n) * int64(len(r.GPUs)), Reason: why})
	for _, id := range r.GPUs {
		g := ps.f.gpu(id)
		if g == nil {
			continue
		}
		if g.reserved == r.ID {
			g.reserved = ""
		}
		if g.fact != nil && g.fact.Active == r.ID {
			g.leaving = true
			if to == registry.ReplicaDraining {
				g.residentBytes += n.model.Spec.ResidentBytes
				g.residents++
			}
		}
	}
}
