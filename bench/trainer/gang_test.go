package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/nodes/rank"
)

// controller is a whole agent and controller for one generation, small: it hears
// all ranks on one socket, and runs agreed stops.
type controller struct {
	mu      sync.Mutex
	changed chan struct{}
	conns   map[int]*rank.Conn
	steps   map[int]rank.Message
	phases  map[int]rank.Phase
	shards  map[int64]map[int]rank.Message // by step, rank
	stop    *rank.Stop
	ended   map[int]rank.Message // stopped or finished
	err     error
}

func newController() *controller {
	return &controller{changed: make(chan struct{}), conns: map[int]*rank.Conn{}, steps: map[int]rank.Message{},
		phases: map[int]rank.Phase{}, shards: map[int64]map[int]rank.Message{}, ended: map[int]rank.Message{}}
}

func (c *controller) Hello(conn *rank.Conn, m rank.Message) error {
	c.note(func() { c.conns[m.Rank] = conn })
	return nil
}

func (c *controller) Gone(conn *rank.Conn, err error) {
	c.note(func() {
		if r := conn.Hello().Rank; c.conns[r] == conn {
			delete(c.conns, r)
		}
	})
}

func (c *controller) note(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *controller) Message(conn *rank.Conn, m rank.Message) {
	r := conn.Hello().Rank
	c.note(func() {
		var err error
		switch m.Type {
		case rank.TypeStep:
			c.steps[r] = m
		case rank.TypePhase:
			c.phases[r] = m.Phase
		case rank.TypeShard:
			if c.shards[m.Step] == nil {
				c.shards[m.Step] = map[int]rank.Message{}
			}
			c.shards[m.Step][r] = m
		case rank.TypePrepared:
			err = c.stop.Prepared(r, m.Begun)
		case rank.TypeYielded:
			err = c.stop.Reached(r, m.Step)
		case rank.TypeResumed, rank.TypeAborted:
			err = c.stop.Answered(r)
		case rank.TypeStopped, rank.TypeFinished:
			c.ended[r] = m
			if c.stop != nil {
				err = c.stop.Reached(r, m.Step)
			}
		case rank.TypeRefused:
			err = fmt.Errorf("rank %d refused: %s", r, m.Reason)
		}
		if err != nil {
			c.err = errors.Join(c.err, err)
		}
	})
}

// await waits until ok, called under the lock, holds.
func (c *controller) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for {
		c.mu.Lock()
		done, changed, err := ok(), c.changed, c.err
		c.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if done {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			t.Fatalf("no %s; steps %v, stop %+v", what, c.steps, c.stop)
		}
	}
}

func (c *controller) awaitStep(t *testing.T, step int64) {
	t.Helper()
	c.await(t, fmt.Sprintf("step %d", step), func() bool { return c.steps[0].Done >= step })
}

func (c *controller) order(t *testing.T, m rank.Message) {
	t.Helper()
	c.mu.Lock()
	conns := make([]*rank.Conn, 0, len(c.conns))
	for _, conn := range c.conns {
		conns = append(conns, conn)
	}
	c.mu.Unlock()
	for _, conn := range conns {
		if err := conn.Send(m); err != nil {
			t.Fatal(err)
		}
	}
}

// agree runs both phases and returns S when all ranks have reached it.
func (c *controller) agree(t *testing.T, id string, mode rank.Mode, world int) int64 {
	t.Helper()
	c.mu.Lock()
	c.stop = rank.NewStop(id, mode, world)
	c.mu.Unlock()
	c.order(t, rank.Message{Type: rank.TypePrepare, ID: id, Mode: mode})
	c.await(t, "answers to prepare", func() bool { return c.stop.Decided })
	s, _ := c.stop.Step()
	c.order(t, rank.Message{Type: rank.TypeCommit, ID: id, Mode: mode, Step: s})
	c.await(t, "all at the step", c.stop.Complete)
	return s
}

// manifest makes the checkpoint of step current, as a controller would.
func (c *controller) manifest(t *testing.T, dir string, step int64, world int) string {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	man := rank.Manifest{Job: "j", Step: step, World: world}
	for r, m := range c.shards[step] {
		man.Samples, man.Generation = m.Samples, m.Generation
		man.Shards = append(man.Shards, rank.Shard{File: m.File, Bytes: m.Bytes, Digest: m.Digest, Scope: m.Scope, Rank: r})
	}
	if err := man.VerifySizes(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, fmt.Sprintf("manifest-%d.json", step))
	if err := rank.WriteManifest(path, man); err != nil {
		t.Fatal(err)
	}
	return path
}

// gang is one generation within this process.
type gang struct {
	errs   []error
	done   sync.WaitGroup
	cancel context.CancelFunc
}

func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

func testConfig(dir string) Config {
	cfg := Default()
	cfg.MicroMs, cfg.SaveEverySteps, cfg.MaxSteps, cfg.CheckpointDir = 0.05, 0, 0, ""
	cfg.StepLog = filepath.Join(dir, "steps")
	cfg.JoinLimitMs = 10_000
	return cfg
}

// rankEnv is the environment of one rank, as pairs.
func rankEnv(generation int64, r, world, port int, dir, socket, resume string) map[string]string {
	return map[string]string{
		"SLUICE_JOB": "j", "SLUICE_GENERATION": strconv.FormatInt(generation, 10), "RANK": strconv.Itoa(r), "LOCAL_RANK": strconv.Itoa(r),
		"WORLD_SIZE": strconv.Itoa(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": strconv.Itoa(port),
		"SLUICE_SOCKET": socket, "SLUICE_RESUME": resume, "SLUICE_CHECKPOINT_DIR": dir,
	}
}

func startGang(t *testing.T, cfg Config, generation int64, world int, dir, socket, resume string) *gang {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	g := &gang{errs: make([]error, world), cancel: cancel}
	port := freePort(t)
	for r := range world {
		env := rankEnv(generation, r, world, port, dir, socket, resume)
		mine := cfg
		mine.Getenv = func(name string) string { return env[name] }
		g.done.Go(func() {
			g.errs[r] = Run(ctx, mine)
			if g.errs[r] != nil {
				cancel() // as the agent ends a gang that lost a rank
			}
		})
	}
	t.Cleanup(func() { cancel(); g.done.Wait() })
	return g
}

func (g *gang) wait(t *testing.T) {
	t.Helper()
	g.done.Wait()
	if err := errors.Join(g.errs...); err != nil {
		t.Fatal(err)
	}
}

func listen(t *testing.T, path string) *controller {
	t.Helper()
	c := newController()
	s, err := rank.Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(c) }()
	t.Cleanup(func() {
		s.Close()
		<-served
	})
	return c
}

// stepsOf reads a step log: the loss of each step done, in order, checking that
// each step is begun and done exactly once, one after the other.
func stepsOf(t *testing.T, prefix string, r int) (steps []int64, losses []float64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("%s.rank-%d", prefix, r))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var l stepLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if l.Loss != nil {
			steps, losses = append(steps, l.Done), append(losses, *l.Loss)
		}
	}
	return steps, losses
}

func wantSteps(t *testing.T, steps []int64, last int64) {
	t.Helper()
	want := make([]int64, last)
	for i := range want {
		want[i] = int64(i + 1)
	}
	if !slices.Equal(steps, want) {
		t.Fatalf("steps %v, want 1 to %d, each once", steps, last)
	}
}
