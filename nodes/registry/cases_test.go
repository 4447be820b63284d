package registry

import (
	"errors"
	"fmt"
	"testing"

	"sluice/nodes"
)

// caseFloor is a node of GPUs g0, g1, … of 80 bytes, a model of one GPU and a
// job of one rank.
func caseFloor(t *testing.T, gpus int) (*State, func(Command) error) {
	t.Helper()
	s := New()
	do := func(c Command) error {
		c.AtMs = s.LastMs + 1_000
		_, err := s.Apply(&c)
		if bad := s.Check(); len(bad) > 0 {
			t.Fatalf("after %s: %v", describe(&c), bad)
		}
		return err
	}
	n := nodes.Node{ID: "n"}
	for g := range gpus {
		n.GPUs = append(n.GPUs, nodes.GPU{UUID: fmt.Sprint("g", g), MemoryBytes: 80})
	}
	m := ModelSpec{Name: "m", Command: []string{"x"}, ActiveBytes: 60, ResidentBytes: 5, Sleep: nodes.SleepVLLM}
	m.Default()
	j := JobSpec{Name: "j", Command: []string{"x"}, MinWorld: 1, MaxWorld: 1, ActiveBytes: 60, ResidentBytes: 15}
	j.Default()
	for _, c := range []Command{{NodeSeen: &n}, {PutModel: &m}, {SubmitJob: &j}} {
		if err := do(c); err != nil {
			t.Fatal(err)
		}
	}
	return s, do
}

func (s *State) placeOn(gpu string) Command {
	j := s.Jobs["j"]
	return Command{JobPlace: &JobPlace{Job: "j", Seq: j.Seq, Ranks: []RankPlace{{Node: "n", GPUs: []string{gpu}}}}}
}

func (s *State) jobTo(p JobPhase) Command {
	return Command{JobPhase: &PhaseChange{Name: "j", Seq: s.Jobs["j"].Seq, To: string(p)}}
}

func (s *State) replicaTo(id string, p ReplicaPhase) Command {
	return Command{ReplicaPhase: &PhaseChange{Name: id, Seq: s.Replicas[id].Seq, To: string(p)}}
}

func (s *State) takeOf(id, gpu string, victims ...Victim) Command {
	return Command{Reclaim: &Reclaim{Takes: []Take{{Replica: id, Model: "m", Version: 1, Node: "n", GPUs: []string{gpu}}}, Victims: victims}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The stop signal frees nothing, nor does the end of the process, nor a
// deadline: a GPU is given on when its holder is proved gone.
func TestCase_FILL_10_FreeWhenProved(t *testing.T) {
	s, do := caseFloor(t, 1)
	for round := range 100 {
		id := s.NewReplicaID("m", 1)
		must(t, do(s.placeOn("g0")))
		must(t, do(s.jobTo(JobStarting)))
		must(t, do(s.jobTo(JobRunning)))
		j := s.Jobs["j"]
		must(t, do(s.takeOf(id, "g0", Victim{Job: "j", Seq: j.Seq, Rung: RungPause, Reason: "a burst"})))
		early := func(when string) {
			t.Helper()
			if err := do(s.replicaTo(id, ReplicaStarting)); !errors.Is(err, ErrConflict) || s.GPUs["g0"].Active != j.Holder(0) || s.GPUs["g0"].Reserved != id {
				t.Fatalf("round %d, %s: %v; %+v", round, when, err, s.GPUs["g0"])
			}
		}
		early("told to stop")
		must(t, do(Command{JobCommit: &JobCommit{Job: "j", StopID: j.Stop.ID, Step: 4}}))
		early("stops at step 4")
		must(t, do(Command{JobEnding: &JobEnding{Job: "j", Seq: j.Seq, After: JobPaused, Rung: RungKill, Reason: "did not stop in time"}}))
		early("being killed")
		must(t, do(Command{RankGone: &RankGone{Job: "j", Generation: j.Generation, Ranks: []int{0}}}))
		must(t, do(s.replicaTo(id, ReplicaStarting)))
		must(t, do(s.replicaTo(id, ReplicaStopping)))
		if err := do(s.placeOn("g0")); !errors.Is(err, ErrStale) {
			t.Fatalf("round %d: a rank beside a replica that stops: %v", round, err)
		}
		must(t, do(Command{ReplicaGone: &ReplicaGone{Replica: id}}))
	}
}

// A rank crashes and is restarted again and again while replicas come and go on
// its node, two of them sharing a GPU: no GPU ever has two active holders, what
// is held cannot be taken without a victim, and the rank gets its own again.
func TestCase_FILL_11_OneOwner(t *testing.T) {
	s, do := caseFloor(t, 4)
	shared := ""
	for round := range 50 {
		must(t, do(s.placeOn("g3")))
		j := s.Jobs["j"]
		must(t, do(s.jobTo(JobStarting)))
		must(t, do(s.jobTo(JobRunning)))
		if err := do(s.takeOf(s.NewReplicaID("m", 1), "g3")); !errors.Is(err, ErrConflict) {
			t.Fatalf("round %d: the rank's GPU was taken: %v", round, err)
		}
		id := s.NewReplicaID("m", 1)
		must(t, do(s.takeOf(id, "g0")))
		must(t, do(s.replicaTo(id, ReplicaStarting)))
		must(t, do(s.replicaTo(id, ReplicaReady)))
		if err := do(s.takeOf(s.NewReplicaID("m", 1), "g0")); !errors.Is(err, ErrConflict) {
			t.Fatalf("round %d: a replica's GPU was taken: %v", round, err)
		}
		if shared == "" { // it sleeps on g0; the later ones are active beside it
			shared = id
			must(t, do(s.replicaTo(id, ReplicaDraining)))
			must(t, do(s.replicaTo(id, ReplicaAsleep)))
		} else {
			must(t, do(s.replicaTo(id, ReplicaStopping)))
			must(t, do(Command{ReplicaGone: &ReplicaGone{Replica: id}}))
		}
		must(t, do(Command{JobEnding: &JobEnding{Job: "j", Seq: j.Seq, After: JobPaused, Rung: RungFailed, Restart: true, Reason: "exited with code 1"}}))
		if err := do(s.placeOn("g3")); !errors.Is(err, ErrStale) {
			t.Fatalf("round %d: restarted before the old rank is gone: %v", round, err)
		}
		must(t, do(Command{RankGone: &RankGone{Job: "j", Generation: j.Generation, Ranks: []int{0}}}))
	}
	if !s.GPUs["g0"].isResident(shared) || s.GPUs["g3"].Active != "" {
		t.Errorf("%+v %+v", s.GPUs["g0"], s.GPUs["g3"])
	}
}

// Gone twice, of another generation, of ranks that are not there, before the
// generation was ended: each is passed over or refused, and frees nothing.
func TestRankGoneAtTheEdges(t *testing.T) {
	s, do := caseFloor(t, 1)
	must(t, do(s.placeOn("g0")))
	j := s.Jobs["j"]
	gone := func(generation int64, ranks ...int) error {
		return do(Command{RankGone: &RankGone{Job: "j", Generation: generation, Ranks: ranks}})
	}
	if err := gone(1, 0); !errors.Is(err, ErrStale) || s.GPUs["g0"].Active == "" {
		t.Errorf("before its end: %v", err)
	}
	must(t, do(Command{JobEnding: &JobEnding{Job: "j", Seq: j.Seq, After: JobPaused, Rung: RungFailed}}))
	if err := gone(0, 0); !errors.Is(err, ErrStale) {
		t.Errorf("another generation: %v", err)
	}
	must(t, gone(1, -1, 1, 7))
	if s.GPUs["g0"].Active == "" || j.Phase != JobReleasing {
		t.Errorf("ranks that are not there freed %+v", s.GPUs["g0"])
	}
	must(t, gone(1, 0, 0))
	if s.GPUs["g0"].Active != "" || j.Phase != JobPaused || j.Last.Generation != 1 || len(j.Last.Nodes) != 1 {
		t.Errorf("%s %+v", j.Phase, j.Last)
	}
	if err := gone(1, 0); !errors.Is(err, ErrStale) {
		t.Errorf("once more: %v", err)
	}
}

// A yielded gang comes back only where its GPUs are free of active holders and
// of reservations, and keeps its memory until it is proved gone.
func TestResumeAtTheEdges(t *testing.T) {
	s, do := caseFloor(t, 1)
	must(t, do(s.placeOn("g0")))
	must(t, do(s.jobTo(JobStarting)))
	must(t, do(s.jobTo(JobRunning)))
	j, g := s.Jobs["j"], s.GPUs["g0"]
	id := s.NewReplicaID("m", 1)
	must(t, do(s.takeOf(id, "g0", Victim{Job: "j", Seq: j.Seq, Rung: RungYield})))
	if err := do(s.jobTo(JobResuming)); !errors.Is(err, ErrStale) {
		t.Errorf("resumed while it yields: %v", err)
	}
	must(t, do(s.jobTo(JobYielded)))
	if err := do(s.jobTo(JobResuming)); !errors.Is(err, ErrStale) {
		t.Errorf("its GPU is reserved: %v", err)
	}
	must(t, do(s.replicaTo(id, ReplicaStarting)))
	if err := do(s.jobTo(JobResuming)); !errors.Is(err, ErrStale) || g.Active != id || !g.isResident(j.Holder(0)) {
		t.Errorf("its GPU is held: %v %+v", err, g)
	}
	must(t, do(Command{JobEnding: &JobEnding{Job: "j", Seq: j.Seq, After: JobPaused, Rung: RungPause}}))
	if g.Active != id || !g.isResident(j.Holder(0)) {
		t.Errorf("it leaves beside the replica: %+v", g)
	}
	must(t, do(Command{RankGone: &RankGone{Job: "j", Generation: 1, Ranks: []int{0}}}))
	if g.Active != id || len(g.Residents) != 0 {
		t.Errorf("it is gone: %+v", g)
	}
}

// A reclaim names each thing once, and nothing gives way to itself or twice.
func TestReclaimNamesEachOnce(t *testing.T) {
	s, do := caseFloor(t, 2)
	must(t, do(s.takeOf("m-1", "g0")))
	must(t, do(s.replicaTo("m-1", ReplicaStarting)))
	must(t, do(s.replicaTo("m-1", ReplicaReady)))
	v := Victim{Replica: "m-1", Seq: s.Replicas["m-1"].Seq, Rung: RungPause}
	if err := do(s.takeOf("m-2", "g0", v, v)); !errors.Is(err, ErrConflict) {
		t.Errorf("a victim twice: %v", err)
	}
	twice := s.takeOf("m-2", "g1")
	twice.Reclaim.Takes = append(twice.Reclaim.Takes, Take{Replica: "m-2", Model: "m", Node: "n", GPUs: []string{"g0"}})
	if err := do(twice); !errors.Is(err, ErrConflict) {
		t.Errorf("a replica placed twice: %v", err)
	}
	must(t, do(s.replicaTo("m-1", ReplicaDraining)))
	must(t, do(s.replicaTo("m-1", ReplicaAsleep)))
	wake := Command{Reclaim: &Reclaim{Takes: []Take{{Replica: "m-1", Model: "m", Node: "n", GPUs: []string{"g0"}, Wake: true}},
		Victims: []Victim{{Replica: "m-1", Seq: s.Replicas["m-1"].Seq, Rung: RungPause}}}}
	if err := do(wake); !errors.Is(err, ErrConflict) {
		t.Errorf("a sleeper that gives way to itself: %v", err)
	}
}

// A new declaration is the next version's: those that run keep what they have.
func TestReplicaKeepsItsDeclaration(t *testing.T) {
	s, do := caseFloor(t, 1)
	must(t, do(s.takeOf("m-1", "g0")))
	must(t, do(s.replicaTo("m-1", ReplicaStarting)))
	m := s.Models["m"].Spec
	m.ActiveBytes, m.ResidentBytes = 500, 400
	must(t, do(Command{PutModel: &m}))
	must(t, do(s.replicaTo("m-1", ReplicaReady)))
	must(t, do(s.replicaTo("m-1", ReplicaDraining)))
	must(t, do(s.replicaTo("m-1", ReplicaAsleep)))
	if r := s.GPUs["g0"].Residents[0]; r.Bytes != 5 {
		t.Errorf("%+v", r)
	}
}
