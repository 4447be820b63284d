package simgpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Limits.
const (
	// MaxContexts is how many living contexts one GPU takes; the next Attach is ErrFull.
	MaxContexts = 64
	// MaxGPUs is how many devices one directory takes.
	MaxGPUs = 1024
	// LockWaitMs is how long a call waits for the state of a GPU before ErrLocked.
	LockWaitMs = 5000
	// lockPollUs is the pause between two tries at a lock that is taken.
	lockPollUs = 100
)

// state is the content of one GPU's file.
type state struct {
	Spec
	Index    int    `json:"index"` // order of creation, the order of List
	Lost     bool   `json:"lost,omitempty"`
	XID      int    `json:"xid,omitempty"`
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

func statePath(dir, uuid string) string { return filepath.Join(dir, uuid+".json") }
func lockPath(dir, uuid string) string  { return filepath.Join(dir, uuid+".lock") }

// load reads a state without a lock: files are replaced whole, so any read is
// of one state that was true.
func load(dir, uuid string) (*state, error) {
	raw, err := os.ReadFile(statePath(dir, uuid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s in %s", ErrUnknownGPU, uuid, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("simgpu: read state of %s: %w", uuid, err)
	}
	st := new(state)
	if err := json.Unmarshal(raw, st); err != nil {
		return nil, fmt.Errorf("simgpu: state of %s is not readable, delete %s and create the gpu again: %w",
			uuid, statePath(dir, uuid), err)
	}
	return st, nil
}

// store replaces the state file. Caller holds the GPU's lock, which also
// guards the temporary name.
func store(dir, uuid string, st *state) error {
	raw, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("simgpu: encode state of %s: %w", uuid, err)
	}
	tmp := filepath.Join(dir, "."+uuid+".tmp")
	// No fsync: the state must survive any process, not the machine; after a
	// power cut every entry is of a dead process anyway.
	err = os.WriteFile(tmp, raw, 0o666)
	if errors.Is(err, fs.ErrPermission) {
		// Left behind by a killed process of another user.
		_ = os.Remove(tmp)
		err = os.WriteFile(tmp, raw, 0o666)
	}
	if err != nil {
		return fmt.Errorf("simgpu: write state of %s: %w", uuid, err)
	}
	if err := os.Rename(tmp, statePath(dir, uuid)); err != nil {
		return fmt.Errorf("simgpu: replace state of %s: %w", uuid, err)
	}
	return nil
}

// fileLock is a flock on an open file; the kernel drops it when its process ends.
type fileLock struct{ f *os.File }

func openLock(path string) (fileLock, error) {
	// The lock is shared by processes of different users: the agent is often
	// root and the ranks are not.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return fileLock{}, fmt.Errorf("simgpu: open lock: %w", err)
	}
	return fileLock{f}, nil
}

// acquire polls instead of blocking in the kernel, because the process that
// has the lock may be frozen, and then a blocking flock would never return.
func (l fileLock) acquire() error {
	fd := int(l.f.Fd())
	var waited time.Duration
	for {
		err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			return fmt.Errorf("simgpu: lock %s: %w", l.f.Name(), err)
		}
		if waited >= LockWaitMs*time.Millisecond {
			return fmt.Errorf("%w: %s, continue or end the process that has it", ErrLocked, l.f.Name())
		}
		time.Sleep(lockPollUs * time.Microsecond)
		waited += lockPollUs * time.Microsecond
	}
}

func (l fileLock) release() { _ = syscall.Flock(int(l.f.Fd()), syscall.LOCK_UN) }

func (l fileLock) close() { _ = l.f.Close() }

// update runs change on the locked, fresh state of a GPU and stores it if
// change returns true. An error of change stores nothing.
func update(dir, uuid string, lock fileLock, change func(*state) (bool, error)) error {
	if err := lock.acquire(); err != nil {
		return err
	}
	defer lock.release()
	st, err := load(dir, uuid)
	if err != nil {
		return err
	}
	dirty, err := change(st)
	if err != nil || !dirty {
		return err
	}
	return store(dir, uuid, st)
}
