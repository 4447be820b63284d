package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/nodes/rank"
	"sluice/nodes/simgpu"
)

const curveSteps = 30

// curve is the reference: the losses of a single rank.
func curve(t *testing.T, steps int64) []float64 {
	t.Helper()
	dir := t.TempDir()
	cfg := testConfig(dir)
	cfg.MicroMs, cfg.MaxSteps = 0, steps
	startGang(t, cfg, 1, 1, dir, "", "").wait(t)
	s, losses := stepsOf(t, cfg.StepLog, 0)
	wantSteps(t, s, steps)
	return losses
}

func TestLossIsBitEqualAtEveryWorldSize(t *testing.T) {
	want := curve(t, curveSteps)
	for _, world := range []int{2, 4, 8} {
		dir := t.TempDir()
		cfg := testConfig(dir)
		cfg.MicroMs, cfg.MaxSteps = 0, curveSteps
		startGang(t, cfg, 1, world, dir, "", "").wait(t)
		for r := range world {
			steps, got := stepsOf(t, cfg.StepLog, r)
			wantSteps(t, steps, curveSteps)
			if !slices.Equal(got, want) {
				t.Fatalf("world %d rank %d: %v\nwant %v", world, r, got, want)
			}
		}
	}
}

func TestLossFalls(t *testing.T) {
	losses := curve(t, 300)
	mean := func(l []float64) (m float64) {
		for _, v := range l {
			m += v / float64(len(l))
		}
		return m
	}
	first, last := mean(losses[:10]), mean(losses[290:])
	if last > first/3 {
		t.Fatalf("loss %.3f at first, %.3f at the end", first, last)
	}
	t.Logf("loss %.3f to %.3f", first, last)
}

// The chain of a life under sluice: 4 ranks, yielded and resumed, stopped; 1
// rank; 2 ranks; 8 ranks to the end. Every step is done once, at whatever size,
// with the loss it would have had.
func TestStopsAndResumesContinueTheSameCurve(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	cfg.MicroMs = 0.5
	resume, last := "", int64(0)
	for i, world := range []int{4, 1, 2, 8} {
		generation := int64(i + 1)
		folder := filepath.Join(dir, fmt.Sprintf("g%d", generation))
		socket := filepath.Join(dir, fmt.Sprintf("s%d", generation))
		c := listen(t, socket)
		if world == 8 {
			cfg.MaxSteps = last + 10
		}
		g := startGang(t, cfg, generation, world, folder, socket, resume)
		if world == 8 {
			g.wait(t)
			last = cfg.MaxSteps
			if c.ended[7].Type != rank.TypeFinished || c.ended[7].Samples != last*16*8 {
				t.Fatalf("%+v", c.ended)
			}
			break
		}
		c.awaitStep(t, last+4)
		if world == 4 {
			at := c.agree(t, "yield", rank.ModeYield, world)
			for r := range world {
				if p := c.steps[r]; p.Done != at {
					t.Fatalf("rank %d yielded at %d, agreed %d", r, p.Done, at)
				}
			}
			if err := c.stop.Resume(); err != nil {
				t.Fatal(err)
			}
			c.order(t, rank.Message{Type: rank.TypeResume, ID: "yield"})
			c.awaitStep(t, at+3)
		}
		last = c.agree(t, "stop", rank.ModeStop, world)
		g.wait(t)
		resume = c.manifest(t, dir, last, world)
	}
	steps, losses := stepsOf(t, cfg.StepLog, 0)
	wantSteps(t, steps, last)
	if want := curve(t, last); !slices.Equal(losses, want) {
		t.Fatalf("%v\nwant %v", losses, want)
	}
}

func TestCase_FILL_16_RanksStopAtOneStepWhenTheOrderIsLate(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	cfg.EvalEverySteps, cfg.EvalMs = 3, 60 // an evaluation is no boundary
	socket := filepath.Join(dir, "s")
	c := listen(t, socket)
	g := startGang(t, cfg, 1, 4, dir, socket, "")
	c.awaitStep(t, 4)
	c.mu.Lock()
	c.stop = rank.NewStop("late", rank.ModeStop, 4)
	first, second := c.conns[0], c.conns[3]
	c.mu.Unlock()
	prepare := rank.Message{Type: rank.TypePrepare, ID: "late", Mode: rank.ModeStop}
	first.Send(prepare)
	c.await(t, "the first answer", func() bool { return c.stop.Begun[0] >= 0 })
	c.mu.Lock()
	held := c.stop.Begun[0]
	c.mu.Unlock()
	second.Send(prepare) // the held rank keeps the others within one step of it
	c.order(t, prepare)
	c.await(t, "decision", func() bool { return c.stop.Decided })
	if c.stop.S > held+1 {
		t.Fatalf("held at %d, agreed on %d", held, c.stop.S)
	}
	c.order(t, rank.Message{Type: rank.TypeCommit, ID: "late", Mode: rank.ModeStop, Step: c.stop.S})
	g.wait(t)
	if !c.stop.Complete() || len(c.shards[c.stop.S]) != 4 {
		t.Fatalf("%+v %v", c.stop, c.shards)
	}
}

// A stop that falls into a periodic save starts no second one on top.
func TestCase_FILL_15_StopDuringASave(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	cfg.SaveEverySteps, cfg.SaveMs = 5, 150
	socket := filepath.Join(dir, "s")
	c := listen(t, socket)
	g := startGang(t, cfg, 1, 2, dir, socket, "")
	c.await(t, "a save", func() bool { return c.phases[0] == rank.PhaseSave && c.phases[1] == rank.PhaseSave })
	if at := c.agree(t, "stop", rank.ModeStop, 2); at != 5 {
		t.Fatalf("stopped at %d", at)
	}
	g.wait(t)
	for r := range 2 {
		if s := c.shards[5][r]; s.Seq != 1 {
			t.Fatalf("rank %d wrote shard %d times: %+v", r, s.Seq, s)
		}
	}
}

func TestYieldLeavesTheSimulatedGPUs(t *testing.T) {
	dir := t.TempDir()
	gpus := filepath.Join(dir, "gpus")
	if err := simgpu.Create(gpus, []simgpu.Spec{{UUID: "GPU-a", Name: "sim", MemoryBytes: 1000}}); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(dir)
	cfg.ActiveBytes, cfg.ResidentBytes = 900, 300
	socket := filepath.Join(dir, "s")
	c := listen(t, socket)
	env := rankEnv(1, 0, 1, 0, dir, socket, "")
	env[simgpu.EnvDir], env[simgpu.EnvDevices], env[simgpu.EnvHolder] = gpus, "GPU-a", "job/0"
	cfg.Getenv = func(name string) string { return env[name] }
	ended := make(chan error, 1)
	go func() { ended <- Run(t.Context(), cfg) }()
	c.awaitStep(t, 3)
	used := func() int64 {
		read, err := simgpu.Read(gpus)
		if err != nil {
			t.Fatal(err)
		}
		return read[0].UsedBytes
	}
	if used() != 900 {
		t.Fatal(used())
	}
	c.agree(t, "y", rank.ModeYield, 1)
	if used() != 300 {
		t.Fatal(used())
	}
	dev, err := simgpu.Open(gpus, "GPU-a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := dev.Attach("replica")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(other.Alloc(600), other.Activate(), other.Deactivate(), other.Close()); err != nil {
		t.Fatal(err)
	}
	at := c.steps[0].Done
	c.stop.Resume()
	c.order(t, rank.Message{Type: rank.TypeResume, ID: "y"})
	c.awaitStep(t, at+3)
	// Yielded again, and now stopped where it stands, without its device.
	c.agree(t, "y2", rank.ModeYield, 1)
	at = c.agree(t, "s", rank.ModeStop, 1)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if len(c.shards[at]) != 1 || used() != 0 {
		t.Fatal(c.shards, used())
	}
	if v, err := simgpu.Violations(gpus); err != nil || len(v) != 0 {
		t.Fatal(v, err)
	}
}

func TestWorldThatDoesNotDivideIsRefused(t *testing.T) {
	cfg := testConfig(t.TempDir())
	env := rankEnv(1, 0, 3, 1, t.TempDir(), "", "")
	cfg.Getenv = func(name string) string { return env[name] }
	if err := Run(t.Context(), cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "[1 2 4 8 16]") {
		t.Fatal(err)
	}
	cfg.MicroBatches = 0
	if err := Run(t.Context(), cfg); !errors.Is(err, ErrConfig) {
		t.Fatal(err)
	}
}

// The other half of a partition, or a rank left over, cannot get in.
func TestCase_FILL_21_AnotherGenerationCannotJoin(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	cfg.JoinLimitMs, cfg.MaxSteps = 5_000, 5
	port := freePort(t)
	run := func(generation int64, r int) <-chan error {
		env := rankEnv(generation, r, 2, port, dir, "", "")
		mine := cfg
		mine.Getenv = func(name string) string { return env[name] }
		ended := make(chan error, 1)
		go func() { ended <- Run(t.Context(), mine) }()
		return ended
	}
	zero := run(2, 0)
	if err := <-run(1, 1); !errors.Is(err, ErrJoin) || !strings.Contains(err.Error(), "generation 2") {
		t.Fatal(err)
	}
	one := run(2, 1)
	if err := errors.Join(<-zero, <-one); err != nil {
		t.Fatal(err)
	}
}

func TestCase_FILL_19_RanksGivenDifferentManifestsDoNotStart(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	cfg.MaxSteps, cfg.SaveEverySteps = 4, 2
	socket := filepath.Join(dir, "s")
	c := listen(t, socket)
	startGang(t, cfg, 1, 1, filepath.Join(dir, "g1"), socket, "").wait(t)
	two, four := c.manifest(t, dir, 2, 1), c.manifest(t, dir, 4, 1)
	cfg.MaxSteps = 8
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	port := freePort(t)
	ended := make([]chan error, 2)
	for r, resume := range []string{four, two} {
		env := rankEnv(2, r, 2, port, filepath.Join(dir, "g2"), socket, resume)
		mine := cfg
		mine.Getenv = func(name string) string { return env[name] }
		ended[r] = make(chan error, 1)
		go func() { ended[r] <- Run(ctx, mine) }()
	}
	if err := <-ended[1]; !errors.Is(err, ErrJoin) {
		t.Fatal(err)
	}
	if err := <-ended[0]; !errors.Is(err, ErrPeer) {
		t.Fatal(err)
	}
}

func TestTornManifestIsRefused(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	cfg.MaxSteps = 3
	socket := filepath.Join(dir, "s")
	c := listen(t, socket)
	startGang(t, cfg, 1, 2, filepath.Join(dir, "g1"), socket, "").wait(t)
	resume := c.manifest(t, dir, 3, 2)
	file := c.shards[3][1].File
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	flipped := slices.Clone(whole)
	flipped[len(flipped)-1] ^= 1
	for name, body := range map[string][]byte{"cut": whole[:len(whole)/2], "empty": {}, "flipped": flipped} {
		if err := os.WriteFile(file, body, 0o600); err != nil {
			t.Fatal(err)
		}
		env := rankEnv(2, 0, 1, 0, filepath.Join(dir, "g2"), socket, resume)
		cfg.Getenv = func(name string) string { return env[name] }
		if err := Run(t.Context(), cfg); !errors.Is(err, rank.ErrTorn) {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// A leftover of a save that was killed half way breaks neither the next save nor
// the resume.
func TestCase_FILL_17_LeftoverPartialCheckpoint(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	cfg.NoProtocol, cfg.SaveEverySteps, cfg.MaxSteps = true, 10, 10
	startGang(t, cfg, 1, 2, dir, "", "").wait(t)
	left := stepDir(dir, 20)
	os.MkdirAll(left, 0o700)
	for _, name := range []string{"shard-0-of-2.bin", "shard-1-of-2.bin.tmp", "shard-3-of-4.bin"} {
		os.WriteFile(filepath.Join(left, name), []byte("half"), 0o600)
	}
	cfg.MaxSteps = 25
	startGang(t, cfg, 2, 2, dir, "", "").wait(t)
	steps, losses := stepsOf(t, cfg.StepLog, 1)
	wantSteps(t, steps, 25)
	if !slices.Equal(losses, curve(t, 25)) {
		t.Fatal(losses)
	}
	man, err := rank.ReadManifest(filepath.Join(left, manifestName))
	if err != nil || man.VerifyDigests() != nil || man.World != 2 {
		t.Fatal(man, err)
	}
}

func TestCase_FILL_18_OnlyACompleteCheckpointIsResumed(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	cfg.NoProtocol, cfg.MaxSteps = true, 9
	startGang(t, cfg, 1, 4, dir, "", "").wait(t)
	good, err := rank.ReadManifest(filepath.Join(stepDir(dir, 9), manifestName))
	if err != nil {
		t.Fatal(err)
	}
	copyAs := func(step int64, spoil func(folder string)) {
		folder := stepDir(dir, step)
		if err := os.CopyFS(folder, os.DirFS(stepDir(dir, 9))); err != nil {
			t.Fatal(err)
		}
		man := good
		man.Step, man.Dir = step, ""
		if err := rank.WriteManifest(filepath.Join(folder, manifestName), man); err != nil {
			t.Fatal(err)
		}
		spoil(folder)
	}
	copyAs(10, func(f string) { os.Truncate(filepath.Join(f, "shard-2-of-4.bin"), 0) })
	copyAs(11, func(f string) { os.Remove(filepath.Join(f, "shard-3-of-4.bin")) })
	copyAs(12, func(f string) {
		os.Rename(filepath.Join(f, "shard-0-of-4.bin"), filepath.Join(f, "shard-0-of-4.bin.tmp"))
	})
	copyAs(13, func(f string) { os.Remove(filepath.Join(f, manifestName)) })
	os.WriteFile(filepath.Join(dir, latestName), []byte("step-00000011\n"), 0o600)
	man, _, passed, err := Newest(dir)
	if err != nil || man.Step != 9 || len(passed) != 4 {
		t.Fatal(man.Step, passed, err)
	}
	cfg.MaxSteps = 14
	startGang(t, cfg, 2, 2, dir, "", "").wait(t)
	steps, _ := stepsOf(t, cfg.StepLog, 0)
	wantSteps(t, steps, 14)
	if b, _ := os.ReadFile(filepath.Join(dir, latestName)); string(b) != "step-00000014\n" {
		t.Fatalf("latest is %q", b)
	}
}

func TestTwoCompleteCheckpointsAreKept(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	cfg.NoProtocol, cfg.SaveEverySteps, cfg.MaxSteps = true, 2, 11
	startGang(t, cfg, 1, 2, dir, "", "").wait(t)
	left, _ := filepath.Glob(filepath.Join(dir, "step-*"))
	if len(left) != 2 || filepath.Base(left[0]) != "step-00000010" || filepath.Base(left[1]) != "step-00000011" {
		t.Fatal(left)
	}
}

func TestPacingIsAbsolute(t *testing.T) {
	dir := t.TempDir()
	cfg := testConfig(dir)
	cfg.MicroMs, cfg.MaxSteps, cfg.NoProtocol = 0.5, 40, true // 16 × 0.5 ms × 40 = 320 ms
	began := time.Now()
	startGang(t, cfg, 1, 1, dir, "", "").wait(t)
	if took := time.Since(began); took < 315*time.Millisecond || took > 3*time.Second {
		t.Fatal(took)
	}
}
