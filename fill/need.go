package fill

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"sluice/nodes/registry"
)

// need is what one model has and wants.
type need struct {
	name  string
	model *registry.Model
	memo  *modelMemo
	size  int // GPUs a replica

	want    int    // replicas wanted in all
	why     string // in words
	missing int    // to be placed in this plan
	// surge tells that what is missing is a new version's first replica: it is
	// placed beside the old ones.
	surge bool
	// keepComing tells that replicas on their way are wanted as sleepers-to-be:
	// they are not given up while others suffice.
	keepComing bool
	freeOnly   bool // what is missing is a spare that stops nobody

	fresh    []*registry.Replica // of the present version, waiting to ready, on usable nodes
	stale    []*registry.Replica // of an older version, the same otherwise
	outgoing []*registry.Replica // on nodes that drain
	asleep   []*registry.Replica
	ready    int // of fresh and stale and outgoing
	urgent   bool
	// deadlineMs is by when the forecast wants what is missing.
	deadlineMs int64
	placed     int
	cause      Cause // why the rest was not placed
	text       string
}

// coming tells whether a replica serves or is about to.
func coming(p registry.ReplicaPhase) bool {
	switch p {
	case registry.ReplicaWaiting, registry.ReplicaStarting, registry.ReplicaWaking, registry.ReplicaReady:
		return true
	}
	return false
}

// wanted works out how many replicas each model has, needs and lacks.
func (ps *pass) wanted() {
	for _, name := range slices.Sorted(maps.Keys(ps.st.Models)) {
		m := ps.st.Models[name]
		if m.Spec.URL != "" {
			continue // somebody else's engine: never started, slept or stopped
		}
		n := &need{name: name, model: m, memo: ps.model(name), size: max(1, m.Spec.GPUsPerReplica)}
		ps.needs = append(ps.needs, n)
		n.want, n.why, n.urgent = ps.wantedReplicas(m)
		if n.deadlineMs = ps.view.Headroom[name].HorizonMs; n.deadlineMs <= 0 {
			n.deadlineMs = ps.cfg.DeadlineMs
		}
	}
	for _, r := range ps.f.replicas {
		at, ok := slices.BinarySearchFunc(ps.needs, r.Model, func(n *need, name string) int { return cmp.Compare(n.name, name) })
		if ok {
			ps.sort(ps.needs[at], r)
		}
	}
	for _, n := range ps.needs {
		ps.spare(n)
		n.count()
	}
}

// spare raises what is wanted by one when no replica sleeps and fewer exist
// than a cold start's horizon asks for: it is started now, so that it can be
// asleep, and woken in time, when demand has grown that far. While others still
// suffice it gets a free GPU only: nobody is stopped for what may never come.
func (ps *pass) spare(n *need) {
	existing := n.have() + len(n.asleep)
	asked := ps.view.Headroom[n.name].NeedExisting
	if limit := n.model.Spec.MaxReplicas; limit > 0 {
		asked = min(asked, limit)
	}
	canSleep := n.model.Spec.Sleep != "" && n.model.Spec.ResidentBytes > 0
	n.keepComing = n.freshComing() > 0 && (existing <= asked || canSleep && len(n.asleep) == 0)
	if n.want > 0 && len(n.asleep) == 0 && existing >= n.want && existing < asked {
		n.freeOnly = existing > n.want
		n.want, n.why = existing+1, fmt.Sprintf("%d should exist for the time of a cold start", asked)
	}
}

func (ps *pass) wantedReplicas(m *registry.Model) (want int, why string, urgent bool) {
	if m.Deleting {
		return 0, "it is being deleted", false
	}
	want, why = m.Spec.MinReplicas, fmt.Sprintf("its minimum is %d", m.Spec.MinReplicas)
	if h, ok := ps.view.Headroom[m.Spec.Name]; ok {
		if n := max(h.NeedReplicas, h.NeedNow); n > want {
			want, why = n, fmt.Sprintf("%d are needed at the horizon, %d now", h.NeedReplicas, h.NeedNow)
		}
		urgent = h.NeedNow > h.ReadyReplicas
	}
	if m.Spec.MaxReplicas > 0 && want > m.Spec.MaxReplicas {
		want, why = m.Spec.MaxReplicas, fmt.Sprintf("its maximum is %d", m.Spec.MaxReplicas)
	}
	return min(want, maxLevels), why, urgent
}

// sort puts a replica where it counts.
func (ps *pass) sort(n *need, r *registry.Replica) {
	node := ps.st.Nodes[r.Node]
	switch {
	case node == nil || node.Lost:
		return // lifecycle sees to it; it serves nobody
	case r.Phase == registry.ReplicaAsleep:
		n.asleep = append(n.asleep, r)
	case !coming(r.Phase):
		return // stopping and draining ones count for nothing: their substitutes start at once
	case node.Draining:
		n.outgoing = append(n.outgoing, r)
	case r.Version < n.model.Version:
		n.stale = append(n.stale, r)
	default:
		n.fresh = append(n.fresh, r)
	}
	if r.Phase == registry.ReplicaReady {
		n.ready++
	}
}

// count works out what is missing. Old versions count as long as they serve;
// they are replaced one at a time.
func (n *need) count() {
	n.missing = max(0, n.want-len(n.fresh)-len(n.stale))
	if n.missing > 0 || len(n.stale) == 0 || n.want == 0 {
		return
	}
	if len(n.fresh)+len(n.stale) <= n.want && n.freshComing() == 0 {
		n.missing, n.surge = 1, true
	}
}

func (n *need) freshComing() int {
	c := 0
	for _, r := range n.fresh {
		if r.Phase != registry.ReplicaReady {
			c++
		}
	}
	return c
}

// have is how many replicas serve or are about to.
func (n *need) have() int { return len(n.fresh) + len(n.stale) + len(n.outgoing) }

// guaranteed is how many replicas the model's guarantee covers.
func (n *need) guaranteed() int {
	return (n.model.Spec.GuaranteeGPUs + n.size - 1) / n.size
}
