package own

import (
	"sluice/router"
	"sluice/slo"
)

// ModelStats is the state of one model's line.
type ModelStats struct {
	Model        string
	Queued       [slo.NumClasses]int // waiting, by class
	InFlight     int
	OldestWaitMs int64 // how long the longest waiting one has waited
	Replicas     int   // in the table
	Ready        int   // that could be chosen now, or once they have room
}

// Depth is the queue of all classes.
func (m *ModelStats) Depth() int {
	n := 0
	for _, q := range m.Queued {
		n += q
	}
	return n
}

// ReplicaStats is the load of one replica.
type ReplicaStats struct {
	ID       string
	Model    string
	InFlight int
	WorkMs   float64 // predicted work in flight
	Speed    float64 // milliseconds held per millisecond of predicted work; 0 while unknown
	Standing router.Standing
}

// Stats is a snapshot; its parts are read one after the other.
type Stats struct {
	Models   []ModelStats
	Replicas []ReplicaStats
}

// Stats reads all models and replicas of the table.
func (r *Router) Stats(nowMs int64) Stats {
	lv := r.live.Load()
	s := Stats{Models: make([]ModelStats, 0, len(lv.lines)), Replicas: make([]ReplicaStats, 0, len(lv.counters))}
	for i := range lv.table.Models() {
		m := &lv.table.Models()[i]
		l := lv.lines[m.Name]
		ms := ModelStats{Model: m.Name, InFlight: int(l.inFlight.Load()), Replicas: len(m.Replicas)}
		for c := range ms.Queued {
			ms.Queued[c] = int(l.classes[c].Load())
		}
		if oldest := l.oldestMs.Load(); oldest > 0 {
			ms.OldestWaitMs = max(0, nowMs-oldest)
		}
		for j := range m.Replicas {
			if standing := lv.counters[m.Replicas[j].Slot].standing(nowMs); standing != router.Out && standing != router.Ejected {
				ms.Ready++
			}
		}
		s.Models = append(s.Models, ms)
	}
	for slot, c := range lv.counters {
		replica := lv.table.Replica(slot)
		s.Replicas = append(s.Replicas, ReplicaStats{
			ID: replica.ID, Model: replica.Model, InFlight: int(c.inFlight.Load()),
			WorkMs: float64(c.workUs.Load()) / 1000, Speed: c.ratio.load(), Standing: c.standing(nowMs),
		})
	}
	return s
}

// Depth is the number of requests that wait for a model, all classes; 0 for one that is unknown.
func (r *Router) Depth(model string) int {
	lv := r.live.Load()
	m, ok := lv.table.Lookup(model)
	if !ok {
		return 0
	}
	return int(lv.lines[m.Name].queued.Load())
}

// Drained reports that a replica is not in the table and has nothing in flight, so it may be stopped. An id never seen
// is drained.
func (r *Router) Drained(replicaID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counters[replicaID]
	return c == nil || (c.leaseMs.Load() == 0 && c.inFlight.Load() == 0)
}
