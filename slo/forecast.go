package slo

import (
	"fmt"
	"math"
	"slices"
)

// Limits and constants of the forecast.
const (
	// minGrowths seen before growth is trusted; until then firstGrowth stands in.
	minGrowths  = 30
	firstGrowth = 1.5
	// settledWeight of the smoothed rate, from which on its growth is learned: two half-lives after the first arrival.
	settledWeight = 0.75
	// adaptRate of the conformal correction (Gibbs and Candès 2021): a miss raises the quantile that is taken by
	// adaptRate × target, a hit lowers it a little, so that in the long run the target share is covered.
	adaptRate   = 0.02
	maxQuantile = 0.999
	// coverageMemory is the share of the old score kept at each new one: about the last 500 steps count.
	coverageMemory = 0.998
)

// Forecast tells demand at a horizon as a quantile of how demand has grown over past stretches of that length.
//
// Growth is measured between square roots of rates, since the noise of a count grows with its root: growth seen at
// night applies by day and the other way round. It remembers a fixed ring of steps and never allocates after NewForecast.
// It scores itself: each forecast is held against what came, and the quantile taken is corrected by it.
// Not safe for concurrent use.
type Forecast struct {
	stepMs   int64
	keep     float64 // share of the old rate kept at each step
	target   float64 // wanted coverage
	quantile float64 // taken now, moved by its own misses

	step  int64 // running step: fleet time / stepMs
	began bool
	count float64 // arrivals in the running step

	rate    float64   // of the last closed step, per s, smoothed
	warm    float64   // 1 − weight of the rate's start at zero
	roots   []float64 // √rate by step % len
	counts  []float64 // arrivals by step % len
	closed  int       // steps held, up to len
	due     []float64 // forecast for a step, by step % len; 0 when none was made
	scratch []float64

	covered float64
	scored  int
}

// NewForecast returns a forecast for c's StepMs, Steps, HalfLifeMs and Quantile.
func NewForecast(c Config) (*Forecast, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("forecast: %w", err)
	}
	return &Forecast{
		stepMs: c.StepMs, target: c.Quantile, quantile: c.Quantile,
		keep:  math.Exp2(-float64(c.StepMs) / float64(c.HalfLifeMs)),
		roots: make([]float64, c.Steps), counts: make([]float64, c.Steps), due: make([]float64, c.Steps),
		scratch: make([]float64, 0, c.Steps), covered: c.Quantile,
	}, nil
}

// Arrived counts n arrivals at nowMs.
func (f *Forecast) Arrived(nowMs int64, n int) {
	f.advance(nowMs)
	f.count += float64(n)
}

// advance closes the steps that ended before nowMs. A gap longer than the ring is walked once round, no longer.
func (f *Forecast) advance(nowMs int64) {
	now := max(0, nowMs) / f.stepMs
	if !f.began {
		f.step, f.began = now, true
	}
	if gap := now - f.step; gap > int64(len(f.roots))+1 {
		f.closeStep()
		f.step = now - int64(len(f.roots))
	}
	for f.step < now {
		f.closeStep()
	}
}

func (f *Forecast) closeStep() {
	perS := f.count * 1000 / float64(f.stepMs)
	f.rate = f.keep*f.rate + (1-f.keep)*perS
	f.warm = f.keep*f.warm + (1 - f.keep)
	at := f.step % int64(len(f.roots))
	rate := f.RateRps()
	f.roots[at], f.counts[at] = math.Sqrt(rate), f.count
	if f.warm < settledWeight {
		f.closed = 0 // the first rates are the noise of single arrivals: no growth is learned from them
	}
	f.closed = min(f.closed+1, len(f.roots))
	f.score(at, rate)
	f.step++
	f.count = 0
}

func (f *Forecast) score(at int64, rate float64) {
	due := f.due[at]
	f.due[at] = 0
	if due <= 0 {
		return
	}
	hit, miss := 1.0, 0.0
	if rate > due {
		hit, miss = 0, 1
	}
	f.covered = coverageMemory*f.covered + (1-coverageMemory)*hit
	f.scored++
	f.quantile += adaptRate * (miss - (1 - f.target))
	f.quantile = max(f.target-(1-f.target), min(maxQuantile, f.quantile))
}

// RateRps is the smoothed arrival rate up to the last closed step.
func (f *Forecast) RateRps() float64 {
	if f.warm <= 0 {
		return 0
	}
	return f.rate / f.warm
}

// Coverage is the share of past forecasts that demand stayed within, lately, and how many were scored. It should lie
// near the configured quantile.
func (f *Forecast) Coverage() (share float64, scored int) { return f.covered, f.scored }

// DemandRps is the quantile of demand at nowMs + horizonMs. Until minGrowths were seen it is firstGrowth × the current
// rate. A horizon beyond half the ring is answered for half the ring. The cost is that of sorting the ring, some 30 µs for 1,024 steps.
func (f *Forecast) DemandRps(nowMs, horizonMs int64) float64 {
	f.advance(nowMs)
	rate := f.RateRps()
	size := int64(len(f.roots))
	lag := max(1, (max(0, horizonMs)+f.stepMs-1)/f.stepMs)
	lag = min(lag, size/2)
	growths := f.scratch[:0]
	for i := f.step - int64(f.closed) + lag; i < f.step; i++ {
		growths = append(growths, f.roots[i%size]-f.roots[(i-lag)%size])
	}
	demand := rate * firstGrowth
	if len(growths) >= minGrowths {
		slices.Sort(growths)
		growth := growths[min(len(growths)-1, int(f.quantile*float64(len(growths))))]
		root := max(0, math.Sqrt(rate)+growth)
		demand = root * root
	}
	if due := f.step - 1 + lag; f.closed > 0 {
		f.due[due%size] = demand
	}
	return demand
}

// Dispersion is the index of dispersion of counts, ca² at the scale of a step, over the last n closed steps. It comes
// from differences of neighbours (von Neumann), which a trend does not inflate. 1, as of Poisson, until there are
// minGrowths steps and as many arrivals; held within 0.5 and 20.
func (f *Forecast) Dispersion(nowMs int64, n int) float64 {
	f.advance(nowMs)
	n = min(n, f.closed)
	size := int64(len(f.counts))
	sum, squares, last := 0.0, 0.0, 0.0
	for i := f.step - int64(n); i < f.step; i++ {
		c := f.counts[i%size]
		if sum += c; i > f.step-int64(n) {
			squares += (c - last) * (c - last)
		}
		last = c
	}
	if n < minGrowths || sum < minGrowths {
		return 1
	}
	variance := squares / (2 * float64(n-1))
	return max(0.5, min(20, variance/(sum/float64(n))))
}
