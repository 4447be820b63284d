package fill

import (
	"cmp"
	"slices"
)

// placer finds GPUs for gangs: the tightest domain that holds the whole gang
// (island, node, rack, block, all), in it the best fit, and of equal fits the
// one that strands least. Scratch memory of one plan.
type placer struct {
	f    *floor
	free []int32 // GPUs that training may have, in floor order; claimed ones stay listed
	// room[n] and open[i] are how many GPUs of node n and island i the job at
	// hand may have; touched and isles list those where any were counted, which
	// knownNode and knownIsle mark.
	room      []int32
	knownNode []bool
	knownIsle []bool
	open      []int32
	touched   []int32
	isles     []int32
	// The counts hold for every job of the same memory as long as no free GPU
	// is kept for somebody; they follow what is taken and given back.
	counted bool
	bytes   int64
	gpus    int
	special bool
}

// begin collects what is free for training.
func (p *placer) begin(f *floor) {
	p.f = f
	p.free, p.special = p.free[:0], false
	for i := range f.gpus {
		g := &f.gpus[i]
		if !g.usable || g.active || g.claimed || g.held {
			continue
		}
		if g.lent >= 0 || g.reserved != "" {
			if g.reserved != "" && g.fact.Reserved != "" {
				continue
			}
			p.special = true // opens shows a kept GPU to its own job alone
		}
		p.free = append(p.free, int32(i))
	}
	p.counted, p.touched, p.isles = false, p.touched[:0], p.isles[:0]
	p.room = append(p.room[:0], make([]int32, len(f.nodes))...)
	p.open = append(p.open[:0], make([]int32, len(f.islands))...)
	p.knownNode = append(p.knownNode[:0], make([]bool, len(f.nodes))...)
	p.knownIsle = append(p.knownIsle[:0], make([]bool, len(f.islands))...)
}

// opens tells whether the job may have GPU i: free, or kept for it, not kept
// for another, and with memory for it beside sleepers. A yielded gang's own
// GPUs are for itself: others would keep it from going on.
func (p *placer) opens(j *floorJob, at, i int32) bool {
	g := &p.f.gpus[i]
	if !g.usable || g.active || g.claimed || g.held {
		return false
	}
	if g.reserved != "" && g.reserved != j.name {
		return false
	}
	if g.lent >= 0 {
		return g.lent == at // its own ranks leave before the next generation starts
	}
	return g.fits(j.job.Spec.ActiveBytes, g.residentBytes, g.residents)
}

// count fills room and open for one job and returns how many GPUs it may have.
func (p *placer) count(j *floorJob, at int32) int {
	if p.counted && !p.special && p.bytes == j.job.Spec.ActiveBytes {
		return p.gpus
	}
	for _, n := range p.touched {
		p.room[n], p.knownNode[n] = 0, false
	}
	for _, i := range p.isles {
		p.open[i], p.knownIsle[i] = 0, false
	}
	p.touched, p.isles, p.gpus = p.touched[:0], p.isles[:0], 0
	for _, i := range p.free {
		if !p.opens(j, at, i) {
			continue
		}
		g := &p.f.gpus[i]
		if !p.knownNode[g.node] {
			p.touched, p.knownNode[g.node] = append(p.touched, g.node), true
		}
		if !p.knownIsle[g.island] {
			p.isles, p.knownIsle[g.island] = append(p.isles, g.island), true
		}
		p.room[g.node]++
		p.open[g.island]++
		p.gpus++
	}
	p.counted, p.bytes = true, j.job.Spec.ActiveBytes
	return p.gpus
}

// ranks is how many ranks of j node n has room for.
func (p *placer) ranks(n int32, j *floorJob) int { return int(p.room[n]) / j.size }

// place finds world ranks' GPUs in rank order, nil when they do not fit.
// It must follow count for the same job.
func (p *placer) place(j *floorJob, at int32, world int) []int32 {
	need := int32(world * j.size)
	best, left := int32(-1), int32(1<<30)
	for _, i := range p.isles {
		// Best fit; of equal ones the island of the node with least room, so
		// that whole nodes stay free.
		if o := p.open[i]; o >= need && (o-need < left || o-need == left && p.room[p.nodeOf(i)] < p.room[p.nodeOf(best)]) {
			best, left = i, o-need
		}
	}
	if best >= 0 {
		return p.pick(nil, j, at, p.f.islands[best], world)
	}
	best, left = -1, 1<<30
	for _, n := range p.touched {
		if r := p.ranks(n, j); r >= world && int32(r-world) < left {
			best, left = n, int32(r-world)
		}
	}
	if best >= 0 {
		return p.pick(nil, j, at, p.f.nodes[best].gpus, world)
	}
	return p.spread(j, at, world)
}

func (p *placer) nodeOf(island int32) int32 {
	return p.f.gpus[p.f.islands[island].lo].node
}

// spread places a gang over several nodes of the tightest domain.
func (p *placer) spread(j *floorJob, at int32, world int) []int32 {
	all := 0
	for _, n := range p.touched {
		all += p.ranks(n, j)
	}
	if all < world {
		return nil
	}
	slices.Sort(p.touched)
	for _, domain := range []func(*floorNode) int32{rackOf, blockOf, everywhere} {
		if lo, hi := p.tightest(domain, j, world); hi > lo {
			return p.over(p.touched[lo:hi], j, at, world)
		}
	}
	return nil
}

func rackOf(n *floorNode) int32   { return n.rack }
func blockOf(n *floorNode) int32  { return n.block }
func everywhere(*floorNode) int32 { return 0 }

// tightest is the run of touched nodes of one domain that holds world ranks
// with the least room left over; nodes come in order of block and rack.
func (p *placer) tightest(domain func(*floorNode) int32, j *floorJob, world int) (lo, hi int) {
	left := 1 << 30
	for i := 0; i < len(p.touched); {
		d, sum, k := domain(&p.f.nodes[p.touched[i]]), 0, i
		for ; k < len(p.touched) && domain(&p.f.nodes[p.touched[k]]) == d; k++ {
			sum += p.ranks(p.touched[k], j)
		}
		if sum >= world && sum-world < left {
			lo, hi, left = i, k, sum-world
		}
		i = k
	}
	return lo, hi
}

// over uses the fewest nodes: the roomiest first, and for the rest the node
// that it fills best.
func (p *placer) over(from []int32, j *floorJob, at int32, world int) []int32 {
	nodes := slices.Clone(from)
	slices.SortFunc(nodes, func(a, b int32) int {
		return cmp.Or(cmp.Compare(p.ranks(b, j), p.ranks(a, j)), cmp.Compare(a, b))
	})
	var out []int32
	for k := 0; world > 0 && k < len(nodes); k++ {
		n := nodes[k]
		if p.ranks(n, j) >= world {
			for _, m := range nodes[k+1:] {
				if r := p.ranks(m, j); r >= world && r < p.ranks(n, j) {
					n = m
				}
			}
		}
		ranks := min(world, p.ranks(n, j))
		out = p.pick(out, j, at, p.f.nodes[n].gpus, ranks)
		world -= ranks
	}
	slices.Sort(out) // ranks by node: within a node pick already kept islands together
	return out
}

// pick appends ranks' GPUs of one span, whole islands and the fullest-fitting
// first, in floor order.
func (p *placer) pick(out []int32, j *floorJob, at int32, s span, ranks int) []int32 {
	need := ranks * j.size
	lo := len(out)
	var isles []int32
	for i := s.lo; i < s.hi; i++ {
		if is := p.f.gpus[i].island; p.open[is] > 0 && (len(isles) == 0 || isles[len(isles)-1] != is) {
			isles = append(isles, is)
		}
	}
	slices.SortStableFunc(isles, func(a, b int32) int { return cmp.Compare(p.open[b], p.open[a]) })
	for k, is := range isles {
		left := need - (len(out) - lo)
		if left <= 0 {
			break
		}
		if int(p.open[is]) >= left { // the last one: the island it fills best
			for _, other := range isles[k+1:] {
				if int(p.open[other]) >= left {
					is = other
				}
			}
		}
		for i := p.f.islands[is].lo; i < p.f.islands[is].hi && len(out)-lo < need; i++ {
			if p.opens(j, at, i) {
				out = append(out, i)
			}
		}
	}
	slices.Sort(out[lo:])
	return out
}

// take claims GPUs for a gang.
func (p *placer) take(gpus []int32) { p.shift(gpus, true, -1) }

// giveBack undoes take.
func (p *placer) giveBack(gpus []int32) { p.shift(gpus, false, 1) }

// shift claims or frees GPUs and keeps the counts right, or gives them up
// where they did not cover a GPU.
func (p *placer) shift(gpus []int32, claimed bool, by int32) {
	for _, i := range gpus {
		g := &p.f.gpus[i]
		if g.claimed == claimed {
			continue
		}
		g.claimed = claimed
		if p.counted = p.counted && p.knownNode[g.node] && p.knownIsle[g.island]; p.counted {
			p.room[g.node] += by
			p.open[g.island] += by
			p.gpus += int(by)
		}
	}
}

// left is how many GPUs training may still have.
func (p *placer) left() int {
	n := 0
	for _, i := range p.free {
		if !p.f.gpus[i].claimed {
			n++
		}
	}
	return n
}
