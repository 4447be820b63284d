package fill

import (
	"slices"
	"strconv"

	"sluice/nodes/registry"
)

// offer is what it takes to get the needed GPUs of one gang.
type offer struct {
	rung    registry.Rung
	readyMs int64   // until the GPUs are proved free
	cost    float64 // GPU-milliseconds
	world   int     // ranks that go on (shrink)
}

// ladder prices the rungs that free the GPUs marked need in j, and returns the
// cheapest that meets the deadline, or the quickest when none does. It reports
// false when no rung frees them.
//
// Prices, in GPU-milliseconds, for a gang of W GPUs of which n are needed for
// a burst of b:
//
//	yield   W × (yield + resume) + (W − n) × min(b, 2 × restart)
//	shrink  W × stop + W' × restart + W' × restart/2 + dropped × min(b, restart)
//	pause   W × (stop + restart) + (W − n) × min(b, restart)
//
// The idle ends of a yield are bounded since a yielded gang is converted after
// a restart's worth of idling. A shrunk gang pays a second restart if it grows
// again, which is its own choice: half of it is counted. A job that does not
// speak the protocol may also lose what it trained since its last checkpoint:
// that counts by the share of its stops in which it did.
func (ps *pass) ladder(j *floorJob, burstMs, deadlineMs int64) (offer, bool) {
	w, n := float64(len(j.gpus)), float64(j.needN)
	if j.job.Phase != registry.JobRunning {
		// It has not made a step: its generation ends, and nothing but the start is lost.
		lost := float64(ps.nowMs - j.job.GenStartMs + ps.restartMs(j.memo))
		return offer{rung: registry.RungPause, readyMs: ps.stopMs(j.memo), cost: w * lost * ps.fairFactor(j)}, true
	}
	restart, stop := float64(ps.restartMs(j.memo)), float64(ps.stopMs(j.memo))
	burst := float64(burstMs)
	fair := ps.fairFactor(j)
	best := offer{}
	ok := false
	consider := func(o offer) {
		o.cost *= fair
		late, bestLate := o.readyMs > deadlineMs, best.readyMs > deadlineMs
		switch {
		case !ok, !late && bestLate, late && bestLate && o.readyMs < best.readyMs,
			late == bestLate && !late && o.cost < best.cost:
			best, ok = o, true
		}
	}
	if ps.yieldFits(j) {
		on := float64(ps.yieldMs(j.memo) + ps.resumeMs(j.memo))
		consider(offer{rung: registry.RungYield, readyMs: ps.yieldMs(j.memo), cost: w*on + (w-n)*min(burst, 2*restart)})
	}
	speaks := j.job.Spec.SpeaksProtocol()
	if world, kept := ps.shrunk(j); world > 0 && speaks {
		left := float64(world * j.size)
		dropped := float64(kept-world) * float64(j.size)
		consider(offer{rung: registry.RungShrink, readyMs: ps.stopMs(j.memo), world: world,
			cost: w*stop + left*restart*1.5 + dropped*min(burst, restart)})
	}
	lost := 0.0
	if !speaks {
		lost = float64(j.job.UnsavedMs) + w*float64(max(0, ps.nowMs-max(j.job.RunStartedMs, ps.st.LastMs)))
		lost *= lossRisk(j.job)
	}
	consider(offer{rung: registry.RungPause, readyMs: ps.stopMs(j.memo), cost: w*(stop+restart) + (w-n)*min(burst, restart) + lost})
	return best, ok
}

// lossRisk is the share of its stops in which a job that is stopped by signal
// lost its work, as its ledger shows; before any it is taken for a quarter.
func lossRisk(j *registry.Job) float64 {
	stops, lost := 0, 0
	for i := range j.Ledger {
		if e := &j.Ledger[i]; e.Rung != registry.RungFailed {
			stops++
			if e.LostGPUMs > 0 {
				lost++
			}
		}
	}
	return (float64(lost) + 0.25) / float64(stops+1)
}

// yieldFits tells whether the gang can yield in place for what is needed: it
// speaks the protocol, declares what it keeps, and every taker fits beside it.
func (ps *pass) yieldFits(j *floorJob) bool {
	spec := &j.job.Spec
	if !spec.SpeaksProtocol() || spec.ResidentBytes <= 0 || j.job.Phase != registry.JobRunning {
		return false
	}
	for _, i := range j.gpus {
		g := &ps.f.gpus[i]
		if g.need && !g.fits(g.takeBytes, g.residentBytes+spec.ResidentBytes, g.residents+1) {
			return false
		}
	}
	return true
}

// shrunk is the world size that the gang can go on with on the GPUs not
// needed, 0 when none is legal, and the ranks left before rounding.
func (ps *pass) shrunk(j *floorJob) (world, kept int) {
	if j.job.Phase != registry.JobRunning || len(j.gpus) != len(j.job.Ranks)*j.size {
		return 0, 0
	}
	for r := range j.job.Ranks {
		if ps.rankStays(j, r) {
			kept++
		}
	}
	return legalWorld(&j.job.Spec, kept), kept
}

// rankStays tells whether rank r keeps all its GPUs, and is not finished.
func (ps *pass) rankStays(j *floorJob, r int) bool {
	for _, i := range j.gpus[r*j.size : (r+1)*j.size] {
		if g := &ps.f.gpus[i]; g.need || !g.usable && ps.f.nodes[g.node].fact.Draining {
			return false
		}
	}
	return !ps.finished(j, r)
}

// finished tells whether a rank has done all its steps: it counts neither as
// kept nor as a reason to stop anybody. Asked once a plan and gang.
func (ps *pass) finished(j *floorJob, r int) bool {
	if !j.finishedKnown {
		j.finishedKnown = true
		if ps.view.Fleet != nil {
			ps.countFinished(j)
		}
	}
	return slices.Contains(j.finished, r)
}

func (ps *pass) countFinished(j *floorJob) {
	for r := range j.job.Ranks {
		p := &j.job.Ranks[r]
		s := ps.view.Fleet.Nodes[p.Node]
		if s == nil || len(s.Ranks) == 0 {
			continue
		}
		// The name of registry.Job.Holder, made without allocating.
		b := append(append(ps.name[:0], j.name...), ".g"...)
		b = append(strconv.AppendInt(b, j.job.Generation, 10), ".r"...)
		ps.name = strconv.AppendInt(b, int64(j.job.FirstRank(r)), 10)
		seen := s.Ranks[string(ps.name)][p.Rank]
		if seen != nil && seen.Finished {
			j.finished = append(j.finished, r)
		}
	}
}

// keptGPUs are the GPUs of the next generation of world ranks after a shrink.
// Ranks are kept where the gang is densest, so that what it drops lies together.
func (ps *pass) keptGPUs(j *floorJob, world int) []int32 {
	var stay []int
	perNode := map[int32]int{}
	for r := range j.job.Ranks {
		if ps.rankStays(j, r) {
			stay = append(stay, r)
			perNode[ps.f.gpus[j.gpus[r*j.size]].node]++
		}
	}
	slices.SortStableFunc(stay, func(a, b int) int {
		return perNode[ps.f.gpus[j.gpus[b*j.size]].node] - perNode[ps.f.gpus[j.gpus[a*j.size]].node]
	})
	stay = stay[:world]
	slices.Sort(stay)
	var kept []int32
	for _, r := range stay {
		kept = append(kept, j.gpus[r*j.size:(r+1)*j.size]...)
	}
	return kept
}

// legalWorld is the largest legal world size of at most n ranks, 0 when none.
func legalWorld(spec *registry.JobSpec, n int) int {
	n = min(n, spec.MaxWorld)
	n -= n % max(1, spec.WorldMultiple)
	if n < max(1, spec.MinWorld) {
		return 0
	}
	return n
}

// smallestWorld is the smallest legal world size, 0 when none is legal.
func smallestWorld(spec *registry.JobSpec) int {
	m := max(1, spec.WorldMultiple)
	n := (max(1, spec.MinWorld) + m - 1) / m * m
	if n > spec.MaxWorld {
		return 0
	}
	return n
}

// fairFactor makes gangs of tenants above the average share cheaper to stop,
// and those below dearer, by a factor of two at most.
func (ps *pass) fairFactor(j *floorJob) float64 {
	if len(ps.f.tenList) < 2 {
		return 1
	}
	held, weight := 0.0, 0.0
	for _, t := range ps.f.tenList {
		if t.held > 0 {
			held, weight = held+float64(t.held), weight+t.weight
		}
	}
	own := j.tenant.share()
	if own <= 0 || weight <= 0 {
		return 1
	}
	return min(2, max(0.5, held/weight/own))
}

// rankOrder sorts GPUs so that neighbours in rank are neighbours in the floor:
// by node, island, uuid. The floor's own order is just that.
func rankOrder(gpus []int32) { slices.Sort(gpus) }

// ranks makes a placement of GPUs that come in rank order, size GPUs a rank.
func (ps *pass) ranks(j *floorJob, gpus []int32) []registry.RankPlace {
	if len(gpus) == 0 {
		return nil
	}
	out := make([]registry.RankPlace, 0, len(gpus)/j.size)
	ids := make([]string, len(gpus))
	for i, g := range gpus {
		ids[i] = ps.f.gpus[g].uuid
	}
	for lo := 0; lo+j.size <= len(gpus); lo += j.size {
		out = append(out, registry.RankPlace{Rank: len(out), Node: ps.f.nodes[ps.f.gpus[gpus[lo]].node].id, GPUs: ids[lo : lo+j.size : lo+j.size]})
	}
	return out
}
