package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxDepth bounds how deep a holder's own sub-groups are followed.
const maxDepth = 16

// Group is the processes of one holder.
type Group struct {
	mark   string
	holder string
	dir    string // empty: by marks
}

// FromParts makes the group again in another process, the shim.
func FromParts(mark, holder, dir string) Group { return Group{mark: mark, holder: holder, dir: dir} }

// Dir is the cgroup's directory; empty when membership is by marks.
func (g Group) Dir() string { return g.dir }

// Env is the environment every process of the holder carries.
func (g Group) Env() []string {
	return []string{EnvMark + "=" + g.mark, EnvHolder + "=" + g.holder}
}

// Create makes the cgroup; nothing to do for marks.
func (g Group) Create() error {
	if g.dir == "" {
		return nil
	}
	if err := os.MkdirAll(g.dir, 0o755); err != nil {
		return fmt.Errorf("cgroup: make group of %s: %w", g.holder, err)
	}
	return nil
}

// Open opens the cgroup for syscall.SysProcAttr.CgroupFD. The caller closes it;
// nil for marks.
func (g Group) Open() (*os.File, error) {
	if g.dir == "" {
		return nil, nil
	}
	return os.Open(g.dir)
}

// Pids lists the living processes of the group, zombies left out. A group that
// was never made is empty.
func (g Group) Pids() ([]int, error) {
	if g.dir == "" {
		return g.marked(), nil
	}
	var pids []int
	err := walk(g.dir, 0, func(dir string) error {
		raw, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if gone(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cgroup: list processes of %s: %w", g.holder, err)
		}
		for f := range strings.FieldsSeq(string(raw)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				continue
			}
			if st, ok := ReadStat(pid); ok && st.Letter != 'Z' && st.Letter != 'X' {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids, err
}

// marked scans the machine: a few milliseconds, so only without cgroups.
func (g Group) marked() []int {
	var pids []int
	for _, pid := range allPids() {
		v := environ(pid, EnvMark, EnvHolder)
		if v[0] != g.mark || v[1] != g.holder {
			continue
		}
		if st, ok := ReadStat(pid); ok && st.Letter != 'Z' && st.Letter != 'X' {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Kill sends SIGKILL to the whole group, frozen or not. Processes may be there
// for a moment longer: Pids tells.
func (g Group) Kill() error {
	if g.dir != "" {
		err := os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0)
		if err == nil || gone(err) {
			return nil
		}
		// Before Linux 5.14 there is no cgroup.kill: one by one, below.
	}
	pids, err := g.Pids()
	if err != nil {
		return err
	}
	var first error
	for _, pid := range pids {
		if st, ok := ReadStat(pid); ok {
			if err := st.Signal(unix.SIGKILL); err != nil && first == nil {
				first = fmt.Errorf("cgroup: kill %d of %s: %w", pid, g.holder, err)
			}
		}
	}
	return first
}

// Remove takes the empty cgroup away; a group that is not there is no error.
func (g Group) Remove() error {
	if g.dir == "" {
		return nil
	}
	return removeAll(g.dir)
}

// removeAll removes a cgroup and those below it, deepest first. Files in a
// cgroup cannot be removed, so os.RemoveAll does not serve.
func removeAll(dir string) error {
	var dirs []string
	err := walk(dir, 0, func(d string) error {
		dirs = append(dirs, d)
		return nil
	})
	if err != nil {
		return err
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := unix.Rmdir(dirs[i]); err != nil && !gone(err) {
			return fmt.Errorf("cgroup: remove %s: %w", dirs[i], err)
		}
	}
	return nil
}

// walk calls f for dir and every group below it, parents first.
func walk(dir string, depth int, f func(dir string) error) error {
	if depth > maxDepth {
		return fmt.Errorf("cgroup: %s is nested deeper than %d", dir, maxDepth)
	}
	if err := f(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cgroup: list %s: %w", dir, err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := walk(filepath.Join(dir, e.Name()), depth+1, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// gone says that a group vanished under our eyes, which is no error.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
