package registry

import (
	"fmt"
	"slices"
)

// jobEnding closes the current generation: its ledger entry is written, what
// was trained since the last manifest is booked as lost, and no later step of
// it counts. Its GPUs stay held until RankGone.
func (s *State) jobEnding(e *JobEnding, at int64) ([]Event, error) {
	j := s.Jobs[e.Job]
	if j == nil {
		return nil, fmt.Errorf("job %q: %w", e.Job, ErrUnknown)
	}
	if j.Seq != e.Seq || len(j.Ranks) == 0 || j.Phase == JobReleasing {
		return nil, fmt.Errorf("job %q is %s (seq %d): %w", e.Job, j.Phase, j.Seq, ErrStale)
	}
	from := j.Phase
	for _, id := range jobGPUs(j) {
		s.settle(s.GPUs[id], at)
	}
	entry := s.closeLedger(j, e, at)
	j.After, j.EndRung, j.BackoffToMs = e.After, e.Rung, max(e.BackoffToMs, 0)
	if e.Restart {
		j.Restarts = append(j.Restarts, at)
		if len(j.Restarts) > maxLedger {
			j.Restarts = slices.Delete(j.Restarts, 0, 1)
		}
	}
	if e.After != JobPreparing {
		s.dropNext(j, at)
	}
	if from == JobYielded || from == JobResuming || (j.Stop != nil && j.Stop.Mode == "yield") {
		s.holdAgain(j, at)
	}
	s.moveJob(j, JobReleasing, e.TimeoutMs, e.Reason, at)
	return []Event{{Kind: "job", Object: e.Job, From: string(from), To: string(JobReleasing), Rung: e.Rung,
		Reason: e.Reason, Steps: entry.LostSteps, World: len(j.Ranks), GPUs: jobGPUs(j)}}, nil
}

func (s *State) closeLedger(j *Job, e *JobEnding, at int64) LedgerEntry {
	saved := int64(0)
	if m := j.Current(); m != nil {
		saved = m.Step
	}
	entry := LedgerEntry{Generation: j.Generation, World: len(j.Ranks), FirstStep: j.FromStep + 1, LastStep: e.LastDone,
		SavedStep: saved, Rung: e.Rung, Reason: e.Reason, StartMs: j.GenStartMs, EndMs: at}
	j.LastDone = e.LastDone
	if e.LastDone > saved {
		entry.LostSteps = e.LastDone - saved
	}
	switch {
	case e.Clean && entry.LostSteps == 0:
		j.UnsavedMs = 0
	default:
		entry.LostGPUMs = s.lose(j)
	}
	j.LostSteps += entry.LostSteps
	j.Ledger = append(j.Ledger, entry)
	if len(j.Ledger) > maxLedger {
		j.Ledger = slices.Delete(j.Ledger, 0, 1)
	}
	return entry
}

// lateSteps books steps that ranks had done and that were heard of only after
// their generation was closed: no manifest will ever hold them.
func (j *Job) lateSteps(lastDone int64) {
	if len(j.Ledger) == 0 {
		return
	}
	e := &j.Ledger[len(j.Ledger)-1]
	if e.Generation != j.Generation || e.LastStep < 0 || lastDone <= e.LastStep {
		return
	}
	more := max(0, lastDone-max(e.LastStep, e.SavedStep))
	e.LastStep, j.LastDone = lastDone, lastDone
	e.LostSteps += more
	j.LostSteps += more
}

func (s *State) dropNext(j *Job, at int64) {
	for _, r := range j.Next {
		for _, id := range r.GPUs {
			if g := s.GPUs[id]; g != nil && g.Reserved == j.Spec.Name {
				g.Reserved = ""
				s.rebook(g, at)
			}
		}
	}
	j.Next = nil
}

// holdAgain makes residents of a yielded gang that must end count as leaving:
// they keep memory until proved gone, but are not active where somebody else is.
func (s *State) holdAgain(j *Job, at int64) {
	for _, r := range j.Ranks {
		holder := j.Holder(r.Rank)
		for _, id := range r.GPUs {
			if g := s.GPUs[id]; g.Active == "" && !g.isResident(holder) {
				g.Active = holder
				s.rebook(g, at)
			}
		}
	}
}

// rankGone frees the GPUs of ranks proved gone, and moves the job on when the
// last has gone.
func (s *State) rankGone(c *RankGone, at int64) ([]Event, error) {
	j := s.Jobs[c.Job]
	if j == nil || j.Generation != c.Generation {
		return nil, fmt.Errorf("job %q has no generation %d: %w", c.Job, c.Generation, ErrStale)
	}
	if j.Phase != JobReleasing {
		return nil, fmt.Errorf("job %q is %s; end its generation first: %w", c.Job, j.Phase, ErrStale)
	}
	j.lateSteps(c.LastDone)
	var freed []string
	moved := false
	for _, n := range c.Ranks {
		if n < 0 || n >= len(j.Ranks) || j.Ranks[n].Gone {
			continue
		}
		// What was proved is the end of a holder: with it all its ranks are gone.
		first := j.FirstRank(n)
		freed = append(freed, s.ranksGone(j, first, first+j.HolderRanks(first), c.Abandon, at)...)
		moved = true
	}
	if !moved {
		return nil, nil
	}
	ev := Event{Kind: "release", Object: j.Spec.Name, Rung: j.EndRung, GPUs: freed, TookMs: at - j.SinceMs}
	if j.Stop != nil {
		ev.TookMs = at - j.Stop.DecidedMs
	}
	if slices.ContainsFunc(j.Ranks, func(r RankPlace) bool { return !r.Gone }) {
		return []Event{ev}, nil
	}
	return append([]Event{ev}, s.afterGone(j, at)...), nil
}

// ranksGone marks ranks first to end-1, which one holder stood for, gone, and
// returns the GPUs that are free with it.
func (s *State) ranksGone(j *Job, first, end int, abandon bool, at int64) (freed []string) {
	holder := j.Holder(first)
	for n := first; n < end; n++ {
		for _, id := range j.Ranks[n].GPUs {
			g := s.GPUs[id]
			s.settle(g, at)
			if abandon {
				continue // still held, as active or resident, until HolderGone
			}
			s.freeOf(g, holder, at)
			freed = append(freed, id)
		}
		j.Ranks[n].Gone = true
	}
	return freed
}

// freeOf takes holder off g.
func (s *State) freeOf(g *GPU, holder string, at int64) {
	s.settle(g, at)
	if g.Active == holder {
		g.Active = ""
	}
	g.dropResident(holder)
	s.rebook(g, at)
}

// holderGone frees what a holder that no job or replica knows any more still held.
func (s *State) holderGone(c *HolderGone, at int64) ([]Event, error) {
	if r := s.Replicas[c.Holder]; r != nil {
		return nil, fmt.Errorf("holder %q is replica %s: %w", c.Holder, r.Phase, ErrConflict)
	}
	if j := s.Jobs[jobOf(c.Holder)]; j != nil && s.CurrentHolder(c.Holder) {
		return nil, fmt.Errorf("holder %q is of the present generation: %w", c.Holder, ErrConflict)
	}
	var freed []string
	for _, g := range s.nodeGPUs(c.Node) {
		if g.Active == c.Holder || g.isResident(c.Holder) {
			s.freeOf(g, c.Holder, at)
			freed = append(freed, g.UUID)
		}
	}
	if len(freed) == 0 {
		return nil, nil
	}
	return []Event{{Kind: "gpu", Object: c.Holder, From: "orphaned", To: "gone", GPUs: freed}}, nil
}

func (s *State) afterGone(j *Job, at int64) []Event {
	from, world := j.Phase, len(j.Ranks)
	j.Last = &EndedRanks{Generation: j.Generation, Nodes: make([]string, world)}
	for i := range j.Ranks {
		j.Last.Nodes[i] = j.Ranks[i].Node
	}
	j.Ranks, j.Stop = nil, nil
	to := j.After
	if to == JobPreparing && len(j.Next) > 0 && j.Want == "" {
		if s.checkPlacement(j, j.Next, j.Spec.Name) == nil && s.mayStart(j, j.Next) == nil {
			return s.beginGeneration(j, j.Next, j.Spec.StartTimeoutMs, at)
		}
	}
	if to == JobPreparing {
		to = JobPaused
	}
	s.dropNext(j, at)
	s.moveJob(j, to, 0, j.Reason, at)
	return []Event{{Kind: "job", Object: j.Spec.Name, From: string(from), To: string(to), World: world, Reason: j.Reason, Rung: j.EndRung}}
}

// manifest records a complete checkpoint. A manifest of an older generation or
// an older step than the current one is refused: a torn newer checkpoint never
// becomes a manifest at all, and an older never replaces a newer.
func (s *State) manifest(m *Manifest, at int64) ([]Event, error) {
	j := s.Jobs[m.Job]
	if j == nil {
		return nil, fmt.Errorf("job %q: %w", m.Job, ErrUnknown)
	}
	if m.Generation != j.Generation || j.Phase == JobReleasing || len(j.Ranks) == 0 {
		return nil, fmt.Errorf("generation %d of job %q no longer counts: %w", m.Generation, m.Job, ErrStale)
	}
	if cur := j.Current(); cur != nil && m.Step <= cur.Step {
		return nil, fmt.Errorf("job %q has a checkpoint of step %d: %w", m.Job, cur.Step, ErrStale)
	}
	if len(m.Shards) == 0 {
		return nil, fmt.Errorf("a manifest of job %q without shards: %w", m.Job, ErrConflict)
	}
	for _, id := range jobGPUs(j) {
		s.settle(s.GPUs[id], at)
	}
	j.UnsavedMs = 0
	c := *m
	c.AtMs = at
	j.Manifests = append([]Manifest{c}, j.Manifests...)
	if len(j.Manifests) > maxManifests {
		j.Manifests = j.Manifests[:maxManifests]
	}
	return []Event{{Kind: "manifest", Object: m.Job, Steps: m.Step, World: m.World}}, nil
}
