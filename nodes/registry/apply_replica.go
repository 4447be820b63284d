package registry

import (
	"fmt"
	"slices"
)

// reclaim reserves and evicts in one. Everything is checked before anything
// changes, so a plan that cannot be whole touches nobody.
func (s *State) reclaim(r *Reclaim, at int64) ([]Event, error) {
	if len(r.Takes) == 0 {
		return nil, fmt.Errorf("a reclaim without a placement: %w", ErrConflict)
	}
	if err := named(r); err != nil {
		return nil, err
	}
	wanted := map[string]string{} // GPU → replica
	for i := range r.Takes {
		if err := s.checkTake(&r.Takes[i], wanted); err != nil {
			return nil, err
		}
	}
	freed := map[string]bool{}
	for i := range r.Victims {
		if err := s.checkVictim(&r.Victims[i], wanted, freed); err != nil {
			return nil, err
		}
	}
	for id := range wanted {
		if g := s.GPUs[id]; g.Active != "" && !freed[id] && !s.leaving(g) {
			return nil, fmt.Errorf("GPU %s is held by %s, which no victim frees: %w", id, g.Active, ErrConflict)
		}
	}
	var ev []Event
	for i := range r.Takes {
		ev = append(ev, s.take(&r.Takes[i], at))
	}
	for i := range r.Victims {
		ev = append(ev, s.evict(&r.Victims[i], at)...)
	}
	return ev, nil
}

// named refuses a reclaim that names one thing twice.
func named(r *Reclaim) error {
	seen := map[string]bool{}
	twice := func(kind, name string) error {
		if seen[kind+name] {
			return fmt.Errorf("%s %q is named twice in one reclaim: %w", kind, name, ErrConflict)
		}
		seen[kind+name] = true
		return nil
	}
	for i := range r.Takes {
		if err := twice("replica", r.Takes[i].Replica); err != nil {
			return err
		}
	}
	for i := range r.Victims {
		v := &r.Victims[i]
		kind := "job"
		if v.Replica != "" {
			kind = "replica" // also one that is taken: nothing gives way to itself
		}
		if err := twice(kind, v.Job+v.Replica); err != nil {
			return err
		}
	}
	return nil
}

// leaving tells whether the active holder of g is already on its way out.
func (s *State) leaving(g *GPU) bool {
	if r := s.Replicas[g.Active]; r != nil {
		return r.Phase == ReplicaDraining || r.Phase == ReplicaStopping
	}
	if j := s.Jobs[jobOf(g.Active)]; j != nil {
		return j.Phase == JobStopping || j.Phase == JobReleasing
	}
	return false
}

func (s *State) checkTake(t *Take, wanted map[string]string) error {
	m := s.Models[t.Model]
	if m == nil {
		return fmt.Errorf("model %q: %w", t.Model, ErrUnknown)
	}
	have := s.Replicas[t.Replica]
	if t.Wake && (have == nil || have.Phase != ReplicaAsleep) {
		return fmt.Errorf("replica %q is not asleep: %w", t.Replica, ErrStale)
	}
	if !t.Wake && have != nil {
		return fmt.Errorf("replica %q: %w", t.Replica, ErrExists)
	}
	for _, id := range t.GPUs {
		g := s.GPUs[id]
		switch {
		case g == nil:
			return fmt.Errorf("GPU %q: %w", id, ErrUnknown)
		case g.Node != t.Node || s.Nodes[g.Node].Lost || g.Fenced != "":
			return fmt.Errorf("GPU %s is not usable on node %q: %w", id, t.Node, ErrStale)
		case wanted[id] != "" || (g.Reserved != "" && g.Reserved != t.Replica):
			return fmt.Errorf("GPU %s is reserved for %s%s: %w", id, g.Reserved, wanted[id], ErrStale)
		}
		wanted[id] = t.Replica
	}
	return nil
}

func (s *State) checkVictim(v *Victim, wanted map[string]string, freed map[string]bool) error {
	var frees []string
	if v.Replica != "" {
		r := s.Replicas[v.Replica]
		if r == nil || r.Seq != v.Seq {
			return fmt.Errorf("replica %q: %w", v.Replica, ErrStale)
		}
		if to := v.evictedTo(); !slices.Contains(replicaMoves[r.Phase], to) {
			return fmt.Errorf("replica %q is %s and cannot be %s: %w", v.Replica, r.Phase, to, ErrStale)
		}
		frees = r.GPUs
	} else {
		j := s.Jobs[v.Job]
		if err := s.checkStop(j, v); err != nil {
			return err
		}
		frees = jobGPUs(j)
	}
	useful := false
	for _, id := range frees {
		freed[id] = true
		useful = useful || wanted[id] != ""
	}
	for _, n := range v.Next {
		for _, id := range n.GPUs {
			if wanted[id] != "" {
				return fmt.Errorf("GPU %s is kept by %s and given to %s: %w", id, v.Job, wanted[id], ErrConflict)
			}
		}
	}
	if !useful {
		return fmt.Errorf("victim %s%s frees nothing that is wanted: %w", v.Job, v.Replica, ErrConflict)
	}
	return nil
}

func (s *State) take(t *Take, at int64) Event {
	r := s.Replicas[t.Replica]
	if r == nil {
		s.NextID++
		r = &Replica{ID: t.Replica, Model: t.Model, Version: t.Version, Node: t.Node, GPUs: slices.Clone(t.GPUs), CreatedMs: at}
		if m := s.Models[t.Model]; m != nil {
			r.ActiveBytes, r.ResidentBytes = m.Spec.ActiveBytes, m.Spec.ResidentBytes
		}
		s.Replicas[t.Replica] = r
	}
	from := string(r.Phase)
	r.Phase, r.Wake, r.SinceMs, r.TimeoutMs, r.DecidedMs = ReplicaWaiting, t.Wake, at, t.TimeoutMs, at
	r.Seq++
	for _, id := range t.GPUs {
		g := s.GPUs[id]
		g.Reserved = t.Replica
		s.rebook(g, at)
	}
	return Event{Kind: "replica", Object: r.ID, Model: r.Model, From: from, To: string(r.Phase), GPUs: r.GPUs}
}

func (s *State) evict(v *Victim, at int64) []Event {
	if v.Replica != "" {
		return []Event{s.moveReplica(s.Replicas[v.Replica], v.evictedTo(), v.TimeoutMs, v.Reason, at)}
	}
	return s.beginStop(s.Jobs[v.Job], v, at)
}

// evictedTo is the phase of a replica that gives way: it sleeps, or ends.
func (v *Victim) evictedTo() ReplicaPhase {
	if v.Rung == RungYield {
		return ReplicaDraining
	}
	return ReplicaStopping
}

var replicaMoves = map[ReplicaPhase][]ReplicaPhase{
	ReplicaWaiting:  {ReplicaStarting, ReplicaWaking, ReplicaAsleep, ReplicaStopping},
	ReplicaStarting: {ReplicaReady, ReplicaStopping},
	ReplicaReady:    {ReplicaDraining, ReplicaStopping},
	ReplicaDraining: {ReplicaAsleep, ReplicaStopping},
	ReplicaAsleep:   {ReplicaStopping},
	ReplicaWaking:   {ReplicaReady, ReplicaStopping},
	ReplicaStopping: {},
}

func (s *State) replicaPhase(c *PhaseChange, at int64) ([]Event, error) {
	r := s.Replicas[c.Name]
	if r == nil {
		return nil, fmt.Errorf("replica %q: %w", c.Name, ErrUnknown)
	}
	to := ReplicaPhase(c.To)
	if r.Seq != c.Seq || !slices.Contains(replicaMoves[r.Phase], to) {
		return nil, fmt.Errorf("replica %q is %s (seq %d), asked %s (seq %d): %w", r.ID, r.Phase, r.Seq, to, c.Seq, ErrStale)
	}
	if r.Phase == ReplicaWaiting && (to == ReplicaStarting) == r.Wake && to != ReplicaStopping {
		return nil, fmt.Errorf("replica %q waits to %s, asked %s: %w", r.ID, map[bool]string{true: "wake", false: "start"}[r.Wake], to, ErrStale)
	}
	if to == ReplicaStarting || to == ReplicaWaking {
		if err := s.mayOccupy(r); err != nil {
			return nil, err
		}
	}
	if c.Addr != "" {
		r.Addr = c.Addr
	}
	r.Failed = r.Failed || c.Failed
	took := int64(0)
	if to == ReplicaReady && r.DecidedMs > 0 {
		took, r.DecidedMs = at-r.DecidedMs, 0
		if m := s.Models[r.Model]; m != nil {
			m.Failures, m.RetryAtMs = 0, 0
		}
	}
	ev := s.moveReplica(r, to, c.TimeoutMs, c.Reason, at)
	ev.TookMs = took
	return []Event{ev}, nil
}

func (s *State) mayOccupy(r *Replica) error {
	for _, id := range r.GPUs {
		g := s.GPUs[id]
		if g.Active != "" {
			return fmt.Errorf("GPU %s is held by %s, not proved free for %s: %w", id, g.Active, r.ID, ErrConflict)
		}
		if g.Reserved != r.ID {
			return fmt.Errorf("GPU %s is not reserved for %s: %w", id, r.ID, ErrConflict)
		}
		if err := memoryFits(g, r.ID, r.ActiveBytes); err != nil {
			return err
		}
	}
	return nil
}

// moveReplica changes the phase and what it means for the GPUs: starting and
// waking occupy, asleep leaves a resident.
func (s *State) moveReplica(r *Replica, to ReplicaPhase, timeoutMs int64, reason string, at int64) Event {
	from := r.Phase
	for _, id := range r.GPUs {
		s.settle(s.GPUs[id], at)
	}
	r.Phase, r.SinceMs, r.TimeoutMs, r.Reason = to, at, timeoutMs, reason
	r.Seq++
	for _, id := range r.GPUs {
		g := s.GPUs[id]
		switch to {
		case ReplicaStarting, ReplicaWaking:
			g.Active, g.Reserved = r.ID, ""
			g.dropResident(r.ID)
		case ReplicaAsleep:
			if g.Active == r.ID {
				g.Active = ""
			}
			if g.Reserved == r.ID {
				g.Reserved = ""
			}
			if !g.isResident(r.ID) {
				g.Residents = append(g.Residents, Resident{Holder: r.ID, Bytes: r.ResidentBytes})
			}
		case ReplicaStopping:
			if g.Reserved == r.ID {
				g.Reserved = ""
			}
		}
		s.rebook(g, at)
	}
	return Event{Kind: "replica", Object: r.ID, Model: r.Model, From: string(from), To: string(to), Reason: reason, GPUs: r.GPUs}
}

func (s *State) replicaGone(c *ReplicaGone, at int64) ([]Event, error) {
	r := s.Replicas[c.Replica]
	if r == nil {
		return nil, fmt.Errorf("replica %q: %w", c.Replica, ErrUnknown)
	}
	for _, id := range r.GPUs {
		g := s.GPUs[id]
		s.settle(g, at)
		if g.Active == r.ID {
			g.Active = ""
		}
		if g.Reserved == r.ID {
			g.Reserved = ""
		}
		g.dropResident(r.ID)
	}
	delete(s.Replicas, r.ID)
	for _, id := range r.GPUs {
		s.rebook(s.GPUs[id], at)
	}
	if m := s.Models[r.Model]; m != nil {
		if c.Failed {
			m.Failures++
			m.RetryAtMs = c.RetryAtMs
		}
		if m.Deleting && !slices.ContainsFunc(replicasOf(s, r.Model), func(*Replica) bool { return true }) {
			delete(s.Models, r.Model)
		}
	}
	return []Event{{Kind: "replica", Object: r.ID, Model: r.Model, From: string(r.Phase), To: "gone", GPUs: r.GPUs}}, nil
}

func replicasOf(s *State, model string) []*Replica {
	var out []*Replica
	for _, r := range s.Replicas {
		if r.Model == model {
			out = append(out, r)
		}
	}
	return out
}
