package fill

import (
	"cmp"
	"fmt"
	"slices"

	"sluice/nodes/registry"
)

// rankPriorities gives every gang a dense rank among its tenant's: the lowest
// is 0 whatever number its owner wrote.
func (ps *pass) rankPriorities() {
	byTenant := map[*floorTenant][]int{}
	for i := range ps.f.jobs {
		j := &ps.f.jobs[i]
		if len(j.gpus) > 0 && !slices.Contains(byTenant[j.tenant], j.job.Spec.Priority) {
			byTenant[j.tenant] = append(byTenant[j.tenant], j.job.Spec.Priority)
		}
	}
	for _, ps := range byTenant {
		slices.Sort(ps)
	}
	for i := range ps.f.jobs {
		j := &ps.f.jobs[i]
		j.priority, _ = slices.BinarySearch(byTenant[j.tenant], j.job.Spec.Priority)
	}
}

// keepPromises holds what was freed for a tenant's share until the gang it was
// freed for is placed, or the promise has run out.
func (ps *pass) keepPromises() {
	for i := range ps.f.jobs {
		j := &ps.f.jobs[i]
		if j.memo.promise == nil {
			continue
		}
		if !ps.waits(j) || ps.nowMs >= j.memo.promiseMs {
			j.memo.promise = nil
			continue
		}
		for _, id := range j.memo.promise {
			if g := ps.f.gpu(id); g != nil && g.usable && !g.claimed && g.reserved == "" {
				g.reserved = j.name
			}
		}
	}
	ps.placer.begin(ps.f)
}

// settleLimits plans the shrink of tenants above their limit: a quota that was
// lowered is met by agreed stops, never by a kill.
func (ps *pass) settleLimits() {
	for _, t := range ps.f.tenList {
		if t.limit <= 0 || t.held <= t.limit {
			continue
		}
		for _, at := range ps.givers(func(j *floorJob) bool { return j.tenant == t }) {
			over := t.held - t.limit
			if over <= 0 {
				break
			}
			why := fmt.Sprintf("tenant %s holds %d GPUs; its limit is %d", t.name, t.held, t.limit)
			ps.give(&ps.f.jobs[at], over, "", why)
		}
	}
}

// givers are the running gangs that may be asked to give for a share, in the
// order in which they are asked: greatest share, lowest priority, least to lose.
func (ps *pass) givers(may func(*floorJob) bool) []int32 {
	var out []int32
	for i := range ps.f.jobs {
		j := &ps.f.jobs[i]
		if j.job.Phase == registry.JobRunning && !j.touched && may(j) {
			out = append(out, int32(i))
		}
	}
	slices.SortFunc(out, func(a, b int32) int {
		x, y := &ps.f.jobs[a], &ps.f.jobs[b]
		return cmp.Or(cmp.Compare(y.tenant.share(), x.tenant.share()), cmp.Compare(x.priority, y.priority),
			cmp.Compare(ps.restartMs(x.memo)*int64(len(x.gpus))+x.job.UnsavedMs, ps.restartMs(y.memo)*int64(len(y.gpus))+y.job.UnsavedMs),
			cmp.Compare(x.name, y.name))
	})
	return out
}

// give stops a gang so that at least gpus GPUs come free: smaller when that is
// enough and legal, whole otherwise. It returns what comes free.
func (ps *pass) give(j *floorJob, gpus int, beneficiary, why string) []int32 {
	next := ps.givesDownTo(j, gpus)
	freed := ps.minus(j.gpus, next)
	price := ps.restartMs(j.memo) * int64(len(j.gpus))
	ps.act(Action{Kind: "evict", Object: j.name, Beneficiary: beneficiary, Rung: registry.RungQuota, GPUs: len(freed), PriceGPUMs: price, Reason: why})
	ps.stopJob(j, registry.RungQuota, next, beneficiary, why)
	return freed
}

// givesDownTo is what the gang keeps when it gives gpus GPUs; nil when it must
// pause.
func (ps *pass) givesDownTo(j *floorJob, gpus int) []int32 {
	if !j.job.Spec.SpeaksProtocol() || len(j.gpus) != len(j.job.Ranks)*j.size {
		return nil
	}
	kept := 0
	for r := range j.job.Ranks {
		if ps.rankStays(j, r) {
			kept++
		}
	}
	world := legalWorld(&j.job.Spec, min(kept, (len(j.gpus)-gpus)/j.size))
	if world == 0 {
		return nil
	}
	return ps.keptGPUs(j, world)
}

func (ps *pass) minus(all, kept []int32) []int32 {
	var out []int32
	for _, i := range all {
		if !slices.Contains(kept, i) {
			out = append(out, i)
		}
	}
	return out
}

// giveGuarantees frees GPUs for waiting gangs of tenants below their guarantee,
// from tenants that borrow; for those of higher priority, from lower ones of
// their own tenant; and, with slack, for tenants far below their fair
// share from those far above. Equal ones never stop each other: after giving,
// the giver must still be better off, so no two can take in turns.
func (ps *pass) giveGuarantees() {
	served := map[*floorTenant]bool{}
	for i := range ps.f.jobs {
		if j := &ps.f.jobs[i]; j.memo.promise != nil {
			served[j.tenant] = true // one at a time
		}
	}
	for t, q := range ps.queues() {
		if len(q) > 0 && !served[t] {
			ps.heads = append(ps.heads, q[0])
		}
	}
	slices.SortFunc(ps.heads, func(a, b int32) int {
		x, y := ps.f.jobs[a].tenant, ps.f.jobs[b].tenant
		switch {
		case x.before(y):
			return -1
		case y.before(x):
			return 1
		}
		return 0
	})
	for _, at := range ps.heads {
		j := &ps.f.jobs[at]
		least := smallestWorld(&j.job.Spec)
		if least == 0 || (j.cause != CauseShortage && j.cause != CauseFragmentation) {
			continue
		}
		// Within its guarantee a gang gets the size it asks for; beyond it, a start.
		ps.giveTo(j, at, max(least, legalWorld(&j.job.Spec, (j.tenant.guarantee-j.tenant.held)/j.size))*j.size)
	}
}

// mayAsk is how many GPUs a gang's tenant may lose to j's tenant.
func (ps *pass) mayAsk(j, giver *floorJob, want int) int {
	if ps.nowMs-giver.job.RunStartedMs < ps.cfg.MinRunMs {
		return 0
	}
	t, o := j.tenant, giver.tenant
	if t == o {
		// Within a tenant a strictly higher priority goes first: no two can take in turns.
		if giver.job.Spec.Priority < j.job.Spec.Priority {
			return o.held
		}
		return 0
	}
	if t.held+want <= t.guarantee {
		return max(0, o.held-o.guarantee)
	}
	after := (float64(t.held+want) / t.weight) * (1 + ps.cfg.ShareSlack) * o.weight
	return max(0, o.held-max(o.guarantee, int(after+0.999)))
}

func (ps *pass) giveTo(j *floorJob, at int32, want int) {
	open := ps.openFor(j, at)
	lack := want - len(open)
	var asked []int32
	spare := map[*floorTenant]int{}
	freed := 0
	for _, g := range ps.givers(func(o *floorJob) bool { return ps.mayAsk(j, o, want) > 0 }) {
		giver := &ps.f.jobs[g]
		if _, ok := spare[giver.tenant]; !ok {
			spare[giver.tenant] = ps.mayAsk(j, giver, want)
		}
		loses := len(giver.gpus) - len(ps.givesDownTo(giver, lack-freed))
		if loses > spare[giver.tenant] || lack-freed <= 0 {
			continue
		}
		asked = append(asked, g)
		spare[giver.tenant] -= loses
		freed += loses
		if len(asked) >= maxQuotaVictims {
			break
		}
	}
	// Spare whom the others make needless, the last asked first.
	for k := len(asked) - 1; k >= 0 && freed >= lack; k-- {
		giver := &ps.f.jobs[asked[k]]
		if loses := len(giver.gpus); freed-loses >= lack {
			asked = slices.Delete(asked, k, k+1)
			freed -= loses
		}
	}
	if freed < lack || len(asked) == 0 || !ps.ranksFit(j, open, asked, want) {
		return // nothing is stopped for a gang that still could not start
	}
	ps.promiseTo(j, open, asked, lack)
}

// openFor are the GPUs that a waiting gang could have now.
func (ps *pass) openFor(j *floorJob, at int32) []int32 {
	var out []int32
	for _, i := range ps.placer.free {
		if ps.placer.opens(j, at, i) {
			out = append(out, i)
		}
	}
	return out
}

// ranksFit tells whether what is open and what comes free holds whole ranks.
func (ps *pass) ranksFit(j *floorJob, open, asked []int32, want int) bool {
	perNode := map[int32]int{}
	for _, i := range open {
		perNode[ps.f.gpus[i].node]++
	}
	lack := want - len(open)
	for _, a := range asked {
		giver := &ps.f.jobs[a]
		freed := ps.minus(giver.gpus, ps.givesDownTo(giver, lack))
		lack -= len(freed)
		for _, i := range freed {
			if g := &ps.f.gpus[i]; g.usable && g.fits(j.job.Spec.ActiveBytes, g.residentBytes, g.residents) {
				perNode[g.node]++
			}
		}
	}
	ranks := 0
	for _, n := range perNode {
		ranks += n / j.size
	}
	return ranks*j.size >= want
}

func (ps *pass) promiseTo(j *floorJob, open, asked []int32, lack int) {
	for _, i := range open {
		j.memo.promise = append(j.memo.promise, ps.f.gpus[i].uuid)
		ps.f.gpus[i].reserved = j.name
	}
	waitMs := int64(0)
	for _, a := range asked {
		giver := &ps.f.jobs[a]
		why := fmt.Sprintf("tenant %s holds %d GPUs and %s waits within its share; tenant %s holds %d",
			j.tenant.name, j.tenant.held, j.name, giver.tenant.name, giver.tenant.held)
		if giver.tenant == j.tenant {
			why = fmt.Sprintf("%s waits with priority %d; %s has %d", j.name, j.job.Spec.Priority, giver.name, giver.job.Spec.Priority)
		}
		freed := ps.give(giver, lack, j.name, why)
		lack -= len(freed)
		waitMs = max(waitMs, ps.stopTimeoutMs(giver, registry.RungQuota))
		for _, i := range freed {
			j.memo.promise = append(j.memo.promise, ps.f.gpus[i].uuid)
			ps.f.gpus[i].reserved = j.name
		}
	}
	j.memo.promiseMs = ps.nowMs + waitMs + releaseTimeoutMs + ps.cfg.StopTimeoutMs
	j.cause, j.text = CauseQuota, "GPUs lent to other tenants are on their way back"
}
