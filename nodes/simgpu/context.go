package simgpu

import (
	"fmt"
	"sync"
)

// Context is this process's hold on one GPU. Safe for concurrent use. The zero
// value is not usable; get one from Attach or FromEnv.
type Context struct {
	dir    string
	spec   Spec
	holder string
	pid    int
	id     int64

	mu     sync.Mutex
	file   *stateFile // guarded by mu: a flock excludes other open files, not this one
	closed bool       // guarded by mu
}

// Spec returns the device's description.
func (c *Context) Spec() Spec { return c.spec }

// Holder returns the holder this context was attached for.
func (c *Context) Holder() string { return c.holder }

// change runs f on this context's entry under both locks.
func (c *Context) change(f func(*state, *slot) (bool, error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("%w: %s on %s", ErrClosed, c.holder, c.spec.UUID)
	}
	return c.file.update(func(st *state) (bool, error) {
		own := st.find(c.id)
		if own == nil {
			return false, fmt.Errorf("%w: entry %d of %s is gone from %s", ErrClosed, c.id, c.holder, c.spec.UUID)
		}
		return f(st, own)
	})
}

// Alloc maps bytes more; all of them or, with ErrOutOfMemory, none.
func (c *Context) Alloc(bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("%w: alloc of %d bytes", ErrBadSpec, bytes)
	}
	return c.change(func(st *state, own *slot) (bool, error) { return c.resize(st, own.Bytes+bytes) })
}

// Free gives bytes back; freeing more than is held frees everything.
func (c *Context) Free(bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("%w: free of %d bytes", ErrBadSpec, bytes)
	}
	return c.change(func(st *state, own *slot) (bool, error) { return c.resize(st, max(0, own.Bytes-bytes)) })
}

// SetAllocated grows or shrinks what this context holds to bytes. Growing is
// all or nothing.
func (c *Context) SetAllocated(bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("%w: allocation of %d bytes", ErrBadSpec, bytes)
	}
	return c.change(func(st *state, _ *slot) (bool, error) { return c.resize(st, bytes) })
}

func (c *Context) resize(st *state, want int64) (bool, error) {
	own := st.find(c.id)
	grow := want - own.Bytes
	if grow > 0 && st.Lost {
		return false, fmt.Errorf("%w: %s", ErrLost, st.UUID)
	}
	// The dead are looked for only when their memory is needed: the usual
	// call costs no reading of /proc. Compared by subtraction, since a sum
	// could overflow.
	if grow > 0 && grow > st.MemoryBytes-st.used() {
		st.prune()
		if left := st.MemoryBytes - st.used(); grow > left {
			return false, fmt.Errorf("%w: %s asks %d bytes more on %s, %d are left", ErrOutOfMemory, c.holder, grow, st.UUID, left)
		}
		own = st.find(c.id)
	}
	own.Bytes = want
	return grow != 0, nil
}

// Activate makes the holder the one that computes on the GPU, until Deactivate,
// Close, or the end of this process. While another living holder is active it
// is ErrBusy, and the attempt is written to the violations file. Calling it
// again is harmless.
func (c *Context) Activate() error {
	return c.change(func(st *state, own *slot) (bool, error) {
		if st.Lost {
			return false, fmt.Errorf("%w: %s", ErrLost, st.UUID)
		}
		if own.Active {
			return false, nil
		}
		if rival := st.rival(c.holder); rival != nil {
			st.prune()
			own = st.find(c.id)
			if rival = st.rival(c.holder); rival != nil {
				return false, c.refuseBusy(rival)
			}
		}
		own.Active = true
		return true, nil
	})
}

func (c *Context) refuseBusy(rival *slot) error {
	busy := fmt.Errorf("%w: %s is held by %s (pid %d), wanted by %s", ErrBusy, c.spec.UUID, rival.Holder, rival.PID, c.holder)
	err := appendViolation(c.dir, Violation{
		UUID: c.spec.UUID, Holder: c.holder, PID: c.pid, ActiveHolder: rival.Holder, ActivePID: rival.PID,
	})
	if err != nil {
		return fmt.Errorf("%w; and the violation could not be recorded: %v", busy, err)
	}
	return busy
}

// Deactivate ends computing and keeps the memory. Calling it again is harmless.
func (c *Context) Deactivate() error {
	return c.change(func(_ *state, own *slot) (bool, error) {
		was := own.Active
		own.Active = false
		return was, nil
	})
}

// Check returns ErrLost when the device fell off the bus: what a kernel launch
// would say next. It takes no lock of other processes.
func (c *Context) Check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("%w: %s on %s", ErrClosed, c.holder, c.spec.UUID)
	}
	st, err := c.file.read()
	if err != nil {
		return err
	}
	if st.Lost {
		return fmt.Errorf("%w: %s", ErrLost, st.UUID)
	}
	return nil
}

// Close gives back everything and removes the entry. Calling it again is harmless.
func (c *Context) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	err := c.file.update(func(st *state) (bool, error) {
		for i := range st.Contexts {
			if st.Contexts[i].ID == c.id {
				st.Contexts = append(st.Contexts[:i], st.Contexts[i+1:]...)
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	c.closed = true
	c.file.close()
	return nil
}
