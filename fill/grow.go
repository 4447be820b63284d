package fill

import (
	"cmp"
	"fmt"
	"slices"

	"sluice/nodes/registry"
)

// moveFromDraining moves gangs off nodes that drain: at their size when the
// rest of the fleet has room, smaller when not, paused when nothing fits.
func (ps *pass) moveFromDraining() {
	for i := range ps.f.jobs {
		j := &ps.f.jobs[i]
		if (j.job.Phase != registry.JobRunning && j.job.Phase != registry.JobYielded) || j.touched || !ps.onDraining(j) {
			continue
		}
		next := ps.elsewhere(j, int32(i), len(j.job.Ranks))
		why := "its node drains"
		if next == nil {
			why += "; no room elsewhere, so it pauses"
		}
		ps.act(Action{Kind: "move", Object: j.name, Rung: registry.RungMove, GPUs: len(next), PriceGPUMs: ps.restartMs(j.memo) * int64(len(j.gpus)), Reason: why})
		ps.stopJob(j, registry.RungMove, next, "", why)
		ps.placer.take(next)
	}
}

func (ps *pass) onDraining(j *floorJob) bool {
	return slices.ContainsFunc(j.gpus, func(i int32) bool {
		return ps.f.nodes[ps.f.gpus[i].node].fact.Draining
	})
}

// elsewhere places a running or yielded gang anew, at the largest legal world
// up to most, on free GPUs and on those of its own that nobody else took.
func (ps *pass) elsewhere(j *floorJob, at int32, most int) []int32 {
	own := []int32{}
	for _, i := range j.gpus {
		g := &ps.f.gpus[i]
		if !g.usable || g.claimed || g.reserved != "" || g.active && g.job != at {
			continue
		}
		own = append(own, i)
		g.active, g.lent = false, at
	}
	was := ps.placer.free
	ps.placer.free = slices.Concat(was, own)
	slices.Sort(ps.placer.free)
	ps.placer.free = slices.Compact(ps.placer.free)
	ps.placer.counted = false
	ps.placer.count(j, at)
	var next []int32
	spec := &j.job.Spec
	for world := legalWorld(spec, most); world >= max(1, spec.MinWorld) && next == nil; world -= max(1, spec.WorldMultiple) {
		next = ps.placer.place(j, at, world)
	}
	for _, i := range own {
		g := &ps.f.gpus[i]
		g.active = g.fact.Active != ""
		if j.job.Phase != registry.JobYielded {
			g.lent = -1
		}
	}
	ps.placer.free, ps.placer.counted = was, false
	return next
}

// convertYielded ends the waiting of gangs that yielded and whose GPUs did not
// all come back: when the wait has cost a restart, they go on with what they
// have left and what is free elsewhere. Until then their memory is worth more;
// so waiting and restarting together cost twice the optimum at most.
func (ps *pass) convertYielded() {
	for i := range ps.f.jobs {
		j := &ps.f.jobs[i]
		if j.job.Phase != registry.JobYielded || j.touched || j.job.Want != "" {
			continue
		}
		priceMs := ps.restartMs(j.memo) + ps.stopMs(j.memo)
		if ps.nowMs-j.job.SinceMs < priceMs || !ps.mayReturn(j.memo, priceMs, len(j.gpus)) {
			continue
		}
		most := len(j.job.Ranks)
		if j.tenant.limit > 0 {
			most = min(most, most+(j.tenant.limit-j.tenant.held)/j.size)
		}
		next := ps.elsewhere(j, int32(i), most)
		rung := registry.RungShrink
		why := fmt.Sprintf("waited %d ms for its GPUs; goes on with %d ranks", ps.nowMs-j.job.SinceMs, len(next)/j.size)
		switch {
		case len(next) == len(j.gpus):
			rung = registry.RungMove
		case next == nil:
			other := ps.couldUse(j)
			if other == "" {
				continue
			}
			rung = registry.RungPause
			why = fmt.Sprintf("waited %d ms for its GPUs; %s can use those that are idle", ps.nowMs-j.job.SinceMs, other)
		}
		ps.spendReturn(j.memo, priceMs, max(len(next), 1))
		ps.act(Action{Kind: "convert", Object: j.name, Rung: rung, GPUs: len(next), PriceGPUMs: priceMs * int64(len(next)), Reason: why})
		ps.stopJob(j, rung, next, "", why)
		ps.placer.take(next)
	}
}

// couldUse names a waiting gang that the idle GPUs of a yielded one, with what
// is free, would let start.
func (ps *pass) couldUse(j *floorJob) string {
	idle := 0
	for _, i := range j.gpus {
		if ps.f.gpus[i].free() {
			idle++
		}
	}
	if idle == 0 {
		return ""
	}
	for i := range ps.f.jobs {
		o := &ps.f.jobs[i]
		if o != j && ps.waits(o) && o.cause == CauseShortage && smallestWorld(&o.job.Spec)*o.size <= idle+ps.looseGPUs() {
			return o.name
		}
	}
	return ""
}

// looseGPUs counts free GPUs that no yielded gang waits for.
func (ps *pass) looseGPUs() int {
	n := 0
	for _, i := range ps.placer.free {
		if g := &ps.f.gpus[i]; g.free() && g.lent < 0 {
			n++
		}
	}
	return n
}

// growOne lets one elastic gang take free GPUs, if the restart pays: what it
// gains over its expected stay exceeds what stopping and starting costs.
func (ps *pass) growOne() {
	if ps.placer.left() == 0 {
		return
	}
	var order []int32
	for i := range ps.f.jobs {
		j := &ps.f.jobs[i]
		if j.memo.growing {
			return // one at a time: the next may need what this one leaves
		}
		if ps.mayGrow(j) {
			order = append(order, int32(i))
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int {
		x, y := &ps.f.jobs[a], &ps.f.jobs[b]
		return cmp.Or(cmp.Compare(x.tenant.share(), y.tenant.share()), cmp.Compare(y.job.Spec.Priority, x.job.Spec.Priority),
			cmp.Compare(len(x.gpus), len(y.gpus)))
	})
	for _, at := range order {
		if ps.grow(&ps.f.jobs[at], at) {
			return
		}
	}
}

func (ps *pass) mayGrow(j *floorJob) bool {
	return j.job.Phase == registry.JobRunning && !j.touched && j.job.Want == "" && j.job.Spec.SpeaksProtocol() &&
		len(j.gpus) == len(j.job.Ranks)*j.size &&
		legalWorld(&j.job.Spec, j.job.Spec.MaxWorld) > len(j.job.Ranks) &&
		ps.nowMs-max(j.job.RunStartedMs, j.job.GenStartMs) >= ps.cfg.GrowAfterMs
}

func (ps *pass) grow(j *floorJob, at int32) bool {
	extra := ps.nearest(j, at)
	room := ps.withinLimit(j.tenant, len(extra)) / j.size
	world := legalWorld(&j.job.Spec, len(j.job.Ranks)+room)
	add := (world - len(j.job.Ranks)) * j.size
	if add <= 0 {
		return false
	}
	priceMs := ps.stopMs(j.memo) + ps.restartMs(j.memo)
	stayMs := ps.fleet.stay.valueMs(ps.cfg.StayMs)
	if int64(add)*stayMs <= priceMs*int64(len(j.gpus)) || !ps.mayReturn(j.memo, priceMs, len(j.gpus)) {
		return false
	}
	next := append(slices.Clone(j.gpus), extra[:add]...)
	next = ps.byRank(next, j.size)
	ps.spendReturn(j.memo, priceMs, len(j.gpus))
	why := fmt.Sprintf("%d free GPUs for an expected %d s are worth a restart of %d ms", add, stayMs/1000, priceMs)
	ps.act(Action{Kind: "grow", Object: j.name, Rung: registry.RungGrow, GPUs: add, PriceGPUMs: priceMs * int64(len(j.gpus)), Reason: why})
	ps.stopJob(j, registry.RungGrow, next, "", why)
	ps.placer.take(extra[:add])
	j.memo.growing = true
	return true
}

// nearest lists free GPUs that the gang may take, whole ranks only, nearest
// first: its islands, its nodes, its racks, its blocks, the rest.
func (ps *pass) nearest(j *floorJob, at int32) []int32 {
	ps.placer.count(j, at)
	type home struct{ islands, nodes, racks, blocks map[int32]bool }
	h := home{map[int32]bool{}, map[int32]bool{}, map[int32]bool{}, map[int32]bool{}}
	for _, i := range j.gpus {
		g := &ps.f.gpus[i]
		n := &ps.f.nodes[g.node]
		h.islands[g.island], h.nodes[g.node], h.racks[n.rack], h.blocks[n.block] = true, true, true, true
	}
	far := func(n int32) int {
		node := &ps.f.nodes[n]
		switch {
		case h.nodes[n]:
			return 0
		case h.racks[node.rack]:
			return 1
		case h.blocks[node.block]:
			return 2
		}
		return 3
	}
	nodes := slices.Clone(ps.placer.touched)
	slices.SortFunc(nodes, func(a, b int32) int {
		return cmp.Or(cmp.Compare(far(a), far(b)), cmp.Compare(ps.placer.ranks(b, j), ps.placer.ranks(a, j)), cmp.Compare(a, b))
	})
	var out []int32
	for _, n := range nodes {
		if r := ps.placer.ranks(n, j); r > 0 {
			out = ps.placer.pick(out, j, at, ps.f.nodes[n].gpus, r)
		}
	}
	return out
}

// byRank orders the GPUs of whole ranks: floor order keeps the GPUs of a node
// together, and every node holds whole ranks.
func (ps *pass) byRank(gpus []int32, _ int) []int32 {
	rankOrder(gpus)
	return gpus
}
