package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// enterWord begins the arguments of a child that has yet to become its program.
const enterWord = "pinned-to"

// Enter becomes the program that Start was asked for, if this process is such a child. It returns otherwise.
func Enter() {
	if len(os.Args) < 4 || os.Args[1] != enterWord {
		return
	}
	runtime.LockOSThread()
	core, err := strconv.Atoi(os.Args[2])
	if err == nil {
		err = Pin(core)
	}
	if err == nil {
		Prefer()
		err = syscall.Exec(os.Args[3], os.Args[3:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "start a program on one core:", err)
	os.Exit(127)
}

// Pin keeps all threads of this process on one core.
func Pin(core int) error {
	var set unix.CPUSet
	set.Set(core)
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("proc: list threads: %w", err)
	}
	for _, t := range tasks {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("proc: pin to core %d: %w", core, err)
		}
	}
	return nil
}

// nice is the priority of everything that is measured or measures: above the usual 0, below what the system needs.
const nice = "-15"

// Prefer asks the kernel to let this process go before others, as far as it may: what else the machine does then disturbs
// less. Programs that Start starts ask for themselves. It reports whether that could be had.
func Prefer() bool {
	n, err := strconv.Atoi(nice)
	if err != nil || unix.Setpriority(unix.PRIO_PROCESS, 0, n) != nil {
		return false
	}
	// Where sessions share the cores (autogroup), a priority counts only within its own.
	err = os.WriteFile("/proc/self/autogroup", []byte(nice), 0)
	return err == nil || errors.Is(err, os.ErrNotExist)
}

// Command is what to start.
type Command struct {
	Name string
	Args []string
	Env  []string // beside this process's own
	Core int
	Log  string // file for what it prints
}

// Process is a started program, with all that it started.
type Process struct {
	cmd  *exec.Cmd
	name string
	log  string
	done chan error
}

// Start starts a program, found on PATH, pinned to its core. Called from a goroutine locked to its thread, the program
// ends with that thread at the latest.
func Start(c Command) (*Process, error) {
	path, err := exec.LookPath(c.Name)
	if err != nil {
		return nil, fmt.Errorf("proc: find %s: %w", c.Name, err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("proc: find %s: %w", c.Name, err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("proc: find this program: %w", err)
	}
	out, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("proc: open the log of %s: %w", c.Name, err)
	}
	defer out.Close()
	p := &Process{name: c.Name, log: c.Log, done: make(chan error, 1)}
	p.cmd = exec.Command(self, append([]string{enterWord, strconv.Itoa(c.Core), path}, c.Args...)...)
	p.cmd.Env = append(os.Environ(), c.Env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// The caller's thread is main's own, which lasts as long as the process: its end is the signal's cause.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("proc: start %s: %w", c.Name, err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	return p, nil
}

// PID is the first process of the session.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// stopWait is how long a program may take to end.
const stopWait = 5 * time.Second

// Stop ends the program and all that it started.
func (p *Process) Stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	t := time.NewTimer(stopWait)
	defer t.Stop()
	select {
	case err := <-p.done:
		p.done <- err
	case <-t.C:
	}
	p.Kill()
}

// Kill ends all of it at once.
func (p *Process) Kill() {
	for _, pid := range p.PIDs() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	err := <-p.done
	p.done <- err
}

// Ended is an error with the end of the log once the program has ended, else nil.
func (p *Process) Ended() error {
	select {
	case err := <-p.done:
		p.done <- err
		return fmt.Errorf("proc: %s has ended: %w\n%s", p.name, err, p.tail())
	default:
		return nil
	}
}

// tail is the end of the log.
func (p *Process) tail() string {
	const most = 2000
	b, err := os.ReadFile(p.log)
	if err != nil {
		return ""
	}
	return string(b[max(0, len(b)-most):])
}

// PIDs are the processes of the session.
func (p *Process) PIDs() []int {
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	var out []int
	for _, name := range all {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		if pid, session, ok := parseStat(string(b)); ok && session == p.PID() {
			out = append(out, pid)
		}
	}
	return out
}

// CPU is the time that all of it has spent on a core.
func (p *Process) CPU() (time.Duration, error) {
	if err := p.Ended(); err != nil {
		return 0, err
	}
	total := time.Duration(0)
	for _, pid := range p.PIDs() {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil {
			return 0, fmt.Errorf("proc: list threads: %w", err)
		}
		for _, name := range tasks {
			b, err := os.ReadFile(name)
			if err != nil {
				continue // it has just ended
			}
			ns, err := strconv.ParseInt(strings.SplitN(string(b), " ", 2)[0], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("proc: read %s: %w", name, err)
			}
			total += time.Duration(ns)
		}
	}
	return total, nil
}

// RSS is the resident memory of all of it, in bytes. Pages that processes share count once for each.
func (p *Process) RSS() (int64, error) {
	if err := p.Ended(); err != nil {
		return 0, err
	}
	total := int64(0)
	for _, pid := range p.PIDs() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		total += parseRSS(string(b))
	}
	return total, nil
}
