package exec

import (
	"encoding/json"
	"fmt"
	"sync"

	"sluice/nodes"
	"sluice/nodes/registry"
)

// store is the replicated state machine: the registry behind a lock, and the
// ring of events. It implements replog.Machine.
type store struct {
	mu    sync.RWMutex
	state *registry.State // guarded by mu
	fleet *nodes.Fleet    // guarded by mu, written by the loop
	// strict makes every apply verify the invariants; broken ones are kept.
	strict bool
	broken []string // guarded by mu

	events *ring
}

// applied is what became of one command of an entry.
type applied struct {
	events []registry.Event
	err    error
}

// maxBroken bounds the invariants remembered as broken.
const maxBroken = 64

// Apply takes one entry: a JSON list of commands.
func (s *store) Apply(data []byte) any {
	var cmds []registry.Command
	if err := json.Unmarshal(data, &cmds); err != nil {
		return []applied{{err: fmt.Errorf("decode an entry of the log: %w", err)}}
	}
	out := make([]applied, len(cmds))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range cmds {
		out[i].events, out[i].err = s.state.Apply(&cmds[i])
		if s.strict && out[i].err == nil {
			s.checkLocked(&cmds[i])
		}
		s.events.add(out[i].events)
	}
	return out
}

func (s *store) checkLocked(c *registry.Command) {
	for _, b := range s.state.Check() {
		if len(s.broken) < maxBroken {
			s.broken = append(s.broken, fmt.Sprintf("after %s (%s): %s", c.ID, c.Reason, b))
		}
	}
}

// Snapshot implements replog.Machine.
func (s *store) Snapshot() ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.Snapshot()
}

// Restore implements replog.Machine.
func (s *store) Restore(data []byte) error {
	st, err := registry.Restore(data)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.state = st
	s.mu.Unlock()
	return nil
}
