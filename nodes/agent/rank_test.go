package agent

import (
	"path/filepath"
	"testing"

	"sluice/nodes"
)

// stopAt leads one rank through an agreed stop.
func (s *site) stopAt(holder, id string, mode nodes.StopMode) int64 {
	s.t.Helper()
	s.must(nodes.Order{Kind: nodes.OrderRankPrepare, Holder: holder, Generation: 1, StopID: id, Mode: mode})
	begun := s.note(holder, "prepared", id).Begun
	s.must(nodes.Order{Kind: nodes.OrderRankCommit, Holder: holder, Generation: 1, StopID: id, Mode: mode, Step: begun})
	return begun
}

// A rank says hello, steps, yields, resumes, and stops with a shard.
func TestRankLife(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	gang := s.trainer("a", "G0")
	s.begin(nodes.OrderStart, gang)
	s.await("a", nodes.StateRunning)
	if n := s.note("a", "hello", ""); n.Job != "j" || n.Generation != 1 || n.Sync != "all" {
		t.Errorf("%+v", n)
	}
	s.note("a", "step", "")
	at := s.stopAt("a", "s1", nodes.StopYield)
	if n := s.note("a", "yielded", "s1"); n.Step != at {
		t.Errorf("yielded at %d, agreed %d", n.Step, at)
	}
	s.await("a", nodes.StateYielded)
	if bytes, active := s.used("G0"); active || bytes != rankResident {
		t.Errorf("yielded: %d bytes, active %v", bytes, active)
	}
	s.must(nodes.Order{Kind: nodes.OrderRankResume, Holder: "a", Generation: 1, StopID: "s1"})
	s.await("a", nodes.StateRunning)
	at = s.stopAt("a", "s2", nodes.StopSave)
	n := s.note("a", "shard", "")
	if n.Shard == nil || n.Shard.Step != at || n.Shard.Rank != 0 || n.Shard.Samples != 8*at || !filepath.IsAbs(n.Shard.File) {
		t.Errorf("%+v", n.Shard)
	}
	s.note("a", "stopped", "s2")
	if st := s.await("a", nodes.StateGone); st.ExitCode != 0 || !st.Exited {
		t.Errorf("%+v", st)
	}
}

// What a rank said last is in the next hello, steps thinned, in order.
func TestRankMemory(t *testing.T) {
	var m rankMemory
	note := func(kind string, step int64, stop string) nodes.RankNote {
		n := nodes.RankNote{Kind: kind, Step: step, Done: step, StopID: stop}
		if kind == "shard" {
			n.Shard = &nodes.Shard{Step: step, File: "f"}
		}
		return n
	}
	var sent []nodes.RankNote
	take := func(n nodes.RankNote, now int64) { sent = append(sent, m.take(n, now)...) }
	take(note("hello", 0, ""), 1000)
	for i := range int64(50) { // one step each 20 ms for a second
		take(note("step", i+1, ""), 1000+20*i)
		if n, _ := m.due(1000 + 20*i); n != nil {
			sent = append(sent, *n)
		}
	}
	if n := len(sent); n != 1+5 {
		t.Errorf("%d notes sent, want hello and 5 steps", n)
	}
	take(note("prepared", 0, "s1"), 1990)
	if last := sent[len(sent)-2]; last.Kind != "step" || last.Done != 50 {
		t.Errorf("before prepared came %+v, want step 50", last)
	}
	for i := range int64(4) {
		take(note("shard", 10*i, ""), 2000)
	}
	take(note("yielded", 50, "s1"), 2000)
	latest := m.latest()
	var kinds []string
	for _, n := range latest {
		kinds = append(kinds, n.Kind)
	}
	want := []string{"hello", "step", "prepared", "shard", "shard", "yielded"}
	if len(kinds) != len(want) {
		t.Fatalf("%v, want %v", kinds, want)
	}
	for i := range want {
		if kinds[i] != want[i] {
			t.Fatalf("%v, want %v", kinds, want)
		}
	}
}
