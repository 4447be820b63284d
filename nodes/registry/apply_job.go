package registry

import (
	"fmt"
	"slices"

	"sluice/nodes"
)

func (s *State) submitJob(spec *JobSpec, at int64) ([]Event, error) {
	if old := s.Jobs[spec.Name]; old != nil && !old.Phase.Ended() {
		return nil, fmt.Errorf("job %q is %s: %w", spec.Name, old.Phase, ErrExists)
	}
	if s.Tenants[spec.Tenant] == nil {
		return nil, fmt.Errorf("tenant %q of job %q: %w", spec.Tenant, spec.Name, ErrUnknown)
	}
	gen := int64(0)
	if old := s.Jobs[spec.Name]; old != nil {
		gen = old.Generation // directories of an earlier run of the same name are never written again
	}
	s.Jobs[spec.Name] = &Job{Spec: *spec, SubmittedMs: at, Phase: JobPending, SinceMs: at, Generation: gen, LastDone: -1}
	return []Event{{Kind: "job", Object: spec.Name, To: string(JobPending)}}, nil
}

func (s *State) jobWant(w *JobWant) ([]Event, error) {
	j := s.Jobs[w.Job]
	if j == nil {
		return nil, fmt.Errorf("job %q: %w", w.Job, ErrUnknown)
	}
	if j.Phase.Ended() {
		return nil, fmt.Errorf("job %q has ended (%s): %w", w.Job, j.Phase, ErrConflict)
	}
	if j.Want == "cancelled" && w.Want != j.Want {
		return nil, fmt.Errorf("job %q is being cancelled: %w", w.Job, ErrConflict) // an answer of "paused" would not come true
	}
	j.Want = w.Want
	to := w.Want
	if to == "" {
		to = "run"
	}
	return []Event{{Kind: "job", Object: w.Job, From: "want", To: to}}, nil
}

// jobGPUs are the GPUs of the ranks not yet proved gone.
func jobGPUs(j *Job) []string {
	var out []string
	for _, r := range j.Ranks {
		if !r.Gone {
			out = append(out, r.GPUs...)
		}
	}
	return out
}

func (s *State) checkPlacement(j *Job, ranks []RankPlace, own string) error {
	if !j.Spec.World(len(ranks)) {
		return fmt.Errorf("world size %d of job %q is not within [%d, %d] in multiples of %d: %w",
			len(ranks), j.Spec.Name, j.Spec.MinWorld, j.Spec.MaxWorld, max(1, j.Spec.WorldMultiple), ErrConflict)
	}
	used := map[string]bool{}
	for i, r := range ranks {
		if r.Rank != i || len(r.GPUs) != max(1, j.Spec.GPUsPerRank) {
			return fmt.Errorf("rank %d of job %q is misplaced: %w", r.Rank, j.Spec.Name, ErrConflict)
		}
		for _, id := range r.GPUs {
			g := s.GPUs[id]
			if g == nil || g.Node != r.Node || used[id] || g.Fenced != "" || s.Nodes[r.Node].Lost {
				return fmt.Errorf("GPU %s is not usable for job %q: %w", id, j.Spec.Name, ErrStale)
			}
			if g.Reserved != "" && g.Reserved != own {
				return fmt.Errorf("GPU %s is reserved for %s: %w", id, g.Reserved, ErrStale)
			}
			used[id] = true
		}
	}
	return inARow(j, ranks)
}

func (s *State) jobPlace(p *JobPlace, at int64) ([]Event, error) {
	j := s.Jobs[p.Job]
	if j == nil {
		return nil, fmt.Errorf("job %q: %w", p.Job, ErrUnknown)
	}
	if j.Seq != p.Seq || (j.Phase != JobPending && j.Phase != JobPaused) || j.Want != "" {
		return nil, fmt.Errorf("job %q is %s (seq %d): %w", p.Job, j.Phase, j.Seq, ErrStale)
	}
	if err := s.checkPlacement(j, p.Ranks, p.Job); err != nil {
		return nil, err
	}
	if err := s.mayStart(j, p.Ranks); err != nil {
		return nil, err
	}
	return s.beginGeneration(j, p.Ranks, p.TimeoutMs, at), nil
}

// mayStart tells whether all GPUs are free of active holders and have memory.
func (s *State) mayStart(j *Job, ranks []RankPlace) error {
	for _, r := range ranks {
		for _, id := range r.GPUs {
			g := s.GPUs[id]
			if g.Active != "" {
				return fmt.Errorf("GPU %s is held by %s: %w", id, g.Active, ErrStale)
			}
			if err := memoryFits(g, j.Spec.Name, j.Spec.ActiveBytes); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *State) beginGeneration(j *Job, ranks []RankPlace, timeoutMs, at int64) []Event {
	from := j.Phase
	j.Generation++
	j.GenStartMs, j.FromStep = at, 0
	if m := j.Current(); m != nil {
		j.FromStep = m.Step
	}
	j.Ranks = make([]RankPlace, len(ranks))
	for i, r := range ranks {
		j.Ranks[i] = RankPlace{Rank: r.Rank, Node: r.Node, GPUs: slices.Clone(r.GPUs)}
	}
	j.Next, j.Stop, j.MasterAddr, j.MasterPort = nil, nil, "", 0
	j.LastDone, j.RunStartedMs, j.EndRung, j.After = -1, 0, "", ""
	for _, r := range j.Ranks {
		for _, id := range r.GPUs {
			g := s.GPUs[id]
			s.settle(g, at)
			g.Active, g.Reserved = j.Holder(r.Rank), ""
		}
	}
	s.moveJob(j, JobPreparing, timeoutMs, "", at)
	return []Event{{Kind: "job", Object: j.Spec.Name, From: string(from), To: string(JobPreparing), World: len(ranks), GPUs: jobGPUs(j)}}
}

// moveJob changes the phase and rebooks the GPUs.
func (s *State) moveJob(j *Job, to JobPhase, timeoutMs int64, reason string, at int64) {
	for _, id := range jobGPUs(j) {
		s.settle(s.GPUs[id], at)
	}
	j.Phase, j.SinceMs, j.TimeoutMs, j.Reason = to, at, timeoutMs, reason
	j.Seq++
	for _, id := range jobGPUs(j) {
		s.rebook(s.GPUs[id], at)
	}
}

func (s *State) checkStop(j *Job, v *Victim) error {
	if j == nil {
		return fmt.Errorf("job %q: %w", v.Job, ErrUnknown)
	}
	if j.Seq != v.Seq || (j.Phase != JobRunning && j.Phase != JobYielded) {
		return fmt.Errorf("job %q is %s (seq %d): %w", v.Job, j.Phase, j.Seq, ErrStale)
	}
	if v.Rung == RungYield && (!j.Spec.SpeaksProtocol() || j.Phase == JobYielded) {
		return fmt.Errorf("job %q cannot yield: %w", v.Job, ErrConflict)
	}
	if len(v.Next) > 0 {
		return s.checkPlacement(j, v.Next, v.Job)
	}
	return nil
}

func (s *State) jobStop(v *Victim, at int64) ([]Event, error) {
	j := s.Jobs[v.Job]
	if err := s.checkStop(j, v); err != nil {
		return nil, err
	}
	return s.beginStop(j, v, at), nil
}

func (s *State) beginStop(j *Job, v *Victim, at int64) []Event {
	from := j.Phase
	mode := nodes.StopSave
	if v.Rung == RungYield {
		mode = nodes.StopYield
	}
	j.Stop = &Stop{ID: j.Spec.Name + ".s" + itoa(j.Seq+1), Mode: mode, Rung: v.Rung, Step: -1,
		Beneficiary: v.Beneficiary, Reason: v.Reason, DecidedMs: at}
	j.Next = nil
	for _, r := range v.Next {
		j.Next = append(j.Next, RankPlace{Rank: r.Rank, Node: r.Node, GPUs: slices.Clone(r.GPUs)})
		for _, id := range r.GPUs {
			s.GPUs[id].Reserved = j.Spec.Name
			s.rebook(s.GPUs[id], at)
		}
	}
	s.moveJob(j, JobStopping, v.TimeoutMs, v.Reason, at)
	return []Event{{Kind: "reclaim", Object: j.Spec.Name, From: string(from), To: string(v.Rung), Rung: v.Rung,
		Reason: v.Reason, GPUs: jobGPUs(j), World: len(v.Next)}}
}

func (s *State) jobCommit(c *JobCommit) ([]Event, error) {
	j := s.Jobs[c.Job]
	if j == nil || j.Stop == nil || j.Stop.ID != c.StopID {
		return nil, fmt.Errorf("job %q has no stop %q: %w", c.Job, c.StopID, ErrStale)
	}
	if j.Stop.Step >= 0 && j.Stop.Step != c.Step {
		return nil, fmt.Errorf("stop %q of job %q is committed to step %d, not %d: %w", c.StopID, c.Job, j.Stop.Step, c.Step, ErrConflict)
	}
	j.Stop.Step = c.Step
	return []Event{{Kind: "job", Object: c.Job, From: "stopping", To: "committed", Steps: c.Step}}, nil
}

var jobMoves = map[JobPhase][]JobPhase{
	JobPending:   {JobCancelled, JobFailed, JobPaused},
	JobPreparing: {JobStarting},
	JobStarting:  {JobRunning},
	JobStopping:  {JobYielded},
	JobYielded:   {JobResuming},
	JobResuming:  {JobRunning},
	JobPaused:    {JobCancelled, JobFailed, JobPending},
}

func (s *State) jobPhase(c *PhaseChange, at int64) ([]Event, error) {
	j := s.Jobs[c.Name]
	if j == nil {
		return nil, fmt.Errorf("job %q: %w", c.Name, ErrUnknown)
	}
	from, to := j.Phase, JobPhase(c.To)
	if j.Seq != c.Seq || !slices.Contains(jobMoves[from], to) {
		return nil, fmt.Errorf("job %q is %s (seq %d), asked %s (seq %d): %w", c.Name, from, j.Seq, to, c.Seq, ErrStale)
	}
	took := int64(0)
	rung := Rung("")
	switch to {
	case JobStarting:
		j.MasterAddr, j.MasterPort = c.MasterAddr, c.MasterPort
	case JobYielded:
		took, rung = at-j.Stop.DecidedMs, RungYield
		s.yieldGPUs(j, at)
	case JobResuming:
		if err := s.mayResume(j); err != nil {
			return nil, err
		}
		s.occupyAgain(j, at)
	case JobRunning:
		j.RunStartedMs = at
		if from == JobResuming {
			j.Stop = nil
		}
	}
	s.moveJob(j, to, c.TimeoutMs, c.Reason, at)
	return []Event{{Kind: "job", Object: c.Name, From: string(from), To: string(to), World: len(j.Ranks),
		TookMs: took, Rung: rung, GPUs: jobGPUs(j)}}, nil
}

func (s *State) yieldGPUs(j *Job, at int64) {
	for _, r := range j.Ranks {
		holder := j.Holder(r.Rank)
		for _, id := range r.GPUs {
			g := s.GPUs[id]
			s.settle(g, at)
			if g.Active == holder {
				g.Active = ""
			}
			if !g.isResident(holder) {
				g.Residents = append(g.Residents, Resident{Holder: holder, Bytes: j.Spec.ResidentBytes})
			}
		}
	}
}

func (s *State) mayResume(j *Job) error {
	for _, r := range j.Ranks {
		holder := j.Holder(r.Rank)
		for _, id := range r.GPUs {
			g := s.GPUs[id]
			if g.Active != "" || (g.Reserved != "" && g.Reserved != j.Spec.Name) || g.Fenced != "" {
				return fmt.Errorf("GPU %s is not free for %s: %w", id, holder, ErrStale)
			}
			if err := memoryFits(g, holder, j.Spec.ActiveBytes); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *State) occupyAgain(j *Job, at int64) {
	for _, r := range j.Ranks {
		holder := j.Holder(r.Rank)
		for _, id := range r.GPUs {
			g := s.GPUs[id]
			s.settle(g, at)
			g.Active, g.Reserved = holder, ""
			g.dropResident(holder)
		}
	}
}
