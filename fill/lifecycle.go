package fill

import (
	"maps"
	"slices"

	"sluice/nodes"
	"sluice/nodes/registry"
)

// Bounds of the transitional phases that no spec sets, in milliseconds.
const (
	releaseTimeoutMs  = 10_000  // from the end of a generation to the kill of what is left
	resumeTimeoutMs   = 15_000  // to go on in place
	stopMarginMs      = 5_000   // beyond a signal job's own grace time
	backoffFirstMs    = 1_000   // after a first failure, doubling
	backoffLastMs     = 60_000  // at most
	restartWindowMs   = 600_000 // crashes older than this are forgiven
	abandonSignalMs   = 600_000 // a job without protocol on a lost node moves on after this
	stoppingTimeoutMs = 20_000  // a stopping replica that nobody gave a drain time
)

// Advance moves every replica and job along its life cycle as far as the agents'
// words allow, and ends what outlived its deadline. It is level-triggered: it
// compares facts with reports and can be called at any time, by any leader.
func Advance(v View, nowMs int64) []registry.Command {
	a := advancer{v: &v, nowMs: nowMs}
	for _, id := range slices.Sorted(maps.Keys(v.State.Replicas)) {
		a.replica(v.State.Replicas[id])
	}
	for _, name := range slices.Sorted(maps.Keys(v.State.Jobs)) {
		a.job(v.State.Jobs[name])
	}
	for _, node := range slices.Sorted(maps.Keys(v.Fleet.Nodes)) {
		a.orphans(node, v.Fleet.Nodes[node])
	}
	a.health()
	return a.out
}

type advancer struct {
	v     *View
	nowMs int64
	out   []registry.Command
}

func (a *advancer) emit(c registry.Command) {
	c.Author = "fill"
	a.out = append(a.out, c)
}

// connected tells whether a node's agent is heard and its node not lost.
func (v *View) connected(node string) bool {
	n := v.State.Nodes[node]
	s := v.Fleet.Nodes[node]
	return n != nil && !n.Lost && s != nil && s.Connected
}

// gone tells whether the agent proved a holder gone: it says so, or it was told
// to end the holder and answered that it has none.
func (v *View) gone(node, holder string, orderIDs ...string) bool {
	s := v.Fleet.Nodes[node]
	if s == nil || !v.connected(node) {
		return false
	}
	if h := s.Holders[holder]; h != nil {
		return h.State == nodes.StateGone
	}
	for _, id := range orderIDs {
		if _, ok := s.Answers[id]; ok {
			return true
		}
	}
	return false
}

// orphans frees the GPUs of holders that no present generation or replica owns,
// once they are proved gone. Orders ends them.
func (a *advancer) orphans(node string, s *nodes.Seen) {
	if !a.v.connected(node) {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(s.Holders)) {
		h := s.Holders[id]
		if h.State == nodes.StateGone && !Owned(a.v.State, id) && a.holds(node, id) {
			a.emit(registry.Command{HolderGone: &registry.HolderGone{Node: node, Holder: id}, Reason: "proved gone after its generation"})
		}
	}
	// A holder of an older generation that the returned agent does not know at
	// all died with its machine.
	for _, id := range slices.Sorted(maps.Keys(a.v.State.GPUs)) {
		g := a.v.State.GPUs[id]
		if g.Node != node {
			continue
		}
		a.vanished(node, g.Active, s)
		for _, r := range g.Residents {
			a.vanished(node, r.Holder, s)
		}
	}
}

func (a *advancer) vanished(node, holder string, s *nodes.Seen) {
	if holder != "" && !Owned(a.v.State, holder) && s.Holders[holder] == nil {
		a.emit(registry.Command{HolderGone: &registry.HolderGone{Node: node, Holder: holder}, Reason: "its agent has no such holder"})
	}
}

func (a *advancer) holds(node, holder string) bool {
	for _, g := range a.v.State.GPUs {
		if g.Node != node {
			continue
		}
		if g.Active == holder {
			return true
		}
		for _, r := range g.Residents {
			if r.Holder == holder {
				return true
			}
		}
	}
	return false
}

// Owned tells whether a holder belongs to a replica or to a rank, not yet gone,
// of a present generation.
func Owned(s *registry.State, holder string) bool {
	return s.Replicas[holder] != nil || s.CurrentHolder(holder)
}

// health fences GPUs that their agents call bad or see strangers on, and frees
// those that were fenced for a stranger that left. A GPU that was lost stays
// fenced until its node boots again or an operator frees it.
func (a *advancer) health() {
	for _, node := range slices.Sorted(maps.Keys(a.v.Fleet.Nodes)) {
		if !a.v.connected(node) {
			continue
		}
		s := a.v.Fleet.Nodes[node]
		for _, id := range slices.Sorted(maps.Keys(s.Readings)) {
			r := s.Readings[id]
			g := a.v.State.GPUs[id]
			if g == nil {
				continue
			}
			switch why := fenceReason(&r); {
			case why != "" && g.Fenced == "":
				a.emit(registry.Command{GPUMark: &registry.GPUMark{UUID: id, Reason: why}, Reason: why})
			case why == "" && isForeign(g.Fenced):
				a.emit(registry.Command{GPUMark: &registry.GPUMark{UUID: id}, Reason: "the foreign process left"})
			}
		}
	}
}

const foreignPrefix = "foreign process: "

func isForeign(fence string) bool {
	return len(fence) > len(foreignPrefix) && fence[:len(foreignPrefix)] == foreignPrefix
}

func fenceReason(r *nodes.Reading) string {
	switch {
	case r.Lost:
		return "the device is lost (fell off the bus)"
	case r.BadReason != "":
		return r.BadReason
	case len(r.Foreign) > 0:
		return foreignPrefix + r.Foreign[0]
	}
	return ""
}

// backoffMs doubles from backoffFirstMs with each failure in a row.
func backoffMs(failures int) int64 {
	ms := int64(backoffFirstMs)
	for range min(failures, 10) {
		ms *= 2
	}
	return min(ms, backoffLastMs)
}
