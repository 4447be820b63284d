package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrNoStrace: there is nothing to count calls with.
var ErrNoStrace = errors.New("proc: strace is not on PATH; install it to count kernel calls")

// attachWait is how long strace may take to hold all threads.
const attachWait = 10 * time.Second

// Trace counts a program's kernel calls until Stop. The program is many times slower meanwhile.
type Trace struct {
	cmd *exec.Cmd
	out string
	err watched
}

// watched collects what strace says while it attaches. Safe for concurrent use.
type watched struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *watched) count(word string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Count(w.text.Bytes(), []byte(word))
}

// Trace starts to count; it returns once all threads are held. out is a file for the summary.
func (p *Process) Trace(out string) (*Trace, error) {
	path, err := exec.LookPath("strace")
	if err != nil {
		return nil, ErrNoStrace
	}
	args := []string{"-f", "-c", "-o", out}
	pids := p.PIDs()
	for _, pid := range pids {
		args = append(args, "-p", strconv.Itoa(pid))
	}
	t := &Trace{cmd: exec.Command(path, args...), out: out}
	t.cmd.Stderr = &t.err
	if err := t.cmd.Start(); err != nil {
		return nil, fmt.Errorf("proc: start strace: %w", err)
	}
	for end := time.Now().Add(attachWait); t.err.count("attached") < len(pids); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.cmd.Process.Kill()
			_ = t.cmd.Wait() // killed
			return nil, fmt.Errorf("proc: strace does not attach to %s: %s", p.name, strings.TrimSpace(t.err.text.String()))
		}
	}
	return t, nil
}

// Stop lets the program go and returns the counts.
func (t *Trace) Stop() (Calls, error) {
	if err := t.cmd.Process.Signal(syscall.SIGINT); err != nil {
		return nil, fmt.Errorf("proc: stop strace: %w", err)
	}
	_ = t.cmd.Wait() // it ends with the signal it got
	b, err := os.ReadFile(t.out)
	if err != nil {
		return nil, fmt.Errorf("proc: read strace's summary: %w", err)
	}
	return ParseCalls(string(b))
}
