package simgpu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// Spec describes one simulated GPU.
type Spec struct {
	UUID        string `json:"uuid"`        // letters, digits, '-', '_', '.'; unique in the directory
	Name        string `json:"name"`        // product name as NVML would say it
	MemoryBytes int64  `json:"memoryBytes"` // > 0
	Island      int    `json:"island"`      // GPUs of one island are joined by NVLink
}

func (s Spec) validate() error {
	if s.UUID == "" || len(s.UUID) > 128 || s.UUID[0] == '.' {
		return fmt.Errorf("%w: uuid %q must have 1 to 128 characters and not start with a dot", ErrBadSpec, s.UUID)
	}
	for _, r := range s.UUID {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
		if !ok {
			return fmt.Errorf("%w: uuid %q must be letters, digits, '-', '_' and '.'", ErrBadSpec, s.UUID)
		}
	}
	if s.MemoryBytes <= 0 {
		return fmt.Errorf("%w: memoryBytes of %s must be above 0, not %d", ErrBadSpec, s.UUID, s.MemoryBytes)
	}
	return nil
}

// Create makes the directory and the GPUs that are not there yet. A GPU that
// exists is kept as it is, with everything attached to it, whatever the Spec says.
func Create(dir string, specs []Spec) error {
	for _, s := range specs {
		if err := s.validate(); err != nil {
			return err
		}
	}
	if err := makeShared(dir); err != nil {
		return fmt.Errorf("simgpu: make directory: %w", err)
	}
	lock, err := openShared(filepath.Join(dir, ".create.lock"))
	if err != nil {
		return fmt.Errorf("simgpu: open lock: %w", err)
	}
	defer lock.Close()
	if err := acquire(lock); err != nil {
		return err
	}
	defer release(lock)
	have, err := loadAll(dir)
	if err != nil {
		return err
	}
	known, next := make(map[string]bool, len(have)), 0
	for _, st := range have {
		known[st.UUID] = true
		next = max(next, st.Index+1)
	}
	for _, s := range specs {
		if known[s.UUID] {
			continue
		}
		if len(known) >= MaxGPUs {
			return fmt.Errorf("%w: %s would be more than %d gpus in %s", ErrBadSpec, s.UUID, MaxGPUs, dir)
		}
		if err := createOne(dir, &state{Spec: s, Index: next, NextID: 1}); err != nil {
			return err
		}
		known[s.UUID] = true
		next++
	}
	return nil
}

// makeShared makes the directory and the violations file. They are open to
// every user whatever the umask, as device nodes are: the agent is often root
// and its ranks are not.
func makeShared(dir string) error {
	_, err := os.Stat(dir)
	if err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return err
	}
	f, err := openShared(violationsPath(dir))
	if err != nil {
		return err
	}
	return f.Close()
}

func openShared(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	// Another user's file is open to all already, by the same call.
	_ = f.Chmod(0o666)
	return f, nil
}

// createOne makes a GPU's file under another name, so that it appears whole.
func createOne(dir string, st *state) error {
	tmp := filepath.Join(dir, "."+st.UUID+".new")
	_ = os.Remove(tmp) // of a Create that was killed
	f, err := openShared(tmp)
	if err != nil {
		return fmt.Errorf("simgpu: make state: %w", err)
	}
	file := &stateFile{f: f, buf: make([]byte, fileBytes)}
	defer file.close()
	if err := file.write(st); err != nil {
		return err
	}
	if err := os.Rename(tmp, statePath(dir, st.UUID)); err != nil {
		return fmt.Errorf("simgpu: name state: %w", err)
	}
	return nil
}

// loadAll reads every state of the directory, in order of creation.
func loadAll(dir string) ([]*state, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("simgpu: list %s: %w", dir, err)
	}
	var all []*state
	buf := make([]byte, fileBytes)
	for _, e := range entries {
		uuid, isState := strings.CutSuffix(e.Name(), fileEnd)
		if !isState || strings.HasPrefix(uuid, ".") {
			continue
		}
		st, err := load(dir, uuid, buf)
		if err != nil {
			return nil, err
		}
		all = append(all, st)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Index < all[j].Index })
	return all, nil
}

// load reads one GPU's state through buf (fileBytes).
func load(dir, uuid string, buf []byte) (*state, error) {
	f, err := os.Open(statePath(dir, uuid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s in %s", ErrUnknownGPU, uuid, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("simgpu: open state: %w", err)
	}
	file := stateFile{f: f, buf: buf}
	defer file.close()
	return file.read()
}

// List returns the GPUs of the directory in order of creation.
func List(dir string) ([]Spec, error) {
	all, err := loadAll(dir)
	if err != nil {
		return nil, err
	}
	specs := make([]Spec, len(all))
	for i, st := range all {
		specs[i] = st.Spec
	}
	return specs, nil
}

// Device is one GPU of a directory. It holds nothing open; safe for concurrent use.
type Device struct {
	dir  string
	spec Spec
}

// Open finds a GPU by UUID; ErrUnknownGPU if it was not created.
func Open(dir, uuid string) (*Device, error) {
	if err := (Spec{UUID: uuid, MemoryBytes: 1}).validate(); err != nil {
		return nil, err
	}
	st, err := load(dir, uuid, make([]byte, fileBytes))
	if err != nil {
		return nil, err
	}
	return &Device{dir: dir, spec: st.Spec}, nil
}

// Spec returns what the GPU was created with.
func (d *Device) Spec() Spec { return d.spec }

// Attach enters this process as one of holder's on the GPU, with no memory and
// not active. The entry ends with Close or with the process.
func (d *Device) Attach(holder string) (*Context, error) {
	if holder == "" || len(holder) > MaxHolderBytes {
		return nil, fmt.Errorf("%w: a holder needs a name of 1 to %d bytes, not %q", ErrBadSpec, MaxHolderBytes, holder)
	}
	pid := os.Getpid()
	_, start, err := procStat(pid)
	if err != nil {
		return nil, fmt.Errorf("simgpu: simulated gpus need a mounted /proc: %w", err)
	}
	file, err := openState(d.dir, d.spec.UUID)
	if err != nil {
		return nil, err
	}
	c := &Context{dir: d.dir, spec: d.spec, holder: holder, pid: pid, file: file}
	err = file.update(func(st *state) (bool, error) {
		if st.Lost {
			return false, fmt.Errorf("%w: %s", ErrLost, st.UUID)
		}
		st.prune()
		if len(st.Contexts) >= MaxContexts {
			return false, fmt.Errorf("%w: %d on %s", ErrFull, MaxContexts, st.UUID)
		}
		c.id = st.NextID
		st.NextID++
		st.Contexts = append(st.Contexts, slot{ID: c.id, PID: pid, StartTicks: start, Holder: holder})
		return true, nil
	})
	if err != nil {
		file.close()
		return nil, err
	}
	return c, nil
}
