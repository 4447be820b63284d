package hold

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/nodes/agent/cgroup"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "hold" {
		os.Exit(Main(os.Args[2]))
	}
	os.Exit(m.Run())
}

// shim starts a shim of this binary over a command.
func shim(t *testing.T, r Run) (dir string, c *exec.Cmd) {
	t.Helper()
	dir = t.TempDir()
	r.Holder, r.Mark = "h", "hold-test"
	r.Env = append(r.Env, r.Group().Env()...)
	r.Env = append(r.Env, "PATH="+os.Getenv("PATH"))
	if err := WriteRun(dir, r); err != nil {
		t.Fatal(err)
	}
	c = exec.Command(os.Args[0], "hold", dir)
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		_ = r.Group().Kill()
	})
	return dir, c
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(10 * time.Second); !f(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("did not happen in time: %s", what)
		}
	}
}

func TestExitIsKept(t *testing.T) {
	for _, c := range []struct {
		argv   []string
		code   int
		reason string
	}{
		{[]string{"sh", "-c", "exit 4"}, 4, ""},
		{[]string{"sh", "-c", "kill -9 $$"}, 137, "signal: killed"},
		{[]string{"/bin/sh", "-c", "exit 0"}, 0, ""},
		{[]string{"no-such-command"}, 127, "not found"},
		{[]string{"/no/such/file"}, 126, "no such file"},
		{nil, 126, "no command"},
	} {
		dir, sh := shim(t, Run{Argv: c.argv})
		if err := sh.Wait(); err != nil {
			t.Errorf("%v: shim: %v", c.argv, err)
		}
		e, err := ReadExit(dir)
		if err != nil || e.Code != c.code || !strings.Contains(e.Reason, c.reason) || e.AtUnixMs == 0 {
			t.Errorf("%v: %+v %v", c.argv, e, err)
		}
	}
}

// Signals to the shim do not reach the command and do not end the shim; the
// command starts with default signals.
func TestShimOutlivesSignals(t *testing.T) {
	dir, sh := shim(t, Run{Argv: []string{"sleep", "60"}})
	var child cgroup.Process
	until(t, "child", func() bool {
		p, err := ReadProcess(dir, ChildFile)
		child = p
		return err == nil
	})
	if !Locked(dir) {
		t.Error("the lock is free while the shim lives")
	}
	if err := Cancel(dir, "x"); err == nil {
		t.Error("a living shim was called off")
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		_ = sh.Process.Signal(sig)
	}
	_ = child.Signal(syscall.SIGHUP) // by default it ends sleep
	if err := sh.Wait(); err != nil {
		t.Errorf("the shim ended with %v", err)
	}
	if e, err := ReadExit(dir); err != nil || e.Code != 128+int(syscall.SIGHUP) {
		t.Errorf("%+v %v", e, err)
	}
	if Locked(dir) {
		t.Error("the lock outlived the shim")
	}
}

// What the command left is ended before the shim is, even what hid its marks.
func TestRestIsEnded(t *testing.T) {
	dir, sh := shim(t, Run{Argv: []string{"sh", "-c", "setsid env -i sleep 61 & setsid sleep 62 & echo started; exit 3"}})
	if err := sh.Wait(); err != nil {
		t.Fatal(err)
	}
	if e, _ := ReadExit(dir); e.Code != 3 {
		t.Errorf("%+v", e)
	}
	for _, entry := range must(os.ReadDir("/proc")) {
		raw, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if s := string(raw); s == "sleep\x0061\x00" || s == "sleep\x0062\x00" {
			t.Errorf("%s is still there: %q", entry.Name(), s)
		}
	}
	if log, _ := os.ReadFile(filepath.Join(dir, LogFile)); string(log) != "started\n" {
		t.Errorf("log %q", log)
	}
}

func must[T any](v T, _ error) T { return v }

func TestLogRotates(t *testing.T) {
	dir := t.TempDir()
	w, err := openLog(dir, 100)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 57 {
		if n, err := w.Write([]byte(strings.Repeat(string(rune('a'+i%26)), 7))); n != 7 || err != nil {
			t.Fatal(n, err)
		}
	}
	w.close()
	log, old := must(os.ReadFile(filepath.Join(dir, LogFile))), must(os.ReadFile(filepath.Join(dir, OldLog)))
	if len(old) != 100 || len(log) != 57*7-300 {
		t.Errorf("%d and %d bytes", len(old), len(log))
	}
}
