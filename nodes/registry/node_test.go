package registry

import (
	"slices"
	"testing"

	"sluice/nodes"
)

func gpusOf(s *State, node string) []string {
	var out []string
	for _, g := range s.nodeGPUs(node) {
		out = append(out, g.UUID)
	}
	return out
}

// The GPUs of a node are known whichever way they came: with a new node, later,
// from another node, out of a snapshot.
func TestGPUsOfANode(t *testing.T) {
	s := New()
	see := func(id string, gpus ...string) {
		t.Helper()
		n := nodes.Node{ID: id}
		for _, g := range gpus {
			n.GPUs = append(n.GPUs, nodes.GPU{UUID: g})
		}
		if _, err := s.Apply(&Command{NodeSeen: &n, AtMs: s.LastMs + 10}); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(node string, want ...string) {
		t.Helper()
		if got := gpusOf(s, node); !slices.Equal(got, want) {
			t.Errorf("GPUs of %s: %v, want %v", node, got, want)
		}
	}
	see("a", "g3", "g1")
	see("b", "g2")
	expect("a", "g1", "g3")
	see("a", "g0", "g1") // one came, one is reported no more
	expect("a", "g0", "g1", "g3")
	expect("c")
	if s.GPUs["g3"].Fenced == "" || s.GPUs["g3"].Book != BookFenced || s.GPUs["g0"].Fenced != "" {
		t.Error("what is not reported is fenced, and nothing else")
	}
	if _, err := s.Apply(&Command{NodeLost: &NodeLost{Node: "a", LastSeenMs: s.LastMs}, AtMs: s.LastMs + 5}); err != nil {
		t.Fatal(err)
	}
	see("b", "g2", "g3")
	expect("a", "g0", "g1")
	expect("b", "g2", "g3")
	if s.GPUs["g3"].Fenced != "" {
		t.Errorf("g3 is reported again, and %s", s.GPUs["g3"].Fenced)
	}
	raw, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if s, err = Restore(raw); err != nil {
		t.Fatal(err)
	}
	expect("b", "g2", "g3")
	see("b", "g1x", "g2", "g3")
	expect("b", "g1x", "g2", "g3")
	if bad := s.Check(); len(bad) > 0 {
		t.Error(bad)
	}
}
