package fill

import (
	"slices"
	"testing"

	"sluice/nodes"
	"sluice/nodes/registry"
)

// torchWorld is a torchrun gang of three ranks on two nodes in one phase.
func torchWorld(phase registry.JobPhase) View {
	s := registry.New()
	s.Jobs["j"] = &registry.Job{Spec: registry.JobSpec{Name: "j", Launcher: nodes.LaunchTorchrun, Command: []string{"x"}},
		Phase: phase, Generation: 4, Seq: 9,
		Ranks: []registry.RankPlace{{Rank: 0, Node: "n1", GPUs: []string{"g0"}}, {Rank: 1, Node: "n1", GPUs: []string{"g1"}}, {Rank: 2, Node: "n2", GPUs: []string{"g2"}}}}
	f := nodes.NewFleet()
	for _, node := range []string{"n1", "n2"} {
		s.Nodes[node] = &registry.Node{}
		f.Frame(node, &nodes.Frame{Hello: &nodes.Hello{Node: nodes.Node{ID: node}}}, 1)
	}
	for i, g := range []string{"g0", "g1", "g2"} {
		s.GPUs[g] = &registry.GPU{Node: s.Jobs["j"].Ranks[i].Node, GPU: nodes.GPU{UUID: g}, Active: s.Jobs["j"].Holder(i)}
	}
	return View{State: s, Fleet: f}
}

func (v View) torchSays(node, holder string, rank int, n nodes.RankNote) {
	n.Holder, n.Rank, n.Generation, n.Job = holder, rank, 4, "j"
	v.Fleet.Frame(node, &nodes.Frame{Rank: &n}, 2)
}

func holdersOf(orders []NodeOrder) []string {
	var out []string
	for _, o := range orders {
		out = append(out, o.Node+" "+o.Order.Holder+" "+string(o.Order.Kind))
	}
	return out
}

// One torchrun is prepared a node: with all GPUs of its ranks, their number and
// the first of them.
func TestTorchrunIsOneHolderANode(t *testing.T) {
	orders := Orders(torchWorld(registry.JobPreparing), 1, 1, "/c")
	if got := holdersOf(orders); !slices.Equal(got, []string{"n1 j.g4.r0 prepare", "n2 j.g4.r2 prepare"}) {
		t.Fatalf("%v", got)
	}
	for i, want := range []struct {
		gpus                              []string
		rank, local, nodeRank, localWorld int
	}{{[]string{"g0", "g1"}, 0, 0, 0, 2}, {[]string{"g2"}, 2, 0, 1, 1}} {
		s := orders[i].Order.Spec
		r := s.Rank
		if !slices.Equal(s.GPUs, want.gpus) || r.Rank != want.rank || r.LocalRank != want.local || r.NodeRank != want.nodeRank ||
			r.LocalWorldSize != want.localWorld || r.WorldSize != 3 || r.NodeCount != 2 {
			t.Errorf("%v %+v", s.GPUs, r)
		}
	}
}

// A gang is prepared and runs when each rank's holder says so, and each rank
// said hello.
func TestTorchrunStartsWithAllHellos(t *testing.T) {
	v := torchWorld(registry.JobStarting)
	for _, h := range [][2]string{{"n1", "j.g4.r0"}, {"n2", "j.g4.r2"}} {
		v.Fleet.Frame(h[0], &nodes.Frame{Holder: &nodes.HolderStatus{ID: h[1], Generation: 4, State: nodes.StateRunning}}, 1)
	}
	v.torchSays("n1", "j.g4.r0", 0, nodes.RankNote{Kind: "hello"})
	v.torchSays("n2", "j.g4.r2", 2, nodes.RankNote{Kind: "hello"})
	running := func() bool {
		return slices.ContainsFunc(Advance(v, 10), func(c registry.Command) bool { return c.JobPhase != nil && c.JobPhase.To == "running" })
	}
	if running() {
		t.Error("rank 1 has not said hello")
	}
	v.torchSays("n1", "j.g4.r0", 1, nodes.RankNote{Kind: "hello"})
	if !running() {
		t.Error("all have said hello")
	}
}

// A stop is told to a torchrun until each of its ranks has answered.
func TestTorchrunStopsWithAllItsRanks(t *testing.T) {
	v := torchWorld(registry.JobStopping)
	j := v.State.Jobs["j"]
	j.Stop = &registry.Stop{ID: "s1", Mode: nodes.StopSave, Rung: registry.RungPause, Step: -1}
	expect := func(when string, want ...string) {
		t.Helper()
		if got := holdersOf(Orders(v, 1, 1, "/c")); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	expect("at first", "n1 j.g4.r0 rankPrepare", "n2 j.g4.r2 rankPrepare")
	v.torchSays("n1", "j.g4.r0", 0, nodes.RankNote{Kind: "prepared", StopID: "s1", Begun: 7})
	v.torchSays("n2", "j.g4.r2", 2, nodes.RankNote{Kind: "prepared", StopID: "s1", Begun: 8})
	expect("rank 1 is missing", "n1 j.g4.r0 rankPrepare")
	v.torchSays("n1", "j.g4.r0", 1, nodes.RankNote{Kind: "prepared", StopID: "s1", Begun: 7})
	expect("all answered")
	j.Stop.Step = 8
	expect("committed", "n1 j.g4.r0 rankCommit", "n2 j.g4.r2 rankCommit")
	for i, h := range []string{"j.g4.r0", "j.g4.r0", "j.g4.r2"} {
		v.torchSays(j.Ranks[i].Node, h, i, nodes.RankNote{Kind: "stopped", StopID: "s1", Step: 8})
	}
	expect("all stopped")
	j.Phase = registry.JobReleasing
	expect("releasing", "n1 j.g4.r0 stop", "n2 j.g4.r2 stop")
	for _, h := range [][2]string{{"n1", "j.g4.r0"}, {"n2", "j.g4.r2"}} {
		v.Fleet.Frame(h[0], &nodes.Frame{Holder: &nodes.HolderStatus{ID: h[1], Generation: 4, State: nodes.StateGone, Exited: true, ExitCode: 1}}, 3)
	}
	var gone []int
	for _, c := range Advance(v, 10) {
		if c.RankGone != nil {
			gone = c.RankGone.Ranks
		}
	}
	if !slices.Equal(gone, []int{0, 1, 2}) {
		t.Errorf("gone: %v", gone)
	}
}
