package simgpu

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"
)

// errNoProcess is the proof of an end; any other error of procStat proves nothing.
var errNoProcess = errors.New("simgpu: no such process")

// procStat returns the state letter and the start time (clock ticks since
// boot) of a process.
func procStat(pid int) (letter byte, startTicks uint64, err error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return 0, 0, errNoProcess
	}
	if err != nil {
		return 0, 0, err
	}
	// The name stands in parentheses and may contain anything, so count from
	// the last one: state is the first field after it, start time the 20th.
	end := bytes.LastIndexByte(raw, ')')
	if end < 0 || end+2 >= len(raw) {
		return 0, 0, fmt.Errorf("simgpu: /proc/%d/stat has no name field", pid)
	}
	fields := bytes.Fields(raw[end+2:])
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("simgpu: /proc/%d/stat has %d fields", pid, len(fields))
	}
	startTicks, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return fields[0][0], startTicks, err
}

// procAlive says whether the process that attached is still there, and its
// state letter. A zombie is dead: it holds no device, and PID 1 may be slow to
// reap it. A process that cannot be looked at (no descriptors left) is alive:
// to take a living one for dead would give its GPU away.
func procAlive(pid int, startTicks uint64) (letter byte, alive bool) {
	letter, start, err := procStat(pid)
	if err != nil {
		return 0, !errors.Is(err, errNoProcess)
	}
	return letter, start == startTicks && letter != 'Z' && letter != 'X'
}
