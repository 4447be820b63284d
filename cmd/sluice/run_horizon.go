package main

import (
	"slices"
	"sync"

	"sluice/nodes/registry"
)

// horizons learns, from events, how long it takes on this cluster from the
// decision to have a replica until it is ready: the p90 of the latest arrivals
// of each model, woken and started ones apart, since a model with a sleeping
// replica has far less time to look ahead. Safe for concurrent use.
type horizons struct {
	firstMs int64
	mu      sync.Mutex
	woken   map[string][]int64 // guarded by mu; the latest keepTook of each model
	started map[string][]int64 // guarded by mu
}

const (
	keepTook      = 16
	horizonSlack  = 1.2 // the next one may take longer than nine in ten of the last
	minHorizonMs  = 200
	maxHorizonMs  = 600_000
	horizonModels = 4096 // beyond it nothing is learned of further models
)

func newHorizons(firstMs int64) *horizons {
	return &horizons{firstMs: firstMs, woken: map[string][]int64{}, started: map[string][]int64{}}
}

func (h *horizons) observe(e *registry.Event) {
	if e.Kind != "replica" || e.To != string(registry.ReplicaReady) || e.TookMs <= 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.started
	if e.From == string(registry.ReplicaWaking) {
		m = h.woken
	}
	t := m[e.Model]
	if t == nil && len(m) >= horizonModels {
		return
	}
	t = append(t, e.TookMs)
	if len(t) > keepTook {
		t = slices.Delete(t, 0, len(t)-keepTook)
	}
	m[e.Model] = t
}

// wakeShare is how much of a cold start a wake is taken to last before one was
// seen: engines that sleep report 0.1 to 0.8 s against 30 to 100 s.
const wakeShare = 0.1

// ms are the horizons of a model: what having one more replica takes when one
// is asleep, and what a cold start takes.
func (h *horizons) ms(model string) (wakeMs, coldMs int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	coldMs = bounded(p90(h.started[model], h.firstMs))
	return bounded(p90(h.woken[model], int64(float64(coldMs)*wakeShare/horizonSlack))), coldMs
}

func p90(took []int64, none int64) int64 {
	t := slices.Sorted(slices.Values(took))
	if len(t) == 0 {
		return none
	}
	return t[min(len(t)-1, len(t)*9/10)]
}

func bounded(ms int64) int64 {
	return min(max(int64(float64(ms)*horizonSlack), minHorizonMs), maxHorizonMs)
}
