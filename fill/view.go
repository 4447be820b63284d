package fill

import (
	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/slo"
)

// View is all that a decision looks at. The state and the fleet are read, never
// changed; the caller keeps them still for the length of a Step.
type View struct {
	State *registry.State
	Fleet *nodes.Fleet
	// Headroom by model; a model without an entry has no traffic known.
	Headroom map[string]slo.Headroom
	// LeaderSinceMs is the fleet time at which this leader took over: deadlines
	// are durations and start again then.
	LeaderSinceMs int64
}

// deadlinePassed tells whether a phase entered at sinceMs has outlived its timeout.
func (v *View) deadlinePassed(sinceMs, timeoutMs, nowMs int64) bool {
	return timeoutMs > 0 && nowMs >= max(sinceMs, v.LeaderSinceMs)+timeoutMs
}
