package hold

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice/nodes/agent/cgroup"
)

const (
	// lockWaitMs is how long a shim waits for the lock of its directory, which
	// an agent may have for a moment to look.
	lockWaitMs = 5000
	// endWaitMs is how long a shim waits for the rest of a killed group; what
	// is still there then is the agent's to prove.
	endWaitMs = 10_000
	// drainWaitMs bounds the wait for the end of the output.
	drainWaitMs = 1000
	pollMs      = 2
)

// Main is the shim's whole life; the result is its own exit code: 0 when
// exit.json tells the rest, 1 when it could not even be written. It changes the
// process (session, signals, sub-reaper) and reaps any child, so it is for a
// process of its own.
func Main(dir string) int {
	// Caught and dropped, not ignored: an ignored signal would stay ignored in
	// the command after exec, a caught one is at its default there.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE)
	_, _ = syscall.Setsid() // the agent did it already, as a rule
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	lock, err := waitLock(dir)
	if err != nil {
		fmt.Fprintf(os.Stderr, "sluice hold: %v\n", err)
		return 1
	}
	defer lock.Close()
	if _, err := ReadExit(dir); err == nil {
		return 0 // ran already, or called off
	}
	exit := run(dir)
	exit.AtUnixMs = time.Now().UnixMilli()
	if err := writeJSON(filepath.Join(dir, ExitFile), exit.Exit); err != nil {
		fmt.Fprintf(os.Stderr, "sluice hold: %v\n", err)
		endRest(exit)
		return 1
	}
	endRest(exit)
	return 0
}

// ended is an exit with what is needed to end the rest of the holder.
type ended struct {
	Exit
	group   cgroup.Group
	drained <-chan struct{} // closed at the end of the output; nil when never begun
}

func waitLock(dir string) (*os.File, error) {
	for waited := 0; ; waited += pollMs {
		f, err := tryLock(dir)
		if err == nil || !errors.Is(err, ErrRunning) || waited >= lockWaitMs {
			return f, err
		}
		time.Sleep(pollMs * time.Millisecond)
	}
}

// run starts the command and waits for it.
func run(dir string) ended {
	var r Run
	if err := readJSON(filepath.Join(dir, RunFile), &r); err != nil {
		return ended{Exit: Exit{Code: 126, Reason: err.Error()}}
	}
	end := ended{group: r.Group()}
	refuse := func(code int, err error) ended {
		end.Exit = Exit{Code: code, Reason: err.Error()}
		return end
	}
	if err := WriteFile(filepath.Join(dir, ShimFile), []byte(cgroup.Self().String())); err != nil {
		return refuse(126, err)
	}
	out, err := openLog(dir, r.LogMaxBytes)
	if err != nil {
		return refuse(126, fmt.Errorf("hold: open log: %w", err))
	}
	pid, drained, code, err := start(r, out)
	if err != nil {
		out.close()
		return refuse(code, err)
	}
	end.drained = drained
	child, _ := cgroup.ReadStat(pid)
	child.PID = pid
	_ = WriteFile(filepath.Join(dir, ChildFile), []byte(child.Process.String()))
	end.Exit = reapUntil(pid)
	return end
}

// start forks the command into its group; its output goes to out until closed.
func start(r Run, out *logWriter) (pid int, drained <-chan struct{}, code int, err error) {
	if len(r.Argv) == 0 {
		return 0, nil, 126, errors.New("hold: no command")
	}
	path, err := lookPath(r)
	if err != nil {
		return 0, nil, 127, err
	}
	group := r.Group()
	if err := group.Create(); err != nil {
		return 0, nil, 126, err
	}
	rd, wr, err := os.Pipe()
	if err != nil {
		return 0, nil, 126, err
	}
	defer wr.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		rd.Close()
		return 0, nil, 126, err
	}
	defer null.Close()
	attr := &syscall.ProcAttr{
		Dir: r.Dir, Env: r.Env,
		Files: []uintptr{null.Fd(), wr.Fd(), wr.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	if r.Switch {
		attr.Sys.Credential = &syscall.Credential{Uid: r.UID, Gid: r.GID, Groups: r.Groups}
	}
	fd, err := group.Open()
	if err != nil {
		rd.Close()
		return 0, nil, 126, err
	}
	if fd != nil {
		defer fd.Close()
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(fd.Fd())
	}
	pid, err = syscall.ForkExec(path, r.Argv, attr)
	if err != nil {
		rd.Close()
		return 0, nil, 126, fmt.Errorf("hold: start %s: %w", path, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(out, rd)
		out.close()
		rd.Close()
	}()
	return pid, done, 0, nil
}

// lookPath finds the command with the PATH of its own environment.
func lookPath(r Run) (string, error) {
	name := r.Argv[0]
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) && r.Dir != "" {
			name = filepath.Join(r.Dir, name)
		}
		return name, nil
	}
	for _, kv := range r.Env {
		path, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, d := range filepath.SplitList(path) {
			p := filepath.Join(d, name)
			if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				return p, nil
			}
		}
	}
	return "", fmt.Errorf("hold: %s: %w; give an absolute path or set PATH in env", name, exec.ErrNotFound)
}

// reapUntil waits for pid, reaping every orphan that comes to the sub-reaper.
func reapUntil(pid int) Exit {
	for {
		var ws syscall.WaitStatus
		got, err := syscall.Wait4(-1, &ws, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return Exit{Code: LostCode, Reason: "wait: " + err.Error()}
		}
		if got != pid {
			continue
		}
		if ws.Signaled() {
			return Exit{Code: 128 + int(ws.Signal()), Reason: "signal: " + ws.Signal().String()}
		}
		return Exit{Code: ws.ExitStatus()}
	}
}

// endRest kills what is left of the holder and waits for it, within a limit.
// Descendants are looked for too: one that cleared its environment still comes
// to the sub-reaper when its parent dies.
func endRest(e ended) {
	if e.drained == nil {
		_ = e.group.Remove()
		return
	}
	for waited := 0; waited < endWaitMs; waited += pollMs {
		_ = e.group.Kill()
		killChildren()
		for {
			var ws syscall.WaitStatus
			got, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
			if got <= 0 && err != syscall.EINTR {
				break
			}
		}
		pids, err := e.group.Pids()
		if err == nil && len(pids) == 0 && len(children()) == 0 {
			break
		}
		time.Sleep(pollMs * time.Millisecond)
	}
	select {
	case <-e.drained:
	case <-time.After(drainWaitMs * time.Millisecond):
	}
	_ = e.group.Remove()
}

func killChildren() {
	for _, p := range children() {
		_ = p.Signal(unix.SIGKILL)
	}
}

// children lists the living children of this process.
func children() []cgroup.Process { return cgroup.Children(os.Getpid()) }
