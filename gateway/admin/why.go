package admin

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"sluice/nodes/registry"
)

// maxWhyEvents of an object are shown; they are looked for in the whole ring.
const maxWhyEvents = 20

// Why explains one object: what it is doing, since when, why, and what
// happened to it lately.
type Why struct {
	Object  string     `json:"object"`
	Kind    string     `json:"kind"`
	State   string     `json:"state"`
	ForMs   int64      `json:"forMs"` // 0: not known
	Lines   []string   `json:"lines"` // sentences, the most important first
	Waiting *Waiting   `json:"waiting,omitempty"`
	Events  []Recorded `json:"events"`
}

// getWhy takes "chat", "chat-7", "job/bert", "node/n1" or a GPU's UUID.
func (s *Server) getWhy(w http.ResponseWriter, r *http.Request, _ Actor) error {
	asked := r.PathValue("object")
	kind, name, has := strings.Cut(asked, "/")
	if !has {
		kind, name = "", asked
	}
	var found *Why
	s.read(func(v *snapshot) { found = v.why(kind, name) })
	if found == nil {
		return &Error{Status: http.StatusNotFound, Code: "not_found", Message: fmt.Sprintf("nothing is called %q", clip(asked)),
			Remedy: "name a job, model, replica, node or GPU; kind/name tells them apart, as job/bert"}
	}
	found.Events = s.eventsOf(found.Object)
	writeJSON(w, http.StatusOK, found)
	return nil
}

// eventsOf searches the whole ring, page by page. Of manifests in a row it
// keeps the newest: a job that saves often would show nothing else.
func (s *Server) eventsOf(object string) []Recorded {
	out := []Recorded{}
	for since := int64(0); ; {
		page, next := s.ctl.Events(since, maxEventsPage)
		for _, e := range page {
			if e.Object == object || e.Model == object || slices.Contains(e.GPUs, object) {
				if n := len(out); n > 0 && e.Kind == "manifest" && out[n-1].Kind == "manifest" && out[n-1].Object == e.Object {
					out = out[:n-1]
				}
				out = append(out, e)
			}
		}
		if len(page) < maxEventsPage || next <= since {
			break
		}
		since = next
	}
	return out[max(0, len(out)-maxWhyEvents):]
}

func (v *snapshot) why(kind, name string) *Why {
	if j := v.s.Jobs[name]; j != nil && (kind == "" || kind == "job") {
		return v.whyJob(j)
	}
	if m := v.s.Models[name]; m != nil && (kind == "" || kind == "model") {
		return v.whyModel(name, m)
	}
	if r := v.s.Replicas[name]; r != nil && (kind == "" || kind == "replica") {
		return v.whyReplica(r)
	}
	if n := v.s.Nodes[name]; n != nil && (kind == "" || kind == "node") {
		return v.whyNode(n)
	}
	if g := v.s.GPUs[name]; g != nil && (kind == "" || kind == "gpu") {
		return v.whyGPU(g)
	}
	return nil
}

// say adds a sentence unless it is empty.
func (w *Why) say(format string, args ...any) {
	w.Lines = append(w.Lines, strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (w *Why) because(reason string) {
	if reason != "" {
		w.say("Reason: %s.", strings.TrimSuffix(reason, "."))
	}
}

func (w *Why) wait(x *Waiting) {
	if w.Waiting = x; x != nil {
		w.say("It waits for %s: %s.", x.Cause, strings.TrimSuffix(x.Text, "."))
	}
}

func (v *snapshot) whyJob(j *registry.Job) *Why {
	st := v.job(j)
	w := &Why{Object: st.Name, Kind: "job", State: st.Phase, ForMs: st.ForMs}
	w.wait(st.Waiting)
	switch {
	case st.World > 0:
		w.say("Generation %d has %d of %d to %d ranks on %s.", st.Generation, st.World, j.Spec.MinWorld, j.Spec.MaxWorld, strings.Join(st.Nodes, ", "))
	case !j.Phase.Ended():
		w.say("It holds no GPU and needs at least %d.", j.Spec.MinWorld*j.Spec.GPUsPerRank)
	}
	w.because(j.Reason)
	if j.Want != "" {
		w.say("Its owner wants it %s.", j.Want)
	}
	if j.Stop != nil {
		w.say("It is stopping (%s) for %s: %s.", j.Stop.Rung, orNobody(j.Stop.Beneficiary), strings.TrimSuffix(j.Stop.Reason, "."))
	}
	if wait := j.BackoffToMs - v.nowMs; wait > 0 && !j.Phase.Ended() {
		w.say("After %d crashes it is held back for %d s more.", len(j.Restarts), wait/1000+1)
	}
	if st.SavedStep != nil {
		w.say("Step %d is done, step %d is saved.", st.Step, *st.SavedStep)
	} else {
		w.say("Step %d is done, nothing is saved yet.", st.Step)
	}
	for i := len(j.Ledger) - 1; i >= max(0, len(j.Ledger)-3); i-- {
		e := j.Ledger[i]
		at := fmt.Sprintf("at step %d, %d steps lost", e.LastStep, e.LostSteps)
		if e.LastStep < 0 {
			at = "without telling a step"
		}
		w.say("Generation %d (%d ranks) ended %s: %s.", e.Generation, e.World, at, strings.TrimSuffix(e.Reason, "."))
	}
	return w
}

func orNobody(s string) string {
	if s == "" {
		return "nobody"
	}
	return s
}

func (v *snapshot) whyModel(name string, m *registry.Model) *Why {
	w := &Why{Object: name, Kind: "model", State: fmt.Sprintf("v%d", m.Version)}
	w.wait(v.waiting[name])
	if m.Spec.URL != "" {
		w.say("Someone else runs its engine at %s.", m.Spec.URL)
	}
	if m.Deleting {
		w.say("It is being deleted: its replicas are ending.")
	}
	if h, ok := v.headroom[name]; ok {
		w.say("It has %d ready replicas and needs %d within %d ms (%d now): %s.", h.ReadyReplicas, h.NeedReplicas, h.HorizonMs, h.NeedNow, strings.TrimSuffix(h.Reason, "."))
		if h.CapacityRps > 0 || h.ReadyReplicas == 0 {
			w.say("Demand is %.2f requests/s of %.2f that the replicas can take within the objectives.", h.DemandRps, h.CapacityRps)
		} else {
			w.say("Demand is %.2f requests/s; what the replicas can take is not known yet.", h.DemandRps)
		}
		for _, a := range h.Objectives {
			if a.Met && a.ObservedMs == 0 {
				w.say("%s: nothing was measured lately.", a.Objective)
				continue
			}
			met := "met"
			if !a.Met {
				met = "not met"
			}
			w.say("%s is %s: it held for %.1f %% of requests, those that failed among the others; measured %.0f ms.", a.Objective, met, a.Fraction*100, a.ObservedMs)
		}
	} else if m.Spec.URL == "" {
		w.say("It has seen no request yet; at least %d replicas are kept.", m.Spec.MinReplicas)
	}
	if m.Failures > 0 {
		w.say("%d replicas failed in a row; the next start is in %d s.", m.Failures, max(0, m.RetryAtMs-v.nowMs)/1000)
	}
	for _, r := range v.replicas() {
		if r.Model == name {
			w.say("Replica %s (v%d) on %s is %s. %s", r.ID, r.Version, r.Node, r.Phase, r.Reason)
			if x := v.waiting[r.ID]; x != nil {
				w.say("Replica %s waits for %s: %s.", r.ID, x.Cause, strings.TrimSuffix(x.Text, "."))
			}
		}
	}
	return w
}

func (v *snapshot) whyReplica(r *registry.Replica) *Why {
	w := &Why{Object: r.ID, Kind: "replica", State: string(r.Phase), ForMs: max(0, v.nowMs-r.SinceMs)}
	w.wait(v.waiting[r.ID])
	w.say("It serves model %s (v%d) on %s, GPUs %s.", r.Model, r.Version, r.Node, strings.Join(r.GPUs, ", "))
	w.because(r.Reason)
	for _, id := range r.GPUs {
		if g := v.s.GPUs[id]; g != nil && g.Active != "" && g.Active != r.ID {
			w.say("GPU %s is still held by %s.", id, g.Active)
		}
	}
	return w
}

func (v *snapshot) whyNode(n *registry.Node) *Why {
	st := v.node(n, 0)
	w := &Why{Object: n.ID, Kind: "node", State: st.State}
	w.because(n.Reason)
	w.say("Its agent spoke %d ms ago.", st.SilentMs)
	for _, g := range v.gpus() {
		if g.Node == n.ID {
			w.say("GPU %d (%s) is %s%s.", g.Index, g.UUID, g.State, heldBy(g))
		}
	}
	for _, m := range n.Missing {
		w.say("Not reported: %s.", m)
	}
	return w
}

func heldBy(g GPUStatus) string {
	switch {
	case g.Fenced != "":
		return ": " + g.Fenced
	case g.Holder != "":
		return ", held by " + g.Holder
	case g.Reserved != "":
		return ", reserved for " + g.Reserved
	}
	return ""
}

func (v *snapshot) whyGPU(g *registry.GPU) *Why {
	st := v.gpu(g)
	w := &Why{Object: g.UUID, Kind: "gpu", State: st.State, ForMs: st.ForMs}
	w.say("GPU %d of node %s is %s%s.", g.Index, g.Node, st.State, heldBy(st))
	for _, r := range g.Residents {
		w.say("%s keeps %d MiB of memory on it.", r.Holder, r.Bytes>>20)
	}
	if g.Reserved != "" {
		w.say("It goes to %s next.", g.Reserved)
	}
	return w
}
