package nodes

import (
	"fmt"
	"reflect"
	"testing"
)

// heard is a fleet of one node with one holder.
func heard() (*Fleet, *Seen) {
	f := NewFleet()
	f.Frame("n", &Frame{Hello: &Hello{Node: Node{ID: "n"}, Holders: []HolderStatus{{ID: "h", Generation: 3, State: StateStarting}}, Readings: []Reading{{UUID: "g"}}}}, 10)
	return f, f.Nodes["n"]
}

// Each kind of note changes what it is about, and raises how far the rank is.
func TestNotesOfARank(t *testing.T) {
	base := RankSeen{Generation: 3, LastMs: 20}
	for _, c := range []struct {
		notes []RankNote
		want  func(*RankSeen)
	}{
		{[]RankNote{{Kind: "hello", Sync: "all", Step: 5}}, func(r *RankSeen) { r.Hello, r.Sync, r.From, r.Begun, r.Done = true, "all", 5, 5, 5 }},
		{[]RankNote{{Kind: "step", Begun: 8, Done: 7, Loss: 0.5, Samples: 70}}, func(r *RankSeen) { r.Begun, r.Done, r.Loss, r.Samples = 8, 7, 0.5, 70 }},
		{[]RankNote{{Kind: "step", Begun: 8, Done: 7}, {Kind: "step", Begun: 6, Done: 6}}, func(r *RankSeen) { r.Begun, r.Done = 8, 7 }},
		{[]RankNote{{Kind: "phase", Phase: "eval"}}, func(r *RankSeen) { r.Phase = "eval" }},
		{[]RankNote{{Kind: "prepared", StopID: "s", Begun: 9}}, func(r *RankSeen) { r.PreparedID, r.PreparedBegun, r.Begun = "s", 9, 9 }},
		{[]RankNote{{Kind: "yielded", StopID: "s", Step: 9}}, func(r *RankSeen) { r.YieldedID, r.YieldedStep, r.Done = "s", 9, 9 }},
		{[]RankNote{{Kind: "resumed", StopID: "s"}}, func(r *RankSeen) { r.ResumedID = "s" }},
		{[]RankNote{{Kind: "stopped", StopID: "s", Step: 9}}, func(r *RankSeen) { r.StoppedID, r.StoppedStep, r.Done = "s", 9, 9 }},
		{[]RankNote{{Kind: "finished", Step: 9}}, func(r *RankSeen) { r.Finished, r.FinishedStep, r.Done = true, 9, 9 }},
		{[]RankNote{{Kind: "lost"}}, func(r *RankSeen) { r.Lost = true }},
		{[]RankNote{{Kind: "lost"}, {Kind: "hello"}}, func(r *RankSeen) { r.Hello = true }},
		{[]RankNote{{Kind: "pruned", Step: 9}, {Kind: "pruned", Step: 4}}, func(r *RankSeen) { r.PrunedStep = 9 }},
		{[]RankNote{{Kind: "shard", Shard: &Shard{Step: 4, File: "a", Bytes: 1}}, {Kind: "shard", Shard: &Shard{Step: 4, File: "a", Bytes: 2}}, {Kind: "shard"}},
			func(r *RankSeen) { r.Shards = []Shard{{Step: 4, File: "a", Bytes: 2}} }},
		{[]RankNote{{Kind: "a kind of a later version"}}, func(*RankSeen) {}},
	} {
		f, _ := heard()
		for i := range c.notes {
			n := c.notes[i]
			n.Holder, n.Rank, n.Generation = "h", 1, 3
			if !f.Frame("n", &Frame{Rank: &n}, 20) {
				t.Fatal("refused")
			}
		}
		want := base
		c.want(&want)
		if got := f.Rank("n", "h", 1); !reflect.DeepEqual(*got, want) {
			t.Errorf("%+v:\n got %+v\nwant %+v", c.notes, *got, want)
		}
	}
}

// Of a rank's shards the newest are kept.
func TestShardsOfARankAreBounded(t *testing.T) {
	f, _ := heard()
	for i := range keepShards + 10 {
		f.Frame("n", &Frame{Rank: &RankNote{Holder: "h", Kind: "shard", Shard: &Shard{Step: int64(i), File: fmt.Sprint(i)}}}, 20)
	}
	if sh := f.Rank("n", "h", 0).Shards; len(sh) != keepShards || sh[0].Step != 10 {
		t.Errorf("%d shards from step %d", len(sh), sh[0].Step)
	}
}

// Nothing is taken from a node that never said hello.
func TestFramesBeforeHello(t *testing.T) {
	f := NewFleet()
	if f.Frame("n", &Frame{Readings: &Readings{}}, 1) || len(f.Nodes) != 0 || f.Holder("n", "h") != nil || f.Rank("n", "h", 0) != nil {
		t.Errorf("%+v", f.Nodes)
	}
}

// A hello replaces what was known: holders that it does not name are not there,
// and answers were of the stream before.
func TestHelloReplaces(t *testing.T) {
	f, s := heard()
	f.Frame("n", &Frame{Holder: &HolderStatus{ID: "x", State: StateRunning}}, 11)
	f.Frame("n", &Frame{Answer: &Answer{ID: "o", Holder: "x"}}, 12)
	f.Frame("n", &Frame{Readings: &Readings{GPUs: []Reading{{UUID: "g2"}}}}, 13)
	if s.LastMs != 13 || len(s.Holders) != 2 || len(s.Readings) != 2 || s.Answers["o"].Holder != "x" {
		t.Errorf("%+v", s)
	}
	s.Connected = false
	f.Frame("n", &Frame{Hello: &Hello{Node: Node{ID: "n", Host: "new"}, Holders: []HolderStatus{{ID: "x", State: StateGone}}, Ranks: []RankNote{{Holder: "x", Rank: 2, Kind: "finished", Step: 4}}}}, 14)
	s = f.Nodes["n"]
	if !s.Connected || s.Node.Host != "new" || s.LastMs != 14 || len(s.Answers) != 0 || len(s.Readings) != 0 || len(s.Holders) != 1 || f.Holder("n", "x").State != StateGone || !f.Rank("n", "x", 2).Finished {
		t.Errorf("%+v", s)
	}
}

// What is given to the fleet is copied, not kept.
func TestHolderStatusIsCopied(t *testing.T) {
	f, _ := heard()
	h := HolderStatus{ID: "h", State: StateRunning}
	f.Frame("n", &Frame{Holder: &h}, 11)
	h.State = StateGone
	if got := f.Holder("n", "h").State; got != StateRunning {
		t.Error(got)
	}
}

// Answers go with their holder, and beyond their number the oldest first.
func TestAnswersAreBounded(t *testing.T) {
	f, s := heard()
	answer := func(id, holder string) { f.Frame("n", &Frame{Answer: &Answer{ID: id, Holder: holder}}, 20) }
	answer("h:stop:1", "h")
	answer("h:kill:2", "h")
	answer("x:stop:1", "x")
	s.Forget("h")
	if len(s.Answers) != 1 || s.Answers["x:stop:1"].ID == "" || f.Holder("n", "h") != nil {
		t.Errorf("%+v %+v", s.Answers, s.Holders)
	}
	for i := range keepAnswers {
		answer(fmt.Sprintf("y%d:stop:1", i), fmt.Sprint("y", i))
		answer("y0:stop:1", "y0") // repeated: no younger for it
	}
	if len(s.Answers) != keepAnswers || s.Answers["x:stop:1"].ID != "" || s.Answers["y0:stop:1"].ID == "" {
		t.Errorf("%d answers", len(s.Answers))
	}
	answer("z", "z")
	if _, ok := s.Answers["y0:stop:1"]; ok || len(s.Answers) != keepAnswers || len(s.order) != keepAnswers {
		t.Errorf("%d answers, %d ids", len(s.Answers), len(s.order))
	}
}
