package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sluice/nodes"
)

// sameEngine tells whether two specs run the very same engine, so that a
// change needs no new replica.
func sameEngine(a, b *ModelSpec) bool {
	return slices.Equal(a.Command, b.Command) && a.URL == b.URL && maps.Equal(a.Env, b.Env) &&
		a.Workdir == b.Workdir && a.User == b.User && a.EngineModel == b.EngineModel &&
		a.GPUsPerReplica == b.GPUsPerReplica && a.ActiveBytes == b.ActiveBytes &&
		a.ResidentBytes == b.ResidentBytes && a.Sleep == b.Sleep && a.HealthPath == b.HealthPath
}

func (s *State) nodeSeen(n *nodes.Node, at int64) ([]Event, error) {
	for _, g := range n.GPUs {
		if old := s.GPUs[g.UUID]; old != nil && old.Node != n.ID {
			if other := s.Nodes[old.Node]; other != nil && !other.Lost {
				return nil, fmt.Errorf("GPU %s of node %q is reported by node %q, which is alive: %w", g.UUID, n.ID, old.Node, ErrConflict)
			}
		}
	}
	old := s.Nodes[n.ID]
	ev := Event{Kind: "node", Object: n.ID, To: "ready"}
	if old == nil {
		old = &Node{}
		s.Nodes[n.ID] = old
		ev.From = "new"
	} else if old.Lost {
		ev.From = "lost"
	}
	old.Node, old.Lost, old.LastSeenMs, old.Reason = *n, false, at, ""
	for _, g := range n.GPUs {
		s.gpuSeen(g, n.ID, at)
	}
	for _, g := range s.nodeGPUs(n.ID) {
		if g.Fenced == "" && !slices.ContainsFunc(n.GPUs, func(x nodes.GPU) bool { return x.UUID == g.UUID }) {
			g.Fenced = "no longer reported by its node"
		}
		s.rebook(g, at)
	}
	return []Event{ev}, nil
}

func (s *State) gpuSeen(g nodes.GPU, node string, at int64) {
	have := s.GPUs[g.UUID]
	if have == nil {
		s.GPUs[g.UUID] = &GPU{GPU: g, Node: node, SinceMs: at, FirstMs: at}
		s.index(g.UUID, node)
		return
	}
	s.settle(have, at)
	if have.Node != node { // a device was put into another machine
		s.indexed = -1
	}
	have.GPU, have.Node = g, node
	if have.Fenced == "no longer reported by its node" {
		have.Fenced = ""
	}
}

// nodeGPUs are the GPUs of a node, by UUID, those it reports no more included.
func (s *State) nodeGPUs(node string) []*GPU {
	if s.indexed != len(s.GPUs) {
		s.byNode, s.indexed = map[string][]string{}, 0
		for id, g := range s.GPUs {
			s.byNode[g.Node] = append(s.byNode[g.Node], id)
			s.indexed++
		}
		for _, ids := range s.byNode {
			slices.Sort(ids)
		}
	}
	out := make([]*GPU, len(s.byNode[node]))
	for i, id := range s.byNode[node] {
		out[i] = s.GPUs[id]
	}
	return out
}

// index notes a new GPU of a node, if the index was whole before.
func (s *State) index(uuid, node string) {
	if s.byNode == nil || s.indexed != len(s.GPUs)-1 {
		return
	}
	ids := s.byNode[node]
	at, _ := slices.BinarySearch(ids, uuid)
	s.byNode[node] = slices.Insert(ids, at, uuid)
	s.indexed++
}

// nodeLost books the time since the node was last seen as unknown: nobody can
// say what its GPUs did.
func (s *State) nodeLost(l *NodeLost, at int64) ([]Event, error) {
	n := s.Nodes[l.Node]
	if n == nil {
		return nil, fmt.Errorf("node %q: %w", l.Node, ErrUnknown)
	}
	for _, g := range s.nodeGPUs(l.Node) {
		s.settle(g, min(at, max(l.LastSeenMs, g.SinceMs)))
		g.Book = BookUnknown
		s.settle(g, at)
	}
	n.Lost, n.LastSeenMs = true, l.LastSeenMs
	return []Event{{Kind: "node", Object: l.Node, From: "ready", To: "lost"}}, nil
}

func (s *State) nodeMark(m *NodeMark) ([]Event, error) {
	n := s.Nodes[m.Node]
	if n == nil {
		return nil, fmt.Errorf("node %q: %w", m.Node, ErrUnknown)
	}
	n.Cordoned, n.Draining = m.Cordoned || m.Draining, m.Draining
	to := "schedulable"
	switch {
	case n.Draining:
		to = "draining"
	case n.Cordoned:
		to = "cordoned"
	}
	return []Event{{Kind: "node", Object: m.Node, To: to}}, nil
}

func (s *State) gpuMark(m *GPUMark, at int64) ([]Event, error) {
	g := s.GPUs[m.UUID]
	if g == nil {
		return nil, fmt.Errorf("GPU %q: %w", m.UUID, ErrUnknown)
	}
	g.Fenced = m.Reason
	s.rebook(g, at)
	to := "usable"
	if m.Reason != "" {
		to = "fenced"
	}
	return []Event{{Kind: "gpu", Object: m.UUID, To: to, Reason: m.Reason, GPUs: []string{m.UUID}}}, nil
}

// memoryFits tells whether holder may become active with bytes on g beside its
// residents (its own residence excepted). Undeclared memory (0) fits.
func memoryFits(g *GPU, holder string, bytes int64) error {
	sum := bytes
	var names []string
	for _, r := range g.Residents {
		if r.Holder != holder {
			sum += r.Bytes
			names = append(names, r.Holder)
		}
	}
	if g.MemoryBytes > 0 && sum > g.MemoryBytes {
		return fmt.Errorf("GPU %s has %d bytes; %s needs %d beside residents %s: %w",
			g.UUID, g.MemoryBytes, holder, bytes, strings.Join(names, ", "), ErrConflict)
	}
	return nil
}

func (g *GPU) dropResident(holder string) {
	g.Residents = slices.DeleteFunc(g.Residents, func(r Resident) bool { return r.Holder == holder })
	if len(g.Residents) == 0 {
		g.Residents = nil
	}
}

func (g *GPU) isResident(holder string) bool {
	return slices.ContainsFunc(g.Residents, func(r Resident) bool { return r.Holder == holder })
}
