package cgroup

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Process names one process for good: a pid is used again, a pid with its start
// time is not.
type Process struct {
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"startTicks"` // clock ticks from boot to the start
}

// Stat is what /proc says of a process.
type Stat struct {
	Process
	Letter byte // R, S, D, T, Z, …
	Parent int
}

// ReadStat reads /proc/PID/stat; ok is false when there is no such process.
func ReadStat(pid int) (st Stat, ok bool) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, false
	}
	// The name stands in parentheses and may hold anything: count from the
	// last one. State is the first field after it, the start time the 20th.
	end := bytes.LastIndexByte(raw, ')')
	if end < 0 {
		return Stat{}, false
	}
	fields := bytes.Fields(raw[end+1:])
	if len(fields) < 20 {
		return Stat{}, false
	}
	parent, err1 := strconv.Atoi(string(fields[1]))
	start, err2 := strconv.ParseUint(string(fields[19]), 10, 64)
	if err1 != nil || err2 != nil {
		return Stat{}, false
	}
	return Stat{Process: Process{PID: pid, StartTicks: start}, Letter: fields[0][0], Parent: parent}, true
}

// Self returns this process.
func Self() Process {
	st, _ := ReadStat(os.Getpid())
	return st.Process
}

// Alive says whether the process is there and not a zombie: PID 1 of a
// container may be slow to reap, and a zombie holds nothing.
func (p Process) Alive() bool {
	if p.PID <= 0 {
		return false
	}
	st, ok := ReadStat(p.PID)
	return ok && st.StartTicks == p.StartTicks && st.Letter != 'Z' && st.Letter != 'X'
}

// Signal sends sig to this very process, never to a later one with its pid. A
// process that has ended is no error.
func (p Process) Signal(sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err == unix.ENOSYS {
		if p.Alive() {
			err = unix.Kill(p.PID, sig)
		} else {
			err = nil
		}
		return ignoreGone(err)
	}
	if err != nil {
		return ignoreGone(err)
	}
	defer unix.Close(fd)
	// The descriptor is of whoever had the pid when it was opened, so the start
	// time is compared after that.
	if !p.Alive() {
		return nil
	}
	return ignoreGone(unix.PidfdSendSignal(fd, sig, nil, 0))
}

func ignoreGone(err error) error {
	if err == unix.ESRCH || err == unix.EINVAL {
		return nil
	}
	return err
}

// String is "pid startTicks", the content of the pid files.
func (p Process) String() string { return fmt.Sprintf("%d %d", p.PID, p.StartTicks) }

// ParseProcess reads what String wrote.
func ParseProcess(s string) (Process, error) {
	var p Process
	if n, err := fmt.Sscanf(strings.TrimSpace(s), "%d %d", &p.PID, &p.StartTicks); n != 2 || err != nil {
		return Process{}, fmt.Errorf("cgroup: %q is not \"pid startTicks\"", s)
	}
	return p, nil
}

// allPids lists the processes of the machine (of this pid namespace).
func allPids() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	pids := make([]int, 0, len(names))
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// environ returns the value of each of keys in a process's environment as it
// was at exec; empty when unset or not readable.
func environ(pid int, keys ...string) []string {
	out := make([]string, len(keys))
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return out
	}
	for len(raw) > 0 {
		entry := raw
		if i := bytes.IndexByte(raw, 0); i >= 0 {
			entry, raw = raw[:i], raw[i+1:]
		} else {
			raw = nil
		}
		for i, k := range keys {
			if len(entry) > len(k) && entry[len(k)] == '=' && string(entry[:len(k)]) == k {
				out[i] = string(entry[len(k)+1:])
			}
		}
	}
	return out
}

// Children lists the living children of a process.
func Children(parent int) []Process {
	var out []Process
	for _, pid := range allPids() {
		if st, ok := ReadStat(pid); ok && st.Parent == parent && st.Letter != 'Z' && st.Letter != 'X' {
			out = append(out, st.Process)
		}
	}
	return out
}
