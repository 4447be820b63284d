package fill

import (
	"fmt"
	"slices"
	"testing"

	"sluice/nodes"
	"sluice/nodes/registry"
)

// Tests named after field cases: each is a failure that other schedulers had.

func gang(name string, minWorld, maxWorld int) registry.JobSpec {
	return registry.JobSpec{Name: name, MinWorld: minWorld, MaxWorld: maxWorld, Protocol: "v1"}
}

func (w *world) victims() (out []registry.Victim) {
	for _, c := range w.plan.Commands {
		if c.Reclaim != nil {
			out = append(out, c.Reclaim.Victims...)
		}
	}
	return out
}

func (w *world) takes() (out []registry.Take) {
	for _, c := range w.plan.Commands {
		if c.Reclaim != nil {
			out = append(out, c.Reclaim.Takes...)
		}
	}
	return out
}

func (w *world) phase(job string, want registry.JobPhase) {
	w.t.Helper()
	if got := w.st.Jobs[job].Phase; got != want {
		w.t.Fatalf("job %s is %s, want %s\n%s", job, got, want, w.holders())
	}
}

func (w *world) wantSwitches(what string, n int) {
	w.t.Helper()
	if w.switches[what] != n {
		w.t.Fatalf("%q happened %d times, want %d; all: %v", what, w.switches[what], n, w.switches)
	}
}

// Victims that end at different times must not come back while the taker waits.
func TestCase_FILL_01(t *testing.T) {
	w := newWorld(t)
	w.addNodes(1, 8, 8, 80, 1)
	w.addModel(registry.ModelSpec{Name: "chat", GPUsPerReplica: 8})
	w.addJob(gang("a", 4, 4))
	w.addJob(gang("b", 4, 4))
	w.run(1000, 1000)
	w.phase("a", registry.JobRunning)
	w.slow["b"] = true
	w.need("chat", 1)
	w.run(60_000, 1000)
	w.phase("a", registry.JobPaused)
	w.phase("b", registry.JobStopping)
	delete(w.slow, "b")
	w.run(5000, 1000)
	if len(w.st.Replicas) != 1 {
		t.Fatal(w.holders())
	}
	w.wantSwitches("pause a", 1)
	w.wantSwitches("pause b", 1)
	w.wantSwitches("place a", 1)
	w.wantSwitches("place b", 1)
	w.need("chat", 0)
	w.run(200_000, 1000)
	w.phase("a", registry.JobRunning)
	w.phase("b", registry.JobRunning)
}

// Equal jobs never stop each other.
func TestCase_FILL_02(t *testing.T) {
	w := newWorld(t)
	w.addNodes(2, 6, 6, 80, 1)
	for i, tenant := range []string{"red", "blue"} {
		w.apply(registry.Command{PutTenant: &registry.TenantSpec{Name: tenant, Weight: 1}})
		for k := range 12 {
			j := gang(fmt.Sprintf("j%d-%02d", i, k), 1, 1)
			j.Tenant = tenant
			w.addJob(j)
		}
	}
	began := w.nowMs
	for left := 24; left > 0; {
		w.run(5000, 5000)
		for _, j := range w.st.Jobs {
			if j.Phase == registry.JobRunning && w.nowMs-j.RunStartedMs >= 600_000 {
				w.apply(registry.Command{JobEnding: &registry.JobEnding{Job: j.Spec.Name, Seq: j.Seq, After: registry.JobSucceeded, Clean: true}})
				w.settle()
				left--
			}
		}
		if w.nowMs-began > 1_300_000 {
			t.Fatalf("%d of 24 jobs left after %d s", left, (w.nowMs-began)/1000)
		}
	}
	for what, n := range w.switches {
		if n != 1 || what[:5] != "place" {
			t.Fatalf("%s: %d times", what, n)
		}
	}
}

// Nothing is stopped for a replica that could not start.
func TestCase_FILL_03(t *testing.T) {
	w := newWorld(t)
	w.addNodes(2, 2, 2, 80, 1)
	w.addModel(registry.ModelSpec{Name: "small", MinReplicas: 2})
	w.run(1000, 1000) // one replica a node? packed: both on one
	w.addJob(gang("a", 1, 1))
	w.addJob(gang("b", 1, 1))
	w.run(1000, 1000)
	w.addModel(registry.ModelSpec{Name: "big", GPUsPerReplica: 3, MinReplicas: 1})
	w.run(10_000, 1000)
	w.phase("a", registry.JobRunning)
	w.phase("b", registry.JobRunning)
	if len(w.plan.Waiting) != 1 || w.plan.Waiting[0].Object != "big" || w.plan.Waiting[0].Cause != CauseTopology {
		t.Fatalf("%+v", w.plan.Waiting)
	}
}

// Free GPUs and those to be freed are counted together.
func TestCase_FILL_04(t *testing.T) {
	w := newWorld(t)
	w.addNodes(1, 4, 4, 80, 1)
	w.addJob(gang("full", 4, 4))
	w.run(1000, 1000)
	w.addNodes(1, 4, 4, 80, 1)
	w.addModel(registry.ModelSpec{Name: "chat", GPUsPerReplica: 4})
	w.need("chat", 2)
	w.step()
	if len(w.takes()) != 2 || len(w.victims()) != 1 || w.victims()[0].Job != "full" {
		t.Fatal(w.plan.words())
	}
	w.settle()
	w.check()
}

// Room is counted by GPU, once, and a finished rank is no reason to stop more.
func TestCase_FILL_05(t *testing.T) {
	w := newWorld(t)
	w.addNodes(1, 6, 6, 80, 1)
	w.addModel(registry.ModelSpec{Name: "chat"})
	w.addJob(gang("g", 4, 4))
	w.addJob(gang("h", 2, 2))
	w.run(1000, 1000)
	w.need("chat", 5)
	w.step()
	seen := map[string]bool{}
	for _, tk := range w.takes() {
		for _, g := range tk.GPUs {
			if seen[g] {
				t.Fatalf("GPU %s is given twice", g)
			}
			seen[g] = true
		}
	}
	if len(seen) != 5 || len(w.victims()) != 2 {
		t.Fatal(w.plan.words())
	}
}

// Two models that need at once see each other's claims.
func TestCase_FILL_06(t *testing.T) {
	w := newWorld(t)
	w.addNodes(1, 3, 3, 80, 1)
	for _, m := range []string{"a", "b"} {
		w.addModel(registry.ModelSpec{Name: m})
	}
	for _, j := range []string{"x", "y", "z"} {
		w.addJob(gang(j, 1, 1))
	}
	w.run(1000, 1000)
	w.need("a", 2)
	w.need("b", 2)
	w.step()
	if len(w.takes()) != 3 || len(w.victims()) != 3 {
		t.Fatal(w.plan.words())
	}
	// The pair that needs two GPUs whole gets nothing rather than one in vain.
	w = newWorld(t)
	w.addNodes(1, 3, 3, 80, 1)
	for _, m := range []string{"a", "b"} {
		w.addModel(registry.ModelSpec{Name: m, GPUsPerReplica: 2})
	}
	for _, j := range []string{"x", "y", "z"} {
		w.addJob(gang(j, 1, 1))
	}
	w.run(1000, 1000)
	w.need("a", 1)
	w.need("b", 1)
	w.step()
	if len(w.takes()) != 1 || len(w.victims()) != 2 {
		t.Fatal(w.plan.words())
	}
}

// One of two gangs runs whole, the other holds nothing.
func TestCase_FILL_08(t *testing.T) {
	w := newWorld(t)
	w.addNodes(1, 8, 8, 80, 1)
	w.addJob(gang("p", 6, 8))
	w.addJob(gang("q", 6, 8))
	w.run(10_000, 1000)
	w.phase("p", registry.JobRunning)
	w.phase("q", registry.JobPending)
	if n := len(w.st.Jobs["p"].Ranks); n != 8 {
		t.Fatalf("p runs with %d", n)
	}
}

// A gang shrinks to its minimum at most, then pauses whole; finished ranks
// count neither way.
func TestCase_FILL_09(t *testing.T) {
	for burst := 1; burst <= 4; burst++ {
		w := newWorld(t)
		w.addNodes(1, 4, 4, 80, 1)
		w.addModel(registry.ModelSpec{Name: "chat"})
		w.addJob(gang("e", 2, 8))
		w.run(1000, 1000)
		fleet := nodes.NewFleet()
		fleet.Frame("n00", &nodes.Frame{Hello: &nodes.Hello{Node: w.st.Nodes["n00"].Node,
			Ranks: []nodes.RankNote{{Holder: "e.g1.r3", Job: "e", Generation: 1, Rank: 3, Kind: "finished"}}}}, w.nowMs)
		w.need("chat", burst)
		w.plan = w.p.Plan(View{State: w.st, Fleet: fleet, Headroom: w.headroom}, w.nowMs)
		v := w.victims()
		if len(v) != 1 || len(w.takes()) != burst {
			t.Fatalf("burst %d: %s", burst, w.plan.words())
		}
		// Ranks 0 to 2 live, and rank 3's GPU goes first: with one or two GPUs
		// taken two may go on, with more none.
		world := len(v[0].Next)
		if burst <= 2 && world < 2 || burst > 2 && (world != 0 || v[0].Rung != registry.RungPause) {
			t.Fatalf("burst %d leaves %d: %s", burst, world, w.plan.words())
		}
		for _, r := range v[0].Next {
			if slices.Contains(w.st.Jobs["e"].Ranks[3].GPUs, r.GPUs[0]) {
				t.Fatalf("burst %d: a finished rank goes on: %s", burst, w.plan.words())
			}
		}
	}
}

// What a shrink frees goes to who waits, in the next plan.
func TestCase_FILL_12(t *testing.T) {
	w := newWorld(t)
	w.addNodes(1, 8, 8, 80, 1)
	w.addJob(gang("big", 5, 8))
	w.run(1000, 1000)
	w.addJob(gang("small", 3, 3))
	w.run(5000, 1000)
	w.phase("small", registry.JobPending)
	j := w.st.Jobs["big"]
	w.apply(registry.Command{JobStop: &registry.Victim{Job: "big", Seq: j.Seq, Rung: registry.RungUser, Next: j.Ranks[:5]}})
	w.settle()
	w.run(1000, 1000)
	w.phase("small", registry.JobRunning)
}

// Borrowed GPUs come back by an agreed stop; a lowered limit is a planned shrink.
func TestCase_FILL_22(t *testing.T) {
	w := newWorld(t)
	w.addNodes(1, 8, 8, 80, 1)
	put := func(name string, guarantee, limit int) {
		w.apply(registry.Command{PutTenant: &registry.TenantSpec{Name: name, GuaranteeGPUs: guarantee, LimitGPUs: limit, Weight: 1}})
	}
	put("a", 4, 0)
	put("b", 4, 0)
	jb := gang("jb", 1, 8)
	jb.Tenant = "b"
	w.addJob(jb)
	w.run(200_000, 1000)
	ja := gang("ja", 4, 4)
	ja.Tenant = "a"
	w.addJob(ja)
	w.run(5000, 1000)
	w.phase("ja", registry.JobRunning)
	if n := len(w.st.Jobs["jb"].Ranks); n != 4 {
		t.Fatalf("b holds %d\n%s", n, w.holders())
	}
	w.wantSwitches("quota jb", 1)
	put("b", 0, 2)
	w.run(5000, 1000)
	if n := len(w.st.Jobs["jb"].Ranks); n != 2 {
		t.Fatalf("b holds %d\n%s", n, w.holders())
	}
	w.wantSwitches("quota jb", 2)
	w.run(600_000, 5000)
	if n := len(w.st.Jobs["jb"].Ranks); n != 2 {
		t.Fatalf("b grew to %d", n)
	}
}

// A stopping replica blocks no substitute, and those still loading are
// cancelled before any that serves.
func TestCase_FILL_24(t *testing.T) {
	w := newWorld(t)
	w.addNodes(1, 4, 4, 80, 1)
	w.addModel(registry.ModelSpec{Name: "chat"})
	w.need("chat", 3)
	w.run(1000, 1000)
	bad := w.st.Replicas["chat-1"]
	w.apply(registry.Command{ReplicaPhase: &registry.PhaseChange{Name: bad.ID, Seq: bad.Seq, To: string(registry.ReplicaStopping)}})
	w.step()
	if len(w.takes()) != 1 || len(w.victims()) != 0 {
		t.Fatal(w.plan.words())
	}
	w.settle()
	w.need("chat", 4)
	w.step() // the fourth is loading
	loading := w.takes()[0].Replica
	w.need("chat", 3)
	for range 17 {
		w.nowMs += 1000
		w.step()
	}
	if r := w.st.Replicas[loading]; r.Phase != registry.ReplicaStopping {
		t.Fatalf("%s is %s", loading, r.Phase)
	}
	for id, r := range w.st.Replicas {
		if id != loading && r.Phase != registry.ReplicaReady {
			t.Fatalf("%s is %s", id, r.Phase)
		}
	}
}
