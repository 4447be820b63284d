package registry

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Check verifies the invariants that must hold after every command and returns
// each one broken, in words. An empty answer is a sound state.
func (s *State) Check() []string {
	var bad []string
	for _, id := range slices.Sorted(maps.Keys(s.GPUs)) {
		bad = append(bad, s.checkGPU(s.GPUs[id])...)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Jobs)) {
		bad = append(bad, s.checkJob(s.Jobs[name])...)
	}
	for _, id := range slices.Sorted(maps.Keys(s.Replicas)) {
		bad = append(bad, s.checkReplica(s.Replicas[id])...)
	}
	if t := s.BooksAt(s.LastMs); t.BalanceMs != 0 {
		bad = append(bad, fmt.Sprintf("books: off by %d GPU-ms", t.BalanceMs))
	}
	for b, ms := range s.Books.TotalMs {
		if ms < 0 {
			bad = append(bad, fmt.Sprintf("books: %s is %d", BookState(b), ms))
		}
	}
	return bad
}

func (s *State) checkGPU(g *GPU) []string {
	var bad []string
	sum := int64(0)
	if r := s.Replicas[g.Active]; r != nil {
		if !slices.Contains(r.GPUs, g.UUID) {
			bad = append(bad, fmt.Sprintf("GPU %s: active replica %s does not name it", g.UUID, r.ID))
		}
		sum += r.ActiveBytes
	} else if g.Active != "" {
		if j := s.Jobs[jobOf(g.Active)]; j != nil {
			sum += j.Spec.ActiveBytes
		}
	}
	for _, r := range g.Residents {
		if r.Holder == g.Active {
			bad = append(bad, fmt.Sprintf("GPU %s: %s is active and resident", g.UUID, g.Active))
		}
		sum += r.Bytes
	}
	if g.MemoryBytes > 0 && sum > g.MemoryBytes {
		bad = append(bad, fmt.Sprintf("GPU %s: %d bytes declared, has %d", g.UUID, sum, g.MemoryBytes))
	}
	if g.Reserved != "" && s.Replicas[g.Reserved] == nil && s.Jobs[g.Reserved] == nil {
		bad = append(bad, fmt.Sprintf("GPU %s: reserved for %s, which does not exist", g.UUID, g.Reserved))
	}
	return bad
}

func (s *State) checkJob(j *Job) []string {
	var bad []string
	if n := len(j.Ranks); n != 0 && !j.Spec.World(n) {
		bad = append(bad, fmt.Sprintf("job %s: world size %d", j.Spec.Name, n))
	}
	if j.Phase.Ended() && len(j.Ranks) > 0 {
		bad = append(bad, fmt.Sprintf("job %s: %s with ranks", j.Spec.Name, j.Phase))
	}
	if j.Phase != JobRunning && j.Phase != JobYielded {
		return bad
	}
	for _, r := range j.Ranks {
		holder := j.Holder(r.Rank)
		for _, id := range r.GPUs {
			g := s.GPUs[id]
			if j.Phase == JobRunning && g.Active != holder {
				bad = append(bad, fmt.Sprintf("job %s: runs on GPU %s, held by %q", j.Spec.Name, id, g.Active))
			}
			if j.Phase == JobYielded && !g.isResident(holder) {
				bad = append(bad, fmt.Sprintf("job %s: yielded, not resident on GPU %s", j.Spec.Name, id))
			}
		}
	}
	return bad
}

func (s *State) checkReplica(r *Replica) []string {
	var bad []string
	for _, id := range r.GPUs {
		g := s.GPUs[id]
		switch r.Phase {
		case ReplicaStarting, ReplicaReady, ReplicaDraining, ReplicaWaking:
			if g.Active != r.ID {
				bad = append(bad, fmt.Sprintf("replica %s: %s on GPU %s, held by %q", r.ID, r.Phase, id, g.Active))
			}
		case ReplicaAsleep:
			if !g.isResident(r.ID) {
				bad = append(bad, fmt.Sprintf("replica %s: asleep, not resident on GPU %s", r.ID, id))
			}
		case ReplicaWaiting:
			if g.Reserved != r.ID {
				bad = append(bad, fmt.Sprintf("replica %s: waits for GPU %s, reserved for %q", r.ID, id, g.Reserved))
			}
		}
	}
	return bad
}

// Snapshot encodes the whole state.
func (s *State) Snapshot() ([]byte, error) { return json.Marshal(s) }

// Restore decodes what Snapshot wrote.
func Restore(data []byte) (*State, error) {
	s := New()
	s.Tenants = map[string]*TenantSpec{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("decode the snapshot of the registry: %w", err)
	}
	for _, id := range s.Seen {
		s.seen[id] = struct{}{}
	}
	return s, nil
}
