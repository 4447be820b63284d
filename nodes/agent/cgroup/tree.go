package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Environment marks of every process of a holder.
const (
	EnvMark   = "SLUICE_MARK"   // the agent's mark
	EnvHolder = "SLUICE_HOLDER" // the holder's id
)

// top is the directory of ours under the cgroup mount.
const top = "sluice"

// shims is the group of the shims themselves; no holder has such a name.
const shims = "@shims"

// Tree is the place of one agent's groups. The zero Tree is not usable.
type Tree struct {
	mark string
	root string // .../sluice/MARK; empty: no writable cgroup v2, marks only
}

// Find looks for a cgroup v2 tree that this process may write, through
// /proc/self/mountinfo, and makes the agent's directory there. When there is
// none, the Tree works by environment marks.
func Find(mark string) Tree {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Tree{mark: mark}
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return Tree{mark: mark}
	}
	mount := findMount(string(mounts))
	if mount.point == "" {
		return Tree{mark: mark}
	}
	here := filepath.Join(mount.point, mount.relative(ownPath(string(own))))
	// At the root of the mount the holders outlive the stop of the service that
	// the agent may be part of; below our own group is the second choice.
	for _, parent := range []string{mount.point, here} {
		root := filepath.Join(parent, top, mark)
		if usable(root, here, parent) {
			return Tree{mark: mark, root: root}
		}
	}
	return Tree{mark: mark}
}

// Marks returns a tree without cgroups, for machines (and tests) without any.
func Marks(mark string) Tree { return Tree{mark: mark} }

// mount is one cgroup2 line of mountinfo.
type mount struct{ root, point string }

// findMount returns the first writable cgroup2 mount. On hybrid machines it is
// not /sys/fs/cgroup itself, so the path is never assumed.
func findMount(mountinfo string) mount {
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(strings.TrimSpace(line), " - ")
		if !ok || !strings.HasPrefix(right, "cgroup2 ") {
			continue
		}
		f := strings.Fields(left)
		if len(f) < 6 || strings.HasPrefix(f[5]+",", "ro,") {
			continue
		}
		return mount{root: unescape(f[3]), point: unescape(f[4])}
	}
	return mount{}
}

// relative turns a path of /proc/PID/cgroup into one below the mount point.
func (m mount) relative(path string) string {
	if m.root != "/" {
		path = strings.TrimPrefix(path, m.root)
	}
	return path
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// ownPath picks the v2 line ("0::/path") of /proc/PID/cgroup.
func ownPath(cgroups string) string {
	for line := range strings.Lines(cgroups) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return path
		}
	}
	return "/"
}

// usable makes root and says whether processes may be moved there from here:
// the kernel wants write access to cgroup.procs of both the target and the
// common ancestor, which is parent.
func usable(root, here, parent string) bool {
	if err := os.MkdirAll(filepath.Join(root, shims), 0o755); err != nil {
		return false
	}
	procs := []string{filepath.Join(root, shims, "cgroup.procs"), filepath.Join(parent, "cgroup.procs"), filepath.Join(here, "cgroup.procs")}
	for _, p := range procs {
		if unix.Access(p, unix.W_OK) != nil {
			_ = removeAll(root)
			return false
		}
	}
	return true
}

// Mark returns the agent's mark.
func (t Tree) Mark() string { return t.mark }

// Real says whether holders have cgroups, and not marks only.
func (t Tree) Real() bool { return t.root != "" }

// Group returns the group of a holder; it need not exist.
func (t Tree) Group(holder string) Group {
	g := Group{mark: t.mark, holder: holder}
	if t.root != "" {
		g.dir = filepath.Join(t.root, holder)
	}
	return g
}

// Shims returns the group in which the shims live, apart from what they hold,
// so that ending a holder leaves its shim to write the exit status.
func (t Tree) Shims() Group { return t.Group(shims) }

// Holders lists the holders of which there is a group, or by marks at least one
// process.
func (t Tree) Holders() ([]string, error) {
	seen := make(map[string]bool)
	var out []string
	add := func(h string) {
		if h != "" && h != shims && !seen[h] {
			seen[h] = true
			out = append(out, h)
		}
	}
	if t.root != "" {
		entries, err := os.ReadDir(t.root)
		if err != nil {
			return nil, fmt.Errorf("cgroup: list groups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				add(e.Name())
			}
		}
		return out, nil
	}
	for _, pid := range allPids() {
		if v := environ(pid, EnvMark, EnvHolder); v[0] == t.mark {
			if st, ok := ReadStat(pid); ok && st.Letter != 'Z' {
				add(v[1])
			}
		}
	}
	return out, nil
}

// HolderOf returns the holder of this agent that a process belongs to; ok is
// false for a process of nobody here.
func (t Tree) HolderOf(pid int) (holder string, ok bool) {
	if t.root == "" {
		v := environ(pid, EnvMark, EnvHolder)
		return v[1], v[0] == t.mark && v[1] != ""
	}
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return "", false
	}
	_, rest, ok := strings.Cut(ownPath(string(raw))+"/", "/"+top+"/"+t.mark+"/")
	if !ok {
		return "", false
	}
	holder, _, _ = strings.Cut(rest, "/")
	return holder, holder != "" && holder != shims
}

// Remove takes away the agent's directory when nothing is left in it, and fails
// otherwise. The directory above stays: another agent may be about to use it.
func (t Tree) Remove() error {
	if t.root == "" {
		return nil
	}
	_ = unix.Rmdir(filepath.Join(t.root, shims))
	err := unix.Rmdir(t.root)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
