package fill

import (
	"slices"
	"testing"

	"sluice/nodes"
	"sluice/nodes/registry"
)

// pruneWorld is a gang of three ranks on two nodes in its fourth generation,
// with two manifests.
func pruneWorld() View {
	shard := func(file string) nodes.Shard { return nodes.Shard{File: file} }
	s := registry.New()
	s.Jobs["j"] = &registry.Job{Spec: registry.JobSpec{Name: "j"}, Phase: registry.JobRunning, Generation: 4, Seq: 9,
		Ranks: []registry.RankPlace{{Rank: 0, Node: "n1"}, {Rank: 1, Node: "n1"}, {Rank: 2, Node: "n2"}},
		Manifests: []registry.Manifest{
			{Step: 40, Generation: 4, Shards: []nodes.Shard{shard("/c/j/g4/step-40/a"), shard("/c/j/g4/step-40/b")}},
			{Step: 20, Generation: 2, Shards: []nodes.Shard{shard("/c/j/g2/step-19-r0.pt"), shard("/c/j/g2/step-19-r1.pt"), shard("/c/j/g2/all.json")}}},
		Ledger: []registry.LedgerEntry{{Generation: 2}, {Generation: 3}}}
	f := nodes.NewFleet()
	for i, node := range []string{"n1", "n1", "n2"} {
		s.Nodes[node] = &registry.Node{}
		if f.Nodes[node] == nil {
			f.Frame(node, &nodes.Frame{Hello: &nodes.Hello{Node: nodes.Node{ID: node}}}, 1)
		}
		holder := registry.RankHolder("j", 4, i)
		f.Frame(node, &nodes.Frame{Holder: &nodes.HolderStatus{ID: holder, Generation: 4, State: nodes.StateRunning}}, 1)
		f.Frame(node, &nodes.Frame{Rank: &nodes.RankNote{Holder: holder, Generation: 4, Rank: i, Kind: "hello"}}, 1)
	}
	return View{State: s, Fleet: f}
}

// Each node of a running gang is told once a manifest what may go.
func TestPruneIsOrderedOnceAManifest(t *testing.T) {
	v := pruneWorld()
	orders := Orders(v, 1, 1, "/c")
	if len(orders) != 2 || orders[0].Node != "n1" || orders[1].Node != "n2" {
		t.Fatalf("%+v", orders)
	}
	for i, holder := range []string{"j.g4.r0", "j.g4.r2"} {
		o := orders[i].Order
		if o.Kind != nodes.OrderPrune || o.Holder != holder || o.Step != 40 || o.FromGeneration != 2 ||
			!slices.Equal(o.Keep, []string{"g2/step-19", "g4/step-40"}) {
			t.Errorf("%+v", o)
		}
		v.Fleet.Frame(orders[i].Node, &nodes.Frame{Rank: &nodes.RankNote{Holder: holder, Rank: 2 * i, Kind: "pruned", Step: 40}}, 2)
	}
	if orders := Orders(v, 1, 2, "/c"); len(orders) != 0 {
		t.Errorf("done, and ordered again: %+v", orders)
	}
	v.State.Jobs["j"].Manifests[0].Step = 60
	if orders := Orders(v, 1, 3, "/c"); len(orders) != 2 {
		t.Errorf("a newer manifest: %+v", orders)
	}
}

// Without a manifest, the protocol or a running generation nothing is removed.
func TestPruneNeedsAManifest(t *testing.T) {
	for name, edit := range map[string]func(*registry.Job){
		"no manifest": func(j *registry.Job) { j.Manifests = nil },
		"by signal":   func(j *registry.Job) { j.Spec.Protocol = "none" },
		"yielded":     func(j *registry.Job) { j.Phase = registry.JobYielded },
	} {
		v := pruneWorld()
		edit(v.State.Jobs["j"])
		if orders := Orders(v, 1, 1, "/c"); len(orders) != 0 {
			t.Errorf("%s: %+v", name, orders)
		}
	}
}
