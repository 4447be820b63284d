package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFindMount(t *testing.T) {
	const hybrid = `30 22 0:27 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:28 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
40 30 0:37 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
`
	const unified = `24 21 0:22 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup2 rw
25 21 0:22 /pod /mnt/my\040cgroup rw,nosuid - cgroup2 cgroup2 rw
`
	if m := findMount(hybrid); m.point != "/sys/fs/cgroup/unified" || m.root != "/" {
		t.Errorf("hybrid: %+v", m)
	}
	m := findMount(unified)
	if m.point != "/mnt/my cgroup" || m.root != "/pod" {
		t.Errorf("the read-only one was taken: %+v", m)
	}
	if got := m.relative("/pod/a/b"); got != "/a/b" {
		t.Errorf("relative %q", got)
	}
	if m := findMount("junk\n1 2 - x\n"); m.point != "" {
		t.Errorf("%+v", m)
	}
	if got := ownPath("5:cpu:/x\n0::/system.slice/s.service\n"); got != "/system.slice/s.service" {
		t.Errorf("own path %q", got)
	}
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

// A group holds its processes and those they start, and ends them as a whole.
func TestGroup(t *testing.T) {
	mark := fmt.Sprintf("cgroup-test-%d", os.Getpid())
	trees := map[string]Tree{"marks": Marks(mark)}
	if real := Find(mark); real.Real() {
		trees["cgroup"] = real
		t.Cleanup(func() { _ = real.Remove() })
	} else {
		t.Log("no writable cgroup v2 here: by marks only")
	}
	for name, tree := range trees {
		t.Run(name, func(t *testing.T) {
			g := tree.Group("h1")
			if err := g.Create(); err != nil {
				t.Fatal(err)
			}
			if pids, err := g.Pids(); err != nil || len(pids) != 0 {
				t.Fatalf("%v %v", pids, err)
			}
			c := exec.Command("sh", "-c", "setsid sleep 63 & exec sleep 64")
			c.Env = append(g.Env(), "PATH="+os.Getenv("PATH"))
			fd, err := g.Open()
			if err != nil {
				t.Fatal(err)
			}
			if fd != nil {
				defer fd.Close()
				c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd())}
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			until(t, "two processes", func() bool { pids, err := g.Pids(); return err == nil && len(pids) == 2 })
			if h, ok := tree.HolderOf(c.Process.Pid); !ok || h != "h1" {
				t.Errorf("holder of %d: %q %v", c.Process.Pid, h, ok)
			}
			if h, ok := tree.HolderOf(os.Getpid()); ok {
				t.Errorf("this test belongs to %q", h)
			}
			if names, err := tree.Holders(); err != nil || len(names) != 1 || names[0] != "h1" {
				t.Errorf("holders %v %v", names, err)
			}
			if err := g.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = c.Wait()
			until(t, "empty", func() bool { pids, err := g.Pids(); return err == nil && len(pids) == 0 })
			if err := g.Remove(); err != nil {
				t.Error(err)
			}
			if err := g.Kill(); err != nil {
				t.Errorf("killing nothing: %v", err)
			}
		})
	}
}

// A process is its pid and its start: a later one with the same pid gets no signal.
func TestProcess(t *testing.T) {
	c := exec.Command("sleep", "65")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	st, ok := ReadStat(c.Process.Pid)
	if !ok || !st.Alive() || st.Parent != os.Getpid() {
		t.Fatalf("%+v", st)
	}
	later := Process{PID: st.PID, StartTicks: st.StartTicks + 1}
	if err := later.Signal(unix.SIGKILL); err != nil || later.Alive() || !st.Alive() {
		t.Errorf("another process was signalled: %v", err)
	}
	if p, err := ParseProcess(st.Process.String() + "\n"); err != nil || p != st.Process {
		t.Errorf("%+v %v", p, err)
	}
	if _, err := ParseProcess("12"); err == nil {
		t.Error("half a process was parsed")
	}
	if err := st.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	until(t, "a zombie is dead", func() bool { return !st.Alive() })
	if err := st.Signal(unix.SIGKILL); err != nil {
		t.Errorf("signal to a zombie: %v", err)
	}
}
