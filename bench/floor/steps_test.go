package floor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"sluice/nodes/registry"
)

// ownSteps are what the ranks of one generation wrote down themselves.
type ownSteps struct {
	first, last int64         // done by any rank
	ranks       map[int]int64 // rank → the last it has done
}

// ownLogs reads the step counters of all ranks, by generation.
func (s *site) ownLogs() map[int64]*ownSteps {
	s.t.Helper()
	files, err := filepath.Glob(s.stepLog() + ".rank-*")
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[int64]*ownSteps{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			s.t.Fatal(err)
		}
		for line := range bytes.Lines(raw) {
			s.takeLine(out, file, line)
		}
	}
	return out
}

func (s *site) takeLine(out map[int64]*ownSteps, file string, line []byte) {
	s.t.Helper()
	var l struct {
		Generation int64 `json:"generation"`
		Rank       int   `json:"rank"`
		Begun      int64 `json:"begun"`
		Done       int64 `json:"done"`
	}
	if err := json.Unmarshal(line, &l); err != nil {
		s.t.Fatalf("%s: %v: %s", file, err, line)
	}
	if l.Begun != l.Done {
		return // a step was begun
	}
	g := out[l.Generation]
	if g == nil {
		g = &ownSteps{first: l.Done, ranks: map[int]int64{}}
		out[l.Generation] = g
	}
	if before, ok := g.ranks[l.Rank]; ok && l.Done != before+1 {
		s.t.Errorf("generation %d: rank %d did step %d after %d", l.Generation, l.Rank, l.Done, before)
	}
	if _, ok := g.ranks[l.Rank]; !ok && l.Done != g.first {
		s.t.Errorf("generation %d: rank %d began at step %d, another at %d", l.Generation, l.Rank, l.Done, g.first)
	}
	g.ranks[l.Rank] = l.Done
	g.last = max(g.last, l.Done)
}

// lastStep is the last step that the ranks have written down.
func (s *site) lastStep() int64 {
	last, generation := int64(0), int64(0)
	for g, own := range s.ownLogs() {
		if g > generation {
			generation, last = g, own.last
		}
	}
	return last
}

// checkLedger compares the ledger of a job at rest with what its ranks wrote
// down: each step was done, and kept once, or is booked as lost.
func (s *site) checkLedger(j *jobStatus) {
	s.t.Helper()
	s.compareLedger(j, true)
}

// compareLedger does so; not exact is for gangs that lost a rank while nobody
// listened: then nobody was told of the last steps, which are lost uncounted.
func (s *site) compareLedger(j *jobStatus, exact bool) {
	s.t.Helper()
	own := s.ownLogs()
	var kept, done, lost int64
	for i, e := range j.Ledger {
		if err := checkEntry(e, own[e.Generation], exact); err != nil {
			s.t.Errorf("generation %d (%s): %v; the ledger says %+v", e.Generation, e.Reason, err, e)
		}
		// What an entry keeps goes on where the entry before it was saved.
		if e.FirstStep != kept+1 {
			s.t.Errorf("generation %d begins at step %d, %d steps are kept", e.Generation, e.FirstStep, kept)
		}
		if want := int64(i + 1); e.Generation != want {
			s.t.Errorf("entry %d is of generation %d", i, e.Generation)
		}
		done += e.LastStep - e.FirstStep + 1
		lost += e.LostSteps
		kept = e.SavedStep
		delete(own, e.Generation)
	}
	for g, o := range own {
		s.t.Errorf("generation %d did steps %d to %d and is not in the ledger", g, o.first, o.last)
	}
	if lost != j.LostSteps || done != kept+lost || kept != j.saved() {
		s.t.Errorf("done %d, kept %d, lost %d; the job says saved %d, lost %d", done, kept, lost, j.saved(), j.LostSteps)
	}
	s.t.Logf("ledger: %d generations, %d steps done = %d kept + %d lost", len(j.Ledger), done, kept, lost)
}

func checkEntry(e registry.LedgerEntry, own *ownSteps, exact bool) error {
	if own == nil {
		own = &ownSteps{first: e.FirstStep, last: e.FirstStep - 1}
	}
	switch {
	case own.first != e.FirstStep || own.last < e.LastStep || (exact && own.last > e.LastStep):
		return fmt.Errorf("its ranks did steps %d to %d", own.first, own.last)
	case e.LostSteps != max(0, e.LastStep-e.SavedStep):
		return fmt.Errorf("%d lost of what came after step %d", e.LostSteps, e.SavedStep)
	case len(own.ranks) > e.World:
		return fmt.Errorf("%d ranks did steps, its world is %d", len(own.ranks), e.World)
	}
	for rank, last := range own.ranks {
		if last < own.last-1 { // ranks that wait for each other differ by one
			return fmt.Errorf("rank %d ended at step %d, another at %d", rank, last, own.last)
		}
	}
	return nil
}
