package own

import (
	"math"
	"sync/atomic"

	"sluice/router"
	"sluice/router/prefix"
)

// always is the lease deadline of a replica that needs no lease.
const always = math.MaxInt64

// Bounds of what is learned of a replica.
const (
	learnRate = 0.05 // weight of a new sample: about the last 20 count
	maxSpeed  = 4    // a replica counts as at most that much slower or faster than its model's mean
)

// counter is the load of one replica. It lives as long as the replica is in the table or has requests in flight, across
// tables. All fields are atomic: the fast path takes no lock.
type counter struct {
	num      prefix.Replica // its name in the prefix index
	inFlight atomic.Int64
	workUs   atomic.Int64 // predicted work in flight

	// leaseMs is the fleet time until which it may be chosen: always without a lease, 0 when draining or gone.
	// Charging adds to inFlight, then reads leaseMs; giving up clears leaseMs, then reads inFlight.
	leaseMs atomic.Int64

	busyMs  atomic.Int64 // left alone until then: it said 429 or 503
	busyRow atomic.Int32
	ejectMs atomic.Int64 // ejected until then: it could not be reached
	failRow atomic.Int32
	ratio   floatCell // milliseconds held per millisecond of predicted work
	lease   lease     // guarded by keeper.mu
}

// floatCell is an atomic float64 that averages.
type floatCell struct{ bits atomic.Uint64 }

func (f *floatCell) load() float64 { return math.Float64frombits(f.bits.Load()) }

// learn moves the average toward x; the first x is taken whole. A lost race loses one sample.
func (f *floatCell) learn(x float64) {
	old := f.bits.Load()
	next := x
	if was := math.Float64frombits(old); was > 0 {
		next = was + learnRate*(x-was)
	}
	f.bits.CompareAndSwap(old, math.Float64bits(next))
}

// charge adds one request, or undoes it and returns false when there was no room or no lease.
func (c *counter) charge(maxInFlight int, workUs, nowMs int64) bool {
	if c.inFlight.Add(1) > int64(maxInFlight) || c.leaseMs.Load() <= nowMs {
		c.inFlight.Add(-1)
		return false
	}
	c.workUs.Add(workUs)
	return true
}

func (c *counter) discharge(workUs int64) {
	c.workUs.Add(-workUs)
	if c.inFlight.Add(-1) < 0 {
		panic("own: in-flight count below zero")
	}
}

// standing at nowMs.
func (c *counter) standing(nowMs int64) router.Standing {
	switch {
	case c.leaseMs.Load() <= nowMs:
		return router.Out
	case c.ejectMs.Load() > nowMs:
		return router.Ejected
	case c.busyMs.Load() > nowMs:
		return router.Busy
	}
	return router.Ready
}

// connected forgives what was held against it.
func (c *counter) connected() {
	if c.failRow.Load() != 0 {
		c.failRow.Store(0)
		c.ejectMs.Store(0)
	}
}

// unreachable counts a failed connect and ejects after so many in a row, for a doubling time.
func (c *counter) unreachable(cfg *Config, nowMs int64) {
	n := int(c.failRow.Add(1))
	if n >= cfg.EjectAfter {
		c.ejectMs.Store(nowMs + doubled(cfg.EjectMs, n-cfg.EjectAfter, cfg.MaxEjectMs))
	}
}

// saidBusy leaves it alone for as long as it asked, or a doubling time, within bounds.
func (c *counter) saidBusy(cfg *Config, nowMs, retryAfterMs int64) {
	wait := doubled(cfg.BusyMs, int(c.busyRow.Add(1))-1, cfg.MaxBusyMs)
	if retryAfterMs > 0 {
		wait = max(cfg.BusyMs, min(retryAfterMs, cfg.MaxBusyMs))
	}
	c.busyMs.Store(nowMs + wait)
}

func doubled(ms int64, times int, limit int64) int64 {
	return min(limit, ms<<min(times, 20))
}

// live is one table with its counters, read by everyone through one pointer and never changed.
type live struct {
	table    *router.Table
	counters []*counter // by slot
	lines    map[string]*line
	slots    map[prefix.Replica]int
}

// choice reads loads for one Pick at one moment; it is part of the ticket, so that it costs no allocation of its own.
type choice struct {
	live    *live
	line    *line
	nowMs   int64
	first   int     // slot of the model's first replica
	reserve float64 // share of slots left free
}

// limit is how many requests may be in flight on the replica for one more of this class to go there. What is reserved
// is spread over the replicas, so that small ones reserve a whole slot here and there instead of a part everywhere.
func (c *choice) limit(r *router.Replica) int {
	if c.reserve <= 0 {
		return r.MaxInFlight
	}
	each, i := c.reserve*float64(r.MaxInFlight), float64(r.Slot-c.first)
	kept := int(each*(i+1)) - int(each*i)
	return max(1, r.MaxInFlight-kept)
}

// Load implements router.Loads.
func (c *choice) Load(slot int) router.Load {
	counter := c.live.counters[slot]
	speed := 1.0
	if own, mean := counter.ratio.load(), c.line.ratio.load(); own > 0 && mean > 0 {
		speed = max(1.0/maxSpeed, min(maxSpeed, own/mean))
	}
	load := router.Load{
		InFlight: int(counter.inFlight.Load()),
		WorkMs:   float64(counter.workUs.Load()) / 1000,
		Speed:    speed,
		Standing: counter.standing(c.nowMs),
	}
	if load.Standing == router.Ready && c.reserve > 0 && load.InFlight >= c.limit(c.live.table.Replica(slot)) {
		load.Standing = router.Busy
	}
	return load
}
