package registry

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"sluice/nodes"
)

// gangOn is a job whose rank i lies on the i-th named node.
func gangOn(launcher nodes.Launcher, on ...string) *Job {
	j := &Job{Spec: JobSpec{Name: "j", Launcher: launcher}, Generation: 3}
	for i, node := range on {
		j.Ranks = append(j.Ranks, RankPlace{Rank: i, Node: node})
	}
	return j
}

// One place maps ranks to holders: one a rank, or one a node with torchrun.
func TestHolderOfARank(t *testing.T) {
	for _, c := range []struct {
		launcher nodes.Launcher
		on       []string
		want     []string
		counts   []int // ranks of each holder, in order
	}{
		{nodes.LaunchRanks, []string{"a", "a", "b"}, []string{"j.g3.r0", "j.g3.r1", "j.g3.r2"}, []int{1, 1, 1}},
		{nodes.LaunchTorchrun, []string{"a"}, []string{"j.g3.r0"}, []int{1}},
		{nodes.LaunchTorchrun, []string{"a", "a"}, []string{"j.g3.r0", "j.g3.r0"}, []int{2}},
		{nodes.LaunchTorchrun, []string{"a", "b"}, []string{"j.g3.r0", "j.g3.r1"}, []int{1, 1}},
		{nodes.LaunchTorchrun, []string{"a", "a", "b", "b", "b", "c"}, []string{"j.g3.r0", "j.g3.r0", "j.g3.r2", "j.g3.r2", "j.g3.r2", "j.g3.r5"}, []int{2, 3, 1}},
	} {
		j := gangOn(c.launcher, c.on...)
		var got []string
		for i := range j.Ranks {
			got = append(got, j.Holder(i))
		}
		var counts []int
		for i := 0; i < len(j.Ranks); i += j.HolderRanks(i) {
			counts = append(counts, j.HolderRanks(i))
		}
		if !slices.Equal(got, c.want) || !slices.Equal(counts, c.counts) {
			t.Errorf("%s on %v: holders %v of %v ranks", c.launcher, c.on, got, counts)
		}
		s := New()
		s.Jobs["j"] = j
		for i := range j.Ranks {
			name := RankHolder("j", 3, i)
			if s.CurrentHolder(name) != slices.Contains(c.want, name) {
				t.Errorf("%s on %v: current holder %s: %v", c.launcher, c.on, name, s.CurrentHolder(name))
			}
		}
	}
}

func TestNamesThatAreNoCurrentHolder(t *testing.T) {
	s := New()
	j := gangOn(nodes.LaunchRanks, "a", "a")
	j.Ranks[1].Gone = true
	s.Jobs["j"] = j
	for _, name := range []string{"", "j", "j.g3", "j.g3.r1", "j.g3.r2", "j.g2.r0", "j.g3.r-1", "j.g03.r0", "j.g3.r00", "j.g3.x0", "j.h3.r0", "k.g3.r0", "j.g3.r0.r0", "..", "j..r0"} {
		if s.CurrentHolder(name) {
			t.Errorf("%q is no current holder", name)
		}
	}
	if !s.CurrentHolder("j.g3.r0") {
		t.Error("rank 0 is one")
	}
}

// torchFloor is a torchrun gang of four ranks running on two nodes.
func torchFloor(t *testing.T) (*State, func(Command) error) {
	t.Helper()
	s := New()
	do := func(c Command) error {
		c.AtMs = s.LastMs + 1_000
		_, err := s.Apply(&c)
		if bad := s.Check(); len(bad) > 0 {
			t.Fatalf("after %+v: %v", c, bad)
		}
		return err
	}
	for _, id := range []string{"a", "b"} {
		n := nodes.Node{ID: id}
		for g := range 2 {
			n.GPUs = append(n.GPUs, nodes.GPU{UUID: fmt.Sprintf("%s-%d", id, g), MemoryBytes: 80})
		}
		if err := do(Command{NodeSeen: &n}); err != nil {
			t.Fatal(err)
		}
	}
	spec := JobSpec{Name: "j", Command: []string{"x"}, MinWorld: 4, MaxWorld: 4, Launcher: nodes.LaunchTorchrun, ActiveBytes: 60, ResidentBytes: 20}
	spec.Default()
	if err := do(Command{SubmitJob: &spec}); err != nil {
		t.Fatal(err)
	}
	return s, do
}

func torchPlaces(ids ...string) []RankPlace {
	var out []RankPlace
	for i, id := range ids {
		out = append(out, RankPlace{Rank: i, Node: id[:1], GPUs: []string{id}})
	}
	return out
}

// A torchrun holds all GPUs of its node under one name, keeps memory on all of
// them while it yields, and leaves all of them at once.
func TestTorchrunHoldsItsNodesGPUs(t *testing.T) {
	s, do := torchFloor(t)
	run := func(c Command) {
		t.Helper()
		if err := do(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := do(Command{JobPlace: &JobPlace{Job: "j", Ranks: torchPlaces("a-0", "b-0", "a-1", "b-1")}}); !errors.Is(err, ErrConflict) {
		t.Errorf("ranks of a node apart: %v", err)
	}
	run(Command{JobPlace: &JobPlace{Job: "j", Ranks: torchPlaces("a-0", "a-1", "b-0", "b-1")}})
	held := func(active, resident string) {
		t.Helper()
		for id, holder := range map[string]string{"a-0": "j.g1.r0", "a-1": "j.g1.r0", "b-0": "j.g1.r2", "b-1": "j.g1.r2"} {
			g := s.GPUs[id]
			if (g.Active == holder) != (active == "yes") || g.isResident(holder) != (resident == "yes") {
				t.Errorf("%s: active %q, residents %v", id, g.Active, g.Residents)
			}
		}
	}
	held("yes", "no")
	j := s.Jobs["j"]
	to := func(phase JobPhase) { run(Command{JobPhase: &PhaseChange{Name: "j", Seq: j.Seq, To: string(phase)}}) }
	to(JobStarting)
	to(JobRunning)
	run(Command{JobStop: &Victim{Job: "j", Seq: j.Seq, Rung: RungYield}})
	to(JobYielded)
	held("no", "yes")
	to(JobResuming)
	held("yes", "no")
	to(JobRunning)
	run(Command{JobEnding: &JobEnding{Job: "j", Seq: j.Seq, After: JobPaused, Rung: RungPause}})
	held("yes", "no")
	run(Command{RankGone: &RankGone{Job: "j", Generation: 1, Ranks: []int{1}}}) // one of its ranks is all of them
	if !j.Ranks[0].Gone || !j.Ranks[1].Gone || j.Ranks[2].Gone || s.GPUs["a-0"].Active != "" || s.GPUs["a-1"].Active != "" || s.GPUs["b-0"].Active == "" {
		t.Errorf("after node a: %+v", j.Ranks)
	}
	if s.CurrentHolder("j.g1.r0") || !s.CurrentHolder("j.g1.r2") {
		t.Error("the holder of node a is gone, that of node b is not")
	}
	run(Command{RankGone: &RankGone{Job: "j", Generation: 1, Ranks: []int{2, 3}}})
	held("no", "no")
	if j.Phase != JobPaused {
		t.Errorf("%s", j.Phase)
	}
}
