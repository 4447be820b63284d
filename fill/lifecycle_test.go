package fill

import (
	"strings"
	"testing"

	"sluice/nodes"
	"sluice/nodes/registry"
)

// preparing is a job of one rank whose agent answers its prepare with ans.
func preparing(t *testing.T, maxRestarts int, ans nodes.Answer) (*registry.State, *nodes.Fleet, func(registry.Command)) {
	t.Helper()
	st, fleet := registry.New(), nodes.NewFleet()
	apply := func(c registry.Command) {
		t.Helper()
		if _, err := st.Apply(&c); err != nil {
			t.Fatal(err)
		}
	}
	n := nodes.Node{ID: "n0", GPUs: []nodes.GPU{{UUID: "g0", MemoryBytes: giB}}}
	apply(registry.Command{AtMs: 1000, NodeSeen: &n})
	spec := registry.JobSpec{Name: "j", Tenant: "default", Command: []string{"t"}, MinWorld: 1, MaxWorld: 1, MaxRestarts: maxRestarts}
	spec.Default()
	apply(registry.Command{AtMs: 1000, SubmitJob: &spec})
	apply(registry.Command{AtMs: 1000, JobPlace: &registry.JobPlace{Job: "j", Ranks: []registry.RankPlace{{Node: "n0", GPUs: []string{"g0"}}}, TimeoutMs: 60_000}})
	fleet.Frame("n0", &nodes.Frame{Hello: &nodes.Hello{Node: n}}, 1000)
	ans.ID = rankOrderID(st.Jobs["j"], 0, nodes.OrderPrepare)
	fleet.Frame("n0", &nodes.Frame{Answer: &ans}, 1000)
	return st, fleet, apply
}

// A program that is not there counts as a crash and gives up in the end; a GPU
// that is not free yet is tried again and counts for nothing.
func TestRefusedPrepareCountsOnlyWhenItLasts(t *testing.T) {
	for _, c := range []struct {
		lasting bool
		max     int
		after   registry.JobPhase
		crash   bool
	}{
		{true, 3, registry.JobPaused, true},
		{false, 3, registry.JobPaused, false},
	} {
		st, fleet, apply := preparing(t, c.max, nodes.Answer{Err: "no", Lasting: c.lasting})
		cmds := Advance(View{State: st, Fleet: fleet}, 2000)
		if len(cmds) != 1 || cmds[0].JobEnding == nil {
			t.Fatalf("%+v", cmds)
		}
		e := cmds[0].JobEnding
		if e.After != c.after || e.Restart != c.crash || e.BackoffToMs <= 2000 {
			t.Errorf("lasting %v: %+v", c.lasting, e)
		}
		apply(cmds[0])
	}
	st, fleet, _ := preparing(t, 3, nodes.Answer{Err: "no such user", Lasting: true})
	st.Jobs["j"].Restarts = []int64{1500, 1600, 1700}
	cmds := Advance(View{State: st, Fleet: fleet}, 2000)
	if e := cmds[0].JobEnding; e.After != registry.JobFailed || !strings.Contains(e.Reason, "maxRestarts is 3") {
		t.Errorf("%+v", e)
	}
}

// A rank that exits with 0 and a rank that never says hello are told what to
// do when they do not speak the protocol.
func TestSpeechlessRanksAreToldTheRemedy(t *testing.T) {
	st, fleet, _ := preparing(t, 3, nodes.Answer{})
	fleet.Frame("n0", &nodes.Frame{Holder: &nodes.HolderStatus{ID: st.Jobs["j"].Holder(0), Generation: 1, State: nodes.StateGone, Exited: true, Reason: "exited with code 0"}}, 1500)
	cmds := Advance(View{State: st, Fleet: fleet}, 2000)
	if len(cmds) != 1 || cmds[0].JobEnding == nil || !strings.Contains(cmds[0].JobEnding.Reason, "exited with code 0 without a word that it had finished; "+speechless) {
		t.Errorf("%+v", cmds)
	}
	st, fleet, apply := preparing(t, 3, nodes.Answer{})
	apply(registry.Command{AtMs: 1500, JobPhase: &registry.PhaseChange{Name: "j", Seq: st.Jobs["j"].Seq, To: string(registry.JobStarting), TimeoutMs: 100, Reason: "all agents prepared"}})
	cmds = Advance(View{State: st, Fleet: fleet}, 20_000)
	if len(cmds) != 1 || cmds[0].JobEnding == nil || !strings.Contains(cmds[0].JobEnding.Reason, speechless) {
		t.Errorf("%+v", cmds)
	}
}
