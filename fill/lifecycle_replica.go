package fill

import (
	"net"
	"strconv"

	"sluice/nodes"
	"sluice/nodes/registry"
)

func (a *advancer) replica(r *registry.Replica) {
	h := a.v.Fleet.Holder(r.Node, r.ID)
	if n := a.v.State.Nodes[r.Node]; n == nil || n.Lost {
		if r.Phase != registry.ReplicaStopping {
			a.replicaTo(r, registry.ReplicaStopping, 0, "its node is lost", false)
		}
		return
	}
	late := a.v.deadlinePassed(r.SinceMs, r.TimeoutMs, a.nowMs)
	switch r.Phase {
	case registry.ReplicaWaiting:
		a.replicaWaiting(r, late)
	case registry.ReplicaStarting, registry.ReplicaWaking:
		a.replicaComing(r, h, late)
	case registry.ReplicaReady, registry.ReplicaAsleep:
		a.replicaSteady(r, h)
	case registry.ReplicaDraining:
		switch {
		case h != nil && h.State == nodes.StateAsleep:
			a.replicaTo(r, registry.ReplicaAsleep, 0, r.Reason, false)
		case ended(h):
			a.replicaTo(r, registry.ReplicaStopping, stoppingTimeoutMs, endedText(h), true)
		case late:
			a.replicaTo(r, registry.ReplicaStopping, stoppingTimeoutMs, "did not fall asleep in time", false)
		}
	case registry.ReplicaStopping:
		if a.v.gone(r.Node, r.ID, replicaOrderID(r, nodes.OrderStop), replicaOrderID(r, nodes.OrderKill)) {
			retry := int64(0)
			if m := a.v.State.Models[r.Model]; m != nil && r.Failed {
				retry = a.nowMs + backoffMs(m.Failures)
			}
			a.emit(registry.Command{ReplicaGone: &registry.ReplicaGone{Replica: r.ID, Failed: r.Failed, RetryAtMs: retry}, Reason: r.Reason})
		}
	}
}

func ended(h *nodes.HolderStatus) bool {
	return h != nil && (h.Exited || h.State == nodes.StateEnding || h.State == nodes.StateGone)
}

func endedText(h *nodes.HolderStatus) string {
	if h == nil {
		return "its agent has no such holder"
	}
	if h.Reason != "" {
		return h.Reason
	}
	return "exited with code " + strconv.Itoa(h.ExitCode)
}

func (a *advancer) replicaTo(r *registry.Replica, to registry.ReplicaPhase, timeoutMs int64, reason string, failed bool) {
	a.emit(registry.Command{ReplicaPhase: &registry.PhaseChange{Name: r.ID, Seq: r.Seq, To: string(to),
		TimeoutMs: timeoutMs, Reason: reason, Failed: failed}, Reason: reason})
}

func (a *advancer) replicaWaiting(r *registry.Replica, late bool) {
	free := true
	for _, id := range r.GPUs {
		g := a.v.State.GPUs[id]
		free = free && g != nil && g.Active == "" && g.Fenced == ""
	}
	m := a.v.State.Models[r.Model]
	switch {
	case free && m != nil && r.Wake:
		a.replicaTo(r, registry.ReplicaWaking, m.Spec.WakeTimeoutMs, "its GPUs are proved free", false)
	case free && m != nil:
		a.replicaTo(r, registry.ReplicaStarting, m.Spec.StartTimeoutMs, "its GPUs are proved free", false)
	case late && r.Wake:
		a.replicaTo(r, registry.ReplicaAsleep, 0, "its GPUs did not come free in time", false)
	case late:
		a.replicaTo(r, registry.ReplicaStopping, stoppingTimeoutMs, "its GPUs did not come free in time", false)
	}
}

func (a *advancer) replicaComing(r *registry.Replica, h *nodes.HolderStatus, late bool) {
	switch {
	case h != nil && h.State == nodes.StateReady:
		addr := net.JoinHostPort(a.v.State.Nodes[r.Node].Host, strconv.Itoa(h.Port))
		a.emit(registry.Command{ReplicaPhase: &registry.PhaseChange{Name: r.ID, Seq: r.Seq, To: string(registry.ReplicaReady), Addr: addr}, Reason: "healthy"})
	case ended(h):
		a.replicaTo(r, registry.ReplicaStopping, stoppingTimeoutMs, endedText(h), true)
	case r.Phase == registry.ReplicaWaking && a.v.refused(r.Node, replicaOrderID(r, nodes.OrderWake)) != "":
		a.replicaTo(r, registry.ReplicaStopping, stoppingTimeoutMs,
			"wake-up failed: "+a.v.refused(r.Node, replicaOrderID(r, nodes.OrderWake)), true)
	case a.v.refused(r.Node, replicaOrderID(r, nodes.OrderStart)) != "":
		a.replicaTo(r, registry.ReplicaStopping, stoppingTimeoutMs,
			"its agent refused to start it: "+a.v.refused(r.Node, replicaOrderID(r, nodes.OrderStart)), true)
	case late && r.Phase == registry.ReplicaWaking:
		a.replicaTo(r, registry.ReplicaStopping, stoppingTimeoutMs, "did not wake in time", true)
	case late:
		a.replicaTo(r, registry.ReplicaStopping, stoppingTimeoutMs, "not healthy in time", true)
	}
}

// refused is the error an agent answered an order with; "" when none.
func (v *View) refused(node, orderID string) string {
	return v.answer(node, orderID).Err
}

// answer is what an agent answered an order with; the zero Answer when nothing.
func (v *View) answer(node, orderID string) nodes.Answer {
	if s := v.Fleet.Nodes[node]; s != nil {
		return s.Answers[orderID]
	}
	return nodes.Answer{}
}

func (a *advancer) replicaSteady(r *registry.Replica, h *nodes.HolderStatus) {
	if !a.v.connected(r.Node) {
		return
	}
	for _, id := range r.GPUs {
		if g := a.v.State.GPUs[id]; g != nil && g.Fenced != "" && !isForeign(g.Fenced) {
			a.replicaTo(r, registry.ReplicaStopping, stoppingTimeoutMs, "GPU "+id+" is fenced: "+g.Fenced, false)
			return
		}
	}
	if h == nil || ended(h) {
		a.replicaTo(r, registry.ReplicaStopping, stoppingTimeoutMs, endedText(h), true)
	}
}
