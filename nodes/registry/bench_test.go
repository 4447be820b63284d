package registry

import (
	"fmt"
	"testing"

	"sluice/nodes"
)

func bigFloor(tb testing.TB, count int) (*State, []*nodes.Node) {
	tb.Helper()
	s := New()
	all := make([]*nodes.Node, count)
	for i := range all {
		n := &nodes.Node{ID: fmt.Sprintf("n%04d", i)}
		for g := range 8 {
			n.GPUs = append(n.GPUs, nodes.GPU{UUID: fmt.Sprintf("%s-%d", n.ID, g), MemoryBytes: 80 << 30})
		}
		all[i] = n
		if _, err := s.Apply(&Command{NodeSeen: n, AtMs: 1}); err != nil {
			tb.Fatal(err)
		}
	}
	return s, all
}

// BenchmarkNodeSeen is one agent's return among 1,000 nodes of 8 GPUs.
func BenchmarkNodeSeen(b *testing.B) {
	s, all := bigFloor(b, 1_000)
	at := int64(1)
	for i := 0; b.Loop(); i++ {
		at++
		if _, err := s.Apply(&Command{NodeSeen: all[i%len(all)], AtMs: at}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkNodeLost is one agent's loss there.
func BenchmarkNodeLost(b *testing.B) {
	s, all := bigFloor(b, 1_000)
	at := int64(1)
	for i := 0; b.Loop(); i++ {
		at++
		if _, err := s.Apply(&Command{NodeLost: &NodeLost{Node: all[i%len(all)].ID, LastSeenMs: at}, AtMs: at}); err != nil {
			b.Fatal(err)
		}
	}
}
