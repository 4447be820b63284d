package agent

import (
	"math"
	"sort"

	"sluice/nodes"
)

const (
	// stepEveryMs thins the steps of one rank on their way to the controller.
	stepEveryMs = 200
	// keepShardSteps is how many checkpoints' shards are told again in a hello.
	keepShardSteps = 2
	// maxShards bounds the shards kept of one rank; the oldest goes first.
	maxShards = 256
)

// kept says whether a note is acknowledged to its rank, and so must outlive
// the agent.
func kept(kind string) bool { return kind == "shard" || kind == "stopped" || kind == "finished" }

// rankMemory is the latest note of each kind of one rank. Pure.
type rankMemory struct {
	seq      int
	latestBy map[string]seqNote // by kind, shards apart
	shards   []seqNote
	// pending is a step held back by thinning.
	pending  *nodes.RankNote
	sentMs   int64 // of the last step
	lostAtMs int64 // when "lost" is due; 0: connected, or told
}

type seqNote struct {
	seq  int
	note nodes.RankNote
}

// take remembers n and returns what to send now. A thinned step goes out
// before any other note of its rank.
func (m *rankMemory) take(n nodes.RankNote, nowMs int64) []nodes.RankNote {
	m.remember(n)
	if n.Kind == "step" && nowMs-m.sentMs < stepEveryMs {
		m.pending = &n
		return nil
	}
	var out []nodes.RankNote
	if n.Kind == "step" {
		m.sentMs = nowMs
	} else if m.pending != nil {
		out = append(out, *m.pending)
		m.sentMs = nowMs
	}
	m.pending = nil
	return append(out, n)
}

// due returns the held-back step when its time has come, and when to ask again.
func (m *rankMemory) due(nowMs int64) (*nodes.RankNote, int64) {
	if m.pending == nil {
		return nil, math.MaxInt64
	}
	if at := m.sentMs + stepEveryMs; nowMs < at {
		return nil, at
	}
	n := m.pending
	m.pending, m.sentMs = nil, nowMs
	return n, math.MaxInt64
}

func (m *rankMemory) remember(n nodes.RankNote) {
	m.seq++
	if n.Kind != "shard" {
		if m.latestBy == nil {
			m.latestBy = make(map[string]seqNote)
		}
		if n.Kind == "hello" {
			delete(m.latestBy, "lost")
		}
		m.latestBy[n.Kind] = seqNote{m.seq, n}
		return
	}
	if n.Shard == nil {
		return
	}
	kept := m.shards[:0]
	for _, s := range m.shards {
		if s.note.Shard.Step != n.Shard.Step || s.note.Shard.File != n.Shard.File {
			kept = append(kept, s)
		}
	}
	m.shards = append(kept, seqNote{m.seq, n})
	m.trimShards()
}

// trimShards keeps those of the last keepShardSteps steps.
func (m *rankMemory) trimShards() {
	var steps []int64
	seen := make(map[int64]bool)
	for _, s := range m.shards {
		if !seen[s.note.Shard.Step] {
			seen[s.note.Shard.Step] = true
			steps = append(steps, s.note.Shard.Step)
		}
	}
	sort.Slice(steps, func(i, j int) bool { return steps[i] > steps[j] })
	if len(steps) > keepShardSteps {
		floor := steps[keepShardSteps-1]
		kept := m.shards[:0]
		for _, s := range m.shards {
			if s.note.Shard.Step >= floor {
				kept = append(kept, s)
			}
		}
		m.shards = kept
	}
	if over := len(m.shards) - maxShards; over > 0 {
		m.shards = append(m.shards[:0], m.shards[over:]...)
	}
}

// latest returns everything remembered, in the order in which it came.
func (m *rankMemory) latest() []nodes.RankNote {
	all := append([]seqNote(nil), m.shards...)
	for _, s := range m.latestBy {
		all = append(all, s)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].seq < all[j].seq })
	out := make([]nodes.RankNote, len(all))
	for i, s := range all {
		out[i] = s.note
	}
	return out
}

// answered says whether the rank's last word on kind is about this stop.
func (m *rankMemory) answered(kind, stopID string) bool {
	s, ok := m.latestBy[kind]
	return ok && s.note.StopID == stopID
}

// said says whether the rank ever sent a note of this kind.
func (m *rankMemory) said(kind string) bool {
	_, ok := m.latestBy[kind]
	return ok
}
