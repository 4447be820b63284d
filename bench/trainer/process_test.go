package trainer

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sluice/nodes/rank"
)

// The test binary is a rank when TRAINER_RANK is set: real processes, to be
// killed.
func TestMain(m *testing.M) {
	if os.Getenv("TRAINER_RANK") == "" {
		goleak.VerifyTestMain(m) // exits
	}
	cfg := testConfig(os.Getenv("TRAINER_DIR"))
	cfg.MicroMs, cfg.Log = 0.5, os.Stderr
	cfg.NoProtocol = os.Getenv("SLUICE_SOCKET") == ""
	fmt.Sscan(os.Getenv("TRAINER_SAVE"), &cfg.SaveEverySteps, &cfg.SaveMs, &cfg.MaxSteps)
	if err := Run(context.Background(), cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

type process struct {
	*exec.Cmd
	out   bytes.Buffer
	ended chan error
}

func startProcesses(t *testing.T, generation int64, world int, dir, socket, resume, save string) []*process {
	t.Helper()
	port := freePort(t)
	var ps []*process
	for r := range world {
		p := &process{Cmd: exec.Command(os.Args[0]), ended: make(chan error, 1)}
		p.Env = append(os.Environ(), "TRAINER_RANK=1", "TRAINER_DIR="+dir, "TRAINER_SAVE="+save)
		for k, v := range rankEnv(generation, r, world, port, dir, socket, resume) {
			p.Env = append(p.Env, k+"="+v)
		}
		p.Stdout, p.Stderr = &p.out, &p.out
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		go func() { p.ended <- p.Wait() }()
		t.Cleanup(func() { p.Process.Kill() })
		ps = append(ps, p)
	}
	return ps
}

func (p *process) wait(t *testing.T, within time.Duration) error {
	t.Helper()
	select {
	case err := <-p.ended:
		return err
	case <-time.After(within):
		t.Fatalf("a rank hangs; it said %s", p.out.String())
		return nil
	}
}

// poll waits for a condition on files that other processes write.
func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("no %s", what)
		}
	}
}

func done(t *testing.T, dir string, r int) int64 {
	if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("steps.rank-%d", r))); err != nil {
		return 0
	}
	steps, _ := stepsOf(t, filepath.Join(dir, "steps"), r)
	if len(steps) == 0 {
		return 0
	}
	return steps[len(steps)-1]
}

func TestADeadPeerEndsTheGang(t *testing.T) {
	for _, victim := range []int{0, 2} {
		dir := t.TempDir()
		ps := startProcesses(t, 1, 4, dir, "", "", "0 0 0")
		poll(t, "steps", func() bool { return done(t, dir, 0) > 3 })
		ps[victim].Process.Kill()
		for r, p := range ps {
			if err := p.wait(t, 10*time.Second); err == nil {
				t.Fatalf("rank %d ended well although rank %d was killed", r, victim)
			} else if r != victim && !strings.Contains(p.out.String(), ErrPeer.Error()) {
				t.Fatalf("rank %d: %s", r, p.out.String())
			}
		}
	}
}

// One rank hears the signal; all save the same step and end well. The next start,
// at another size, goes on from there.
func TestASignalToOneRankStopsAll(t *testing.T) {
	dir := t.TempDir()
	last := int64(0)
	for i, world := range []int{2, 4} {
		ps := startProcesses(t, int64(i+1), world, dir, "", "", "0 0 0")
		poll(t, "steps", func() bool { return done(t, dir, 1) > last+3 })
		sig := []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM}[i]
		ps[1].Process.Signal(sig)
		ps[1].Process.Signal(sig) // a signal to the whole group may come twice
		for r, p := range ps {
			if err := p.wait(t, 10*time.Second); err != nil {
				t.Fatalf("rank %d: %v: %s", r, err, p.out.String())
			}
		}
		man, _, _, err := Newest(dir)
		if err != nil || man.Step <= last || man.Step != done(t, dir, 0) || man.World != world || man.Samples != man.Step*128 {
			t.Fatalf("%+v %v, done %d", man, err, done(t, dir, 0))
		}
		last = man.Step
	}
	steps, losses := stepsOf(t, filepath.Join(dir, "steps"), 0)
	wantSteps(t, steps, last)
	if !slices.Equal(losses, curve(t, last)) {
		t.Fatal("another curve")
	}
}

// Rank 0 dies in the middle of its checkpoint: the older one is resumed, the
// steps after it are done again, and the leftover disturbs nobody.
func TestKillRankZeroInMidCheckpoint(t *testing.T) {
	dir := t.TempDir()
	ps := startProcesses(t, 1, 2, dir, "", "", "6 300 0")
	temp := filepath.Join(stepDir(dir, 12), "shard-0-of-2.bin.tmp")
	poll(t, "the second save", func() bool { fi, err := os.Stat(temp); return err == nil && fi.Size() > 0 })
	ps[0].Process.Kill()
	for _, p := range ps {
		p.wait(t, 10*time.Second)
	}
	if _, err := os.Stat(temp); err != nil {
		t.Fatal("the save was over before the kill")
	}
	man, _, _, err := Newest(dir)
	if err != nil || man.Step != 6 {
		t.Fatalf("%+v %v", man, err)
	}
	for _, p := range startProcesses(t, 2, 2, dir, "", "", "6 0 14") {
		if err := p.wait(t, 20*time.Second); err != nil {
			t.Fatalf("%v: %s", err, p.out.String())
		}
	}
	steps, losses := stepsOf(t, filepath.Join(dir, "steps"), 0)
	want := curve(t, 14)
	if len(steps) != 12+8 { // 1..12, killed; 7..14
		t.Fatal(steps)
	}
	for i, s := range steps {
		if losses[i] != want[s-1] {
			t.Fatalf("step %d: loss %v, want %v", s, losses[i], want[s-1])
		}
	}
}

// The same under the protocol, over real processes, with a stop that spares all.
func TestProcessesStopTogether(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	c := listen(t, socket)
	ps := startProcesses(t, 1, 4, dir, socket, "", "0 20 0")
	c.awaitStep(t, 5)
	at := c.agree(t, "stop", rank.ModeStop, 4)
	for r, p := range ps {
		if err := p.wait(t, 10*time.Second); err != nil {
			t.Fatalf("rank %d: %v: %s", r, err, p.out.String())
		}
		if d := done(t, dir, r); d != at {
			t.Fatalf("rank %d done %d, agreed %d", r, d, at)
		}
	}
	c.manifest(t, dir, at, 4)
}
