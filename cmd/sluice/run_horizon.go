package main

import (
	"slices"
	"sync"

	"sluice/nodes/registry"
)

// horizons learns, from events, how long it takes on this cluster from the
// decision to have a replica until it is ready: the p90 of the latest arrivals
// of each model. Safe for concurrent use.
type horizons struct {
	firstMs int64
	mu      sync.Mutex
	took    map[string][]int64 // guarded by mu; the latest keepTook of each model
}

const (
	keepTook      = 32
	horizonSlack  = 1.5 // the next one may take longer than nine in ten of the last
	minHorizonMs  = 200
	maxHorizonMs  = 600_000
	horizonModels = 4096 // beyond it nothing is learned of further models
)

func newHorizons(firstMs int64) *horizons {
	return &horizons{firstMs: firstMs, took: map[string][]int64{}}
}

func (h *horizons) observe(e *registry.Event) {
	if e.Kind != "replica" || e.To != string(registry.ReplicaReady) || e.TookMs <= 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.took[e.Model]
	if t == nil && len(h.took) >= horizonModels {
		return
	}
	t = append(t, e.TookMs)
	if len(t) > keepTook {
		t = slices.Delete(t, 0, len(t)-keepTook)
	}
	h.took[e.Model] = t
}

// ms is the horizon of a model: what a reclaim takes now.
func (h *horizons) ms(model string) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := slices.Sorted(slices.Values(h.took[model]))
	if len(t) == 0 {
		return h.firstMs
	}
	p90 := t[min(len(t)-1, len(t)*9/10)]
	return min(max(int64(float64(p90)*horizonSlack), minHorizonMs), maxHorizonMs)
}
