package router

import "math/bits"

// ScanAll is the number of replicas up to which all are compared; beyond it two are taken at random. With few replicas
// two random choices leave visible unevenness (16 requests on 4 replicas), and comparing them all costs the same.
const ScanAll = 16

// Choices taken at random among more than ScanAll replicas.
const Choices = 2

// Standing says whether a replica may be chosen at all.
type Standing uint8

// The standings. The zero value is Ready.
const (
	Ready   Standing = iota
	Ejected          // failed to connect lately: chosen only if no replica is Ready
	Busy             // answered 429 or 503 a moment ago: alive, and full
	Out              // no lease, draining, or gone from the table
)

// Load is the state of one replica at this moment.
type Load struct {
	InFlight int
	WorkMs   float64 // predicted work in flight, as charged
	Speed    float64 // how much longer than predicted it takes, learned; 0 is read as 1
	Standing Standing
}

// Loads reads counters by slot. A pointer implements it, so that the call does not allocate.
type Loads interface{ Load(slot int) Load }

// Match says that a replica holds so many leading blocks of the prompt.
type Match struct {
	Slot   int
	Blocks int
}

// Verdict of a Pick.
type Verdict uint8

// The verdicts.
const (
	Picked Verdict = iota
	Full           // replicas are there, all full, busy or excluded: wait
	None           // nothing that could ever take it is there now
)

// picker is one choice in progress. It lives on the stack; loads go beside it, as what an interface gets is taken to
// escape, and all that stands in one struct with it.
type picker struct {
	m       *Model
	req     *Request
	matches []Match
	work    float64

	best     int // index in m.Replicas, -1: none
	bestCost float64
	bestLoad int
	ties     uint64
	random   uint64

	full, ejected int // seen, at least once each
	useEjected    bool
}

// Pick chooses the replica with the least predicted work for the request, ties at random, or says why there is none.
// It returns the slot of the choice. rnd is 64 random bits. It allocates nothing and takes no lock; the caller charges
// the choice and may find that another was faster, then it picks again.
func Pick(m *Model, req *Request, loads Loads, matches []Match, rnd uint64) (slot int, verdict Verdict) {
	n := len(m.Replicas)
	if n == 0 {
		return -1, None
	}
	p := picker{m: m, req: req, matches: matches, work: req.Work(), best: -1, random: rnd}
	if req.Version != "" || req.Only != "" {
		return p.pinned(loads)
	}
	first := p.group()
	if first >= 0 && p.fromGroup(loads, m.groups[first]) {
		return m.Replicas[p.best].Slot, Picked
	}
	for i, g := range m.groups { // what was chosen by weight cannot: any version is better than none
		if i != first && p.fromGroup(loads, g) {
			return m.Replicas[p.best].Slot, Picked
		}
	}
	return p.unwell(loads, 0, n)
}

// pinned chooses among the replicas that the request allows.
func (p *picker) pinned(loads Loads) (slot int, verdict Verdict) {
	g := group{to: len(p.m.Replicas)}
	if p.req.Version != "" {
		g = p.m.versionGroup(p.req.Version)
	}
	for i := g.from; p.req.Only != "" && i < g.to; i++ {
		if p.m.Replicas[i].ID == p.req.Only {
			g.from, g.to = i, i+1
		}
	}
	if g.from == g.to || !p.req.Allows(&p.m.Replicas[g.from]) {
		return -1, None
	}
	if p.fromGroup(loads, g) {
		return p.m.Replicas[p.best].Slot, Picked
	}
	return p.unwell(loads, g.from, g.to)
}

// unwell ends a choice that found no replica that is well: one that failed lately is better than a refusal.
func (p *picker) unwell(loads Loads, from, to int) (slot int, verdict Verdict) {
	if p.full == 0 && p.ejected > 0 {
		p.useEjected = true
		p.scan(loads, from, to)
		if p.best >= 0 {
			return p.m.Replicas[p.best].Slot, Picked
		}
		return -1, Full
	}
	if p.full == 0 {
		return -1, None
	}
	return -1, Full
}

// draw returns a number below n from the random bits, and stirs them (splitmix64).
func (p *picker) draw(n int) int {
	p.random += 0x9e3779b97f4a7c15
	z := p.random
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	hi, _ := bits.Mul64(z^z>>31, uint64(n))
	return int(hi)
}

// group draws a version by weight; -1 when no version has any.
func (p *picker) group() int {
	switch {
	case len(p.m.groups) == 1:
		return 0
	case p.m.totalWeight <= 0:
		return -1
	}
	at := p.draw(p.m.totalWeight)
	for i, g := range p.m.groups {
		if at -= g.weight; at < 0 {
			return i
		}
	}
	return len(p.m.groups) - 1
}

func (p *picker) fromGroup(loads Loads, g group) bool {
	n := g.to - g.from
	if n <= ScanAll {
		p.scan(loads, g.from, g.to)
		return p.best >= 0
	}
	i := p.draw(n)
	j := p.draw(n - 1)
	if j >= i {
		j++
	}
	p.consider(loads, g.from+i)
	p.consider(loads, g.from+j)
	for _, match := range p.matches {
		if at := p.index(match.Slot); at >= g.from && at < g.to && at != g.from+i && at != g.from+j {
			p.consider(loads, at)
		}
	}
	if p.best < 0 { // both cannot: look at everyone, from a random start
		p.scan(loads, g.from, g.to)
	}
	return p.best >= 0
}

// index of a slot in m.Replicas, -1 when it belongs to another model. Slots of a model are consecutive.
func (p *picker) index(slot int) int {
	at := slot - p.m.Replicas[0].Slot
	if at < 0 || at >= len(p.m.Replicas) {
		return -1
	}
	return at
}

func (p *picker) scan(loads Loads, from, to int) {
	for i := from; i < to; i++ {
		p.consider(loads, i)
	}
}

// consider takes replica i if it can serve and is cheaper, or as cheap and drawn.
func (p *picker) consider(loads Loads, i int) {
	r := &p.m.Replicas[i]
	load := loads.Load(r.Slot)
	switch {
	case load.Standing == Out:
		return
	case len(p.req.Exclude) > 0 && p.req.excludes(r.ID):
		return
	case load.Standing == Ejected && !p.useEjected:
		p.ejected++
		return
	case load.Standing == Busy || load.InFlight >= r.MaxInFlight:
		p.full++
		return
	}
	speed := load.Speed
	if speed <= 0 {
		speed = 1
	}
	own := p.work
	for _, match := range p.matches {
		if match.Slot == r.Slot {
			own -= p.req.saved(match.Blocks)
		}
	}
	cost := (load.WorkMs + own) * speed
	switch {
	case p.best < 0 || cost < p.bestCost || (cost == p.bestCost && load.InFlight < p.bestLoad):
		p.best, p.bestCost, p.bestLoad, p.ties = i, cost, load.InFlight, 1
	case cost == p.bestCost && load.InFlight == p.bestLoad:
		if p.ties++; p.draw(int(p.ties)) == 0 { // each of the tied is kept with the same chance
			p.best = i
		}
	}
}
