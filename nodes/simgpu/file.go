package simgpu

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	// slotBytes is the room of one copy of a state; MaxContexts entries with
	// the longest names fit.
	slotBytes = 32 << 10
	fileBytes = 2 * slotBytes
	// sumBytes is the length of a copy's head: its CRC-32C in hex and a space.
	sumBytes = 9
	// readTries is how often a reader without the lock looks again when both
	// copies were being written while it read.
	readTries = 1000
	fileEnd   = ".gpu"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// stateFile is an open file of one GPU. It has two copies of the state, each a
// line "checksum json"; a writer overwrites the older one in place. A writer
// killed in the middle tears only its own copy, and the checksum shows it.
//
// In place and not by rename: a rename on a disk file system costs 130 µs and
// more, this costs 10.
type stateFile struct {
	f   *os.File
	buf []byte // fileBytes, owned by the one who calls
}

func statePath(dir, uuid string) string { return filepath.Join(dir, uuid+fileEnd) }

func openState(dir, uuid string) (*stateFile, error) {
	f, err := os.OpenFile(statePath(dir, uuid), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s in %s", ErrUnknownGPU, uuid, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("simgpu: open state: %w", err)
	}
	return &stateFile{f: f, buf: make([]byte, fileBytes)}, nil
}

func (s *stateFile) close() { _ = s.f.Close() }

// read returns the newest whole copy. It needs no lock.
func (s *stateFile) read() (*state, error) {
	for range readTries {
		n, err := s.f.ReadAt(s.buf, 0)
		if err != nil && err != io.EOF {
			return nil, fmt.Errorf("simgpu: read state: %w", err)
		}
		raw := s.buf[:n]
		a, b := parseCopy(raw[:min(n, slotBytes)]), parseCopy(raw[min(n, slotBytes):])
		if a == nil || b != nil && b.Seq > a.Seq {
			a = b
		}
		if a != nil {
			return a, nil
		}
	}
	return nil, fmt.Errorf("simgpu: no readable state in %s; end its processes, delete it and create the gpu again", s.f.Name())
}

// parseCopy returns nil for a copy that is absent or torn.
func parseCopy(slot []byte) *state {
	end := bytes.IndexByte(slot, '\n')
	if end < sumBytes {
		return nil
	}
	sum, err := strconv.ParseUint(string(slot[:sumBytes-1]), 16, 32)
	payload := slot[sumBytes:end]
	if err != nil || uint32(sum) != crc32.Checksum(payload, castagnoli) {
		return nil
	}
	st := new(state)
	if json.Unmarshal(payload, st) != nil {
		return nil
	}
	return st
}

// write stores st as the newest copy. The caller has the lock, or the file is
// not visible yet. No fsync: the state must survive any process, not the
// machine; after a power cut every entry is of a dead process anyway.
func (s *stateFile) write(st *state) error {
	st.Seq++
	payload, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("simgpu: encode state: %w", err)
	}
	line := fmt.Appendf(s.buf[:0], "%08x ", crc32.Checksum(payload, castagnoli))
	line = append(append(line, payload...), '\n')
	if len(line) > slotBytes {
		return fmt.Errorf("simgpu: state of %s takes %d bytes, %d is the limit", st.UUID, len(line), slotBytes)
	}
	if _, err := s.f.WriteAt(line, st.Seq%2*slotBytes); err != nil {
		return fmt.Errorf("simgpu: write state: %w", err)
	}
	return nil
}

// update runs change on the locked, fresh state and stores it if change
// returns true. An error of change stores nothing.
func (s *stateFile) update(change func(*state) (bool, error)) error {
	if err := acquire(s.f); err != nil {
		return err
	}
	defer release(s.f)
	st, err := s.read()
	if err != nil {
		return err
	}
	dirty, err := change(st)
	if err != nil || !dirty {
		return err
	}
	return s.write(st)
}

// acquire takes a flock; the kernel drops it when its process ends. It polls
// instead of blocking in the kernel, because the process that has the lock may
// be frozen, and then a blocking flock would never return.
func acquire(f *os.File) error {
	fd := int(f.Fd())
	var waited time.Duration
	for {
		err := syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			return fmt.Errorf("simgpu: lock %s: %w", f.Name(), err)
		}
		if waited >= LockWaitMs*time.Millisecond {
			return fmt.Errorf("%w: %s, continue or end the process that has it", ErrLocked, f.Name())
		}
		time.Sleep(lockPollUs * time.Microsecond)
		waited += lockPollUs * time.Microsecond
	}
}

func release(f *os.File) { _ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
