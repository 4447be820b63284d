package simgpu

// Limits.
const (
	// MaxContexts is how many living contexts one GPU takes; the next Attach is ErrFull.
	MaxContexts = 64
	// MaxGPUs is how many devices one directory takes.
	MaxGPUs = 1024
	// MaxHolderBytes is the longest name of a holder.
	MaxHolderBytes = 256
	// LockWaitMs is how long a call waits for the state of a GPU before ErrLocked.
	LockWaitMs = 5000
	// lockPollUs is the pause between two tries at a lock that is taken.
	lockPollUs = 100
)

// state is what one GPU's file says.
type state struct {
	Spec
	Index    int    `json:"index"` // order of creation, the order of List
	Lost     bool   `json:"lost,omitempty"`
	XID      int    `json:"xid,omitempty"`
	Seq      int64  `json:"seq"` // of this copy; the higher one is newer
	NextID   int64  `json:"nextId"`
	Contexts []slot `json:"contexts,omitempty"`
}

// slot is one attached context. It counts only while (PID, StartTicks) lives.
type slot struct {
	ID         int64  `json:"id"`
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"startTicks"`
	Holder     string `json:"holder"`
	Bytes      int64  `json:"bytes"`
	Active     bool   `json:"active,omitempty"`
}

// used is the sum over all entries; the invariant used <= MemoryBytes holds
// for every state ever written.
func (s *state) used() int64 {
	var sum int64
	for i := range s.Contexts {
		sum += s.Contexts[i].Bytes
	}
	return sum
}

// prune drops the entries of dead processes and reports whether it found any.
func (s *state) prune() bool {
	kept := s.Contexts[:0]
	for _, c := range s.Contexts {
		if _, alive := procAlive(c.PID, c.StartTicks); alive {
			kept = append(kept, c)
		}
	}
	found := len(kept) != len(s.Contexts)
	s.Contexts = kept
	return found
}

func (s *state) find(id int64) *slot {
	for i := range s.Contexts {
		if s.Contexts[i].ID == id {
			return &s.Contexts[i]
		}
	}
	return nil
}

// rival returns an active entry of another holder, or nil.
func (s *state) rival(holder string) *slot {
	for i := range s.Contexts {
		if c := &s.Contexts[i]; c.Active && c.Holder != holder {
			return c
		}
	}
	return nil
}
