package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"sluice/nodes"
	"sluice/nodes/agent/cgroup"
	"sluice/nodes/agent/hold"
)

// An agent killed with -9 touches nothing; the next one takes everything back.
func TestAgentKilledAndBack(t *testing.T) {
	for _, marks := range []bool{false, true} {
		name := "cgroups"
		if marks {
			name = "marks"
		}
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 4)
			s.args.NoCgroup = marks
			s.spawn()
			yielded, running, rep, plain := s.trainer("y", "G0"), s.trainer("a", "G1"), s.replica("r", "G2"), s.job("p", []string{"G3"}, "sleeper")
			for _, spec := range []*nodes.HolderSpec{yielded, running, rep, plain} {
				s.begin(nodes.OrderStart, spec)
			}
			pids := map[string]int{}
			for id, state := range map[string]nodes.HolderState{"y": nodes.StateRunning, "a": nodes.StateRunning, "r": nodes.StateReady, "p": nodes.StateRunning} {
				pids[id] = s.await(id, state).Pid
			}
			at := s.stopAt("y", "s1", nodes.StopYield)
			s.await("y", nodes.StateYielded)
			eventually(t, "the plain one listens for signals", func() bool { _, active := s.used("G3"); return active })

			s.kill9()
			// An exit while no agent looks.
			_ = syscall.Kill(pids["p"], syscall.SIGTERM)
			eventually(t, "exit is on disk", func() bool {
				_, err := hold.ReadExit(filepath.Join(s.args.Data, "holders", "p"))
				return err == nil
			})
			s.mu.Lock()
			s.notes = nil
			s.mu.Unlock()
			s.spawn()
			hello := s.lastHello()
			if len(hello.Holders) != 4 {
				t.Fatalf("hello has %d holders", len(hello.Holders))
			}
			for _, h := range hello.Holders {
				want := map[string]nodes.HolderState{"y": nodes.StateYielded, "a": nodes.StateRunning, "r": nodes.StateReady}[h.ID]
				if want != "" && (h.State != want || h.Pid != pids[h.ID]) {
					t.Errorf("after the restart: %+v, want %s of pid %d", h, want, pids[h.ID])
				}
			}
			if st := s.await("p", nodes.StateGone); st.ExitCode != 0 || !st.Exited {
				t.Errorf("%+v", st)
			}
			// Ranks come back by themselves and say where they are.
			s.note("a", "hello", "")
			if n := s.note("y", "yielded", "s1"); n.Step != at {
				t.Errorf("yielded at %d, was %d", n.Step, at)
			}
			s.note("a", "step", "")
			// And they still obey.
			s.must(nodes.Order{Kind: nodes.OrderRankResume, Holder: "y", Generation: 1, StopID: "s1"})
			s.await("y", nodes.StateRunning)
			s.stopAt("a", "s2", nodes.StopSave)
			if st := s.await("a", nodes.StateGone); st.ExitCode != 0 {
				t.Errorf("%+v", st)
			}
			s.do(nodes.OrderStop, rep)
			s.await("r", nodes.StateGone)
		})
	}
}

// A shim killed while no agent runs, and a stop that an agent did not finish.
func TestLeftByAKilledAgent(t *testing.T) {
	s := newSite(t, 2)
	s.spawn()
	lost, stuck := s.job("l", []string{"G0"}, "sleeper"), s.job("k", []string{"G1"}, "stubborn")
	s.begin(nodes.OrderStart, lost)
	s.begin(nodes.OrderStart, stuck)
	pid := s.await("l", nodes.StateRunning).Pid
	s.await("k", nodes.StateRunning)
	eventually(t, "its grandchild computes", func() bool { _, active := s.used("G1"); return active })
	s.must(nodes.Order{Kind: nodes.OrderStop, Holder: "k", Generation: 1, GraceMs: 500})
	s.kill9()
	shim, err := hold.ReadProcess(filepath.Join(s.args.Data, "holders", "l"), hold.ShimFile)
	if err != nil {
		t.Fatal(err)
	}
	_ = shim.Signal(syscall.SIGKILL)
	eventually(t, "shim ends", func() bool { return !shim.Alive() })
	s.spawn()
	if st := s.await("l", nodes.StateGone); st.ExitCode != -1 || st.Reason != "shim lost" {
		t.Errorf("%+v", st)
	}
	if alive(pid) {
		t.Errorf("pid %d outlived its shim", pid)
	}
	if st := s.await("k", nodes.StateGone); st.ExitCode != 137 {
		t.Errorf("the stop was not finished: %+v", st)
	}
}

// What the journal does not know is ended: orphans in our groups, directories.
func TestSweepEndsTheUnknown(t *testing.T) {
	for _, marks := range []bool{false, true} {
		t.Run(fmt.Sprintf("marks=%v", marks), func(t *testing.T) { sweepsGhost(t, marks) })
	}
}

func sweepsGhost(t *testing.T, marks bool) {
	s := newSite(t, 1)
	s.args.NoCgroup = marks
	mark := "n1-" + digest8(s.args.Data)
	tree := cgroup.Marks(mark)
	if !marks {
		tree = cgroup.Find(mark)
	}
	g := tree.Group("ghost")
	if err := g.Create(); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(os.Args[0], "sleeper")
	c.Env = g.Env()
	if fd, err := g.Open(); err != nil {
		t.Fatal(err)
	} else if fd != nil {
		c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd())}
		defer fd.Close()
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(s.args.Data, "holders", "ghost")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.start()
	if exists(dir) {
		t.Error("the directory is still there")
	}
	_ = c.Wait()
	if c.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("marks=%v: the orphan ended with %v", marks, c.ProcessState)
	}
}

// A shim whose agent died between the fork and its first breath, and was
// called off, runs nothing.
func TestLateShimRunsNothing(t *testing.T) {
	dir := t.TempDir()
	if err := hold.Cancel(dir, reasonNotBegun); err != nil {
		t.Fatal(err)
	}
	ran := filepath.Join(dir, "ran")
	if err := hold.WriteRun(dir, hold.Run{Holder: "a", Mark: "m", Argv: []string{"/bin/touch", ran}}); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(os.Args[0], "hold", "--dir", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("it ran")
	}
	if e := lastWord(dir); e.Code != hold.LostCode || e.Reason != reasonNotBegun {
		t.Errorf("%+v", e)
	}
}

// A second agent on the same directory is refused.
func TestSecondAgent(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	if err := Run(t.Context(), s.args.config()); !errors.Is(err, ErrLocked) {
		t.Fatalf("%v", err)
	}
}
