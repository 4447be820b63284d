package fill

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/slo"
)

const giB = 1 << 30

// world is a fleet whose agents do at once, and rightly, what they are told.
type world struct {
	t        testing.TB
	st       *registry.State
	p        *Planner
	nowMs    int64
	headroom map[string]slo.Headroom
	fleet    *nodes.Fleet // nil: every agent is there
	plan     Plan
	// switches counts what happened to each object, by word.
	switches map[string]int
	// slow names jobs whose stops do not end by themselves.
	slow map[string]bool
}

func newWorld(t testing.TB) *world {
	cfg := Default()
	cfg.DownAfterMs = 5000 // the scenarios' own, so that tuning moves none of them
	return &world{t: t, st: registry.New(), p: NewPlanner(cfg), nowMs: 1_000_000,
		headroom: map[string]slo.Headroom{}, switches: map[string]int{}, slow: map[string]bool{}}
}

func (w *world) apply(c registry.Command) {
	w.t.Helper()
	c.AtMs = w.nowMs
	if _, err := w.st.Apply(&c); err != nil {
		w.t.Fatalf("at %d ms: %v\n%+v", w.nowMs, err, c)
	}
}

func (w *world) addNodes(n, gpus, island int, memGiB int64, rackOf int) {
	have := len(w.st.Nodes)
	for i := have; i < have+n; i++ {
		node := nodes.Node{ID: fmt.Sprintf("n%02d", i), Rack: fmt.Sprintf("r%02d", i/max(1, rackOf)), Block: "b0"}
		for g := range gpus {
			node.GPUs = append(node.GPUs, nodes.GPU{UUID: fmt.Sprintf("n%02d-g%d", i, g), Index: g,
				MemoryBytes: memGiB * giB, Island: g / max(1, island)})
		}
		w.apply(registry.Command{NodeSeen: &node})
	}
}

func (w *world) addModel(m registry.ModelSpec) {
	m.Tenant = cmp.Or(m.Tenant, "default")
	w.apply(registry.Command{PutModel: &m})
}

func (w *world) addJob(j registry.JobSpec) {
	j.Tenant = cmp.Or(j.Tenant, "default")
	j.MaxWorld = max(j.MaxWorld, j.MinWorld)
	w.apply(registry.Command{SubmitJob: &j})
}

func (w *world) need(model string, n int) {
	ready := 0
	for _, r := range w.st.Replicas {
		if r.Model == model && r.Phase == registry.ReplicaReady {
			ready++
		}
	}
	w.headroom[model] = slo.Headroom{Model: model, NeedReplicas: n, NeedNow: n, ReadyReplicas: ready}
}

// step makes one plan and applies it.
func (w *world) step() Plan {
	w.t.Helper()
	w.plan = w.p.Plan(View{State: w.st, Fleet: w.fleet, Headroom: w.headroom}, w.nowMs)
	for _, c := range w.plan.Commands {
		w.count(&c)
		w.apply(c)
	}
	return w.plan
}

func (w *world) count(c *registry.Command) {
	switch {
	case c.Reclaim != nil:
		for _, v := range c.Reclaim.Victims {
			w.switches[string(v.Rung)+" "+v.Job+v.Replica]++
		}
	case c.JobStop != nil:
		w.switches[string(c.JobStop.Rung)+" "+c.JobStop.Job]++
	case c.JobPlace != nil:
		w.switches["place "+c.JobPlace.Job]++
	case c.JobPhase != nil:
		w.switches[c.JobPhase.To+" "+c.JobPhase.Name]++
	}
}

// settle lets agents do all that facts ask for, until nothing changes.
func (w *world) settle() {
	for range 20 {
		if !w.settleOnce() {
			return
		}
	}
}

func (w *world) settleOnce() bool {
	before := w.st.Version
	for _, name := range slices.Sorted(maps.Keys(w.st.Jobs)) {
		w.settleJob(w.st.Jobs[name])
	}
	for _, id := range slices.Sorted(maps.Keys(w.st.Replicas)) {
		w.settleReplica(w.st.Replicas[id])
	}
	return w.st.Version != before
}

func (w *world) settleJob(j *registry.Job) {
	to := func(p registry.JobPhase) {
		w.apply(registry.Command{JobPhase: &registry.PhaseChange{Name: j.Spec.Name, Seq: j.Seq, To: string(p)}})
	}
	switch j.Phase {
	case registry.JobPreparing:
		to(registry.JobStarting)
	case registry.JobStarting, registry.JobResuming:
		to(registry.JobRunning)
	case registry.JobStopping:
		if w.slow[j.Spec.Name] {
			return
		}
		if j.Stop.Mode == nodes.StopYield {
			to(registry.JobYielded)
			return
		}
		after := registry.JobPaused
		if len(j.Next) > 0 {
			after = registry.JobPreparing
		}
		if j.Want == "cancelled" {
			after = registry.JobCancelled
		}
		w.apply(registry.Command{JobEnding: &registry.JobEnding{Job: j.Spec.Name, Seq: j.Seq, After: after, Rung: j.Stop.Rung, Clean: true}})
	case registry.JobReleasing:
		var all []int
		for r := range j.Ranks {
			all = append(all, r)
		}
		w.apply(registry.Command{RankGone: &registry.RankGone{Job: j.Spec.Name, Generation: j.Generation, Ranks: all}})
	}
}

func (w *world) settleReplica(r *registry.Replica) {
	to := func(p registry.ReplicaPhase) {
		w.apply(registry.Command{ReplicaPhase: &registry.PhaseChange{Name: r.ID, Seq: r.Seq, To: string(p)}})
	}
	switch r.Phase {
	case registry.ReplicaWaiting:
		for _, id := range r.GPUs {
			if w.st.GPUs[id].Active != "" {
				return
			}
		}
		if r.Wake {
			to(registry.ReplicaWaking)
		} else {
			to(registry.ReplicaStarting)
		}
	case registry.ReplicaStarting, registry.ReplicaWaking:
		to(registry.ReplicaReady)
	case registry.ReplicaDraining:
		to(registry.ReplicaAsleep)
	case registry.ReplicaStopping:
		w.apply(registry.Command{ReplicaGone: &registry.ReplicaGone{Replica: r.ID}})
	}
}

// run plans and settles every stepMs for ms, checking the floor each time.
func (w *world) run(ms, stepMs int64) {
	for end := w.nowMs + ms; w.nowMs < end; w.nowMs += stepMs {
		w.step()
		w.settle()
		w.check()
	}
}

// check asserts what must always hold.
func (w *world) check() {
	w.t.Helper()
	held := map[string]int{}
	for name, j := range w.st.Jobs {
		if n := len(j.Ranks); n > 0 && !j.Spec.World(n) {
			w.t.Fatalf("job %s has world %d", name, n)
		}
		for _, r := range j.Ranks {
			held[j.Spec.Tenant] += len(r.GPUs)
		}
	}
	for _, g := range w.st.GPUs {
		sum := int64(0)
		for _, r := range g.Residents {
			sum += r.Bytes
		}
		if g.Active != "" {
			if r := w.st.Replicas[g.Active]; r != nil {
				sum += w.st.Models[r.Model].Spec.ActiveBytes
			}
		}
		if sum > g.MemoryBytes {
			w.t.Fatalf("GPU %s holds %d of %d bytes", g.UUID, sum, g.MemoryBytes)
		}
	}
}

// holders draws who holds each GPU, a node a line.
func (w *world) holders() string {
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(w.st.Nodes)) {
		fmt.Fprintf(&b, "%s:", id)
		for _, g := range w.st.Nodes[id].GPUs {
			f := w.st.GPUs[g.UUID]
			b.WriteString(" " + cmp.Or(short(f.Active), "-"))
			for _, r := range f.Residents {
				b.WriteString("(" + short(r.Holder) + ")")
			}
			if f.Reserved != "" {
				b.WriteString(">" + f.Reserved)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// short cuts the generation out of a rank's name.
func short(holder string) string {
	parts := strings.Split(holder, ".")
	if len(parts) == 3 {
		return parts[0] + parts[2][1:]
	}
	return holder
}

// words is a plan in words.
func (p *Plan) words() string {
	var b strings.Builder
	for i := range p.Commands {
		c := &p.Commands[i]
		switch {
		case c.Reclaim != nil:
			for _, t := range c.Reclaim.Takes {
				verb := "start"
				if t.Wake {
					verb = "wake"
				}
				fmt.Fprintf(&b, "%s %s on %s\n", verb, t.Replica, strings.Join(t.GPUs, " "))
			}
			for _, v := range c.Reclaim.Victims {
				fmt.Fprintf(&b, "  %s %s%s for %s%s\n", v.Rung, v.Job, v.Replica, v.Beneficiary, nextWords(v.Next))
			}
		case c.JobStop != nil:
			v := c.JobStop
			fmt.Fprintf(&b, "stop %s (%s)%s: %s\n", v.Job, v.Rung, nextWords(v.Next), c.Reason)
		case c.JobPlace != nil:
			fmt.Fprintf(&b, "place %s%s\n", c.JobPlace.Job, nextWords(c.JobPlace.Ranks))
		case c.JobPhase != nil:
			fmt.Fprintf(&b, "%s %s: %s\n", c.JobPhase.To, c.JobPhase.Name, c.Reason)
		case c.ReplicaPhase != nil:
			fmt.Fprintf(&b, "%s %s: %s\n", c.ReplicaPhase.To, c.ReplicaPhase.Name, c.Reason)
		}
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}

func nextWords(ranks []registry.RankPlace) string {
	if len(ranks) == 0 {
		return ""
	}
	var ids []string
	for _, r := range ranks {
		ids = append(ids, strings.Join(r.GPUs, "+"))
	}
	return " on " + strconv.Itoa(len(ranks)) + " ranks " + strings.Join(ids, " ")
}

func (p *Plan) waitingWords() string {
	var b strings.Builder
	for _, w := range p.Waiting {
		fmt.Fprintf(&b, "%s waits (%s): %s\n", w.Object, w.Cause, w.Text)
	}
	if b.Len() == 0 {
		return "nothing waits\n"
	}
	return b.String()
}
