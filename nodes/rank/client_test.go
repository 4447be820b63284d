package rank

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a Handler that keeps everything and lets a test wait for a message.
type recorder struct {
	mu      sync.Mutex
	conns   []*Conn
	seen    []Message
	gone    int
	changed chan struct{}
	refuse  error
}

func newRecorder() *recorder { return &recorder{changed: make(chan struct{})} }

func (r *recorder) note(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recorder) Hello(c *Conn, m Message) error {
	r.note(func() { r.conns = append(r.conns, c); r.seen = append(r.seen, m) })
	return r.refuse
}
func (r *recorder) Message(c *Conn, m Message) { r.note(func() { r.seen = append(r.seen, m) }) }
func (r *recorder) Gone(c *Conn, err error)    { r.note(func() { r.gone++ }) }

// await returns the first message that matches, waiting for it.
func (r *recorder) await(t *testing.T, what string, match func(Message) bool) Message {
	t.Helper()
	limit := time.NewTimer(10 * time.Second)
	defer limit.Stop()
	for {
		r.mu.Lock()
		for _, m := range r.seen {
			if match(m) {
				r.mu.Unlock()
				return m
			}
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-limit.C:
			t.Fatalf("no %s; seen %+v", what, r.seen)
		}
	}
}

func (r *recorder) conn(t *testing.T) *Conn {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.conns) == 0 {
		t.Fatal("no connection yet")
	}
	return r.conns[len(r.conns)-1]
}

func is(typ Type) func(Message) bool { return func(m Message) bool { return m.Type == typ } }

func serve(t *testing.T, path string, h Handler) *Server {
	t.Helper()
	s, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(h) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func dial(t *testing.T, env Env, opts Options) *Client {
	t.Helper()
	c, err := DialWith(t.Context(), env, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func testEnv(path string) Env {
	return Env{Socket: path, Job: "j", Generation: 3, WorldSize: 1, Step: 4, Samples: 400}
}

func TestYieldResumeAndStopOverTheSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	r := newRecorder()
	serve(t, path, r)
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("socket mode %v %v", fi, err)
	}
	var hooks []string
	c := dial(t, testEnv(path), Options{
		OnYield:  func() error { hooks = append(hooks, "yield"); return nil },
		OnResume: func() error { hooks = append(hooks, "resume"); return nil },
	})
	h := r.await(t, "hello", is(TypeHello))
	if h.Job != "j" || h.Generation != 3 || h.Step != 4 || h.PID != os.Getpid() || h.Sync != SyncAll {
		t.Fatalf("hello %+v", h)
	}
	if p := r.conn(t).Peer(); p.PID != os.Getpid() || p.UID != os.Getuid() {
		t.Fatalf("peer %+v", p)
	}
	if v, err := c.BeginStep(5); err != nil || v.Kind != Continue {
		t.Fatal(v, err)
	}
	// In the middle of step 5: the answer comes at once.
	r.conn(t).Send(Message{Type: TypePrepare, ID: "o1", Mode: ModeYield})
	if m := r.await(t, "prepared", is(TypePrepared)); m.Begun != 5 {
		t.Fatalf("%+v", m)
	}
	c.EndStep(5, 0.5, 500)
	r.conn(t).Send(Message{Type: TypeCommit, ID: "o1", Mode: ModeYield, Step: 5})
	verdict := make(chan Verdict, 1)
	go func() { v, _ := c.BeginStep(6); verdict <- v }()
	if m := r.await(t, "yielded", is(TypeYielded)); m.Step != 5 || m.ID != "o1" {
		t.Fatalf("%+v", m)
	}
	r.conn(t).Send(Message{Type: TypeResume, ID: "o1"})
	r.await(t, "resumed", is(TypeResumed))
	if v := <-verdict; v.Kind != Resumed || v.Step != 6 {
		t.Fatalf("%+v", v)
	}
	if len(hooks) != 2 || hooks[0] != "yield" || hooks[1] != "resume" {
		t.Fatal(hooks)
	}
	r.conn(t).Send(Message{Type: TypePrepare, ID: "o2", Mode: ModeStop})
	r.await(t, "prepared o2", func(m Message) bool { return m.Type == TypePrepared && m.ID == "o2" && m.Begun == 6 })
	r.conn(t).Send(Message{Type: TypeCommit, ID: "o2", Mode: ModeStop, Step: 6})
	c.EndStep(6, 0.4, 600)
	v, err := c.BeginStep(7)
	if err != nil || v.Kind != SaveAndStop || v.Step != 6 {
		t.Fatal(v, err)
	}
	if err := c.Shard(Message{Step: 6, File: "/x/shard-0-of-1.bin", Bytes: 3, Digest: Digest([]byte("abc")), Scope: ScopeNode, Samples: 600}); err != nil {
		t.Fatal(err)
	}
	c.Stopped(6)
	if m := r.await(t, "stopped", is(TypeStopped)); m.Step != 6 || m.ID != "o2" || m.Samples != 600 {
		t.Fatalf("%+v", m)
	}
	if m := r.await(t, "shard", is(TypeShard)); m.Generation != 3 || m.Bytes != 3 {
		t.Fatalf("%+v", m)
	}
	if c.m.Unacked() != 0 {
		t.Fatal("stopped returned before the agent took it")
	}
}

// The agent dies while the rank is held and with a shard on its way; the next
// agent learns all of it and can decide the stop.
func TestAgentRestartKeepsTheHold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first := newRecorder()
	s, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(first) }()
	c := dial(t, testEnv(path), Options{})
	first.await(t, "hello", is(TypeHello))
	c.BeginStep(5)
	first.conn(t).Send(Message{Type: TypePrepare, ID: "o1", Mode: ModeStop})
	first.await(t, "prepared", is(TypePrepared))
	s.Close()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	c.EndStep(5, 0.5, 500) // training goes on without an agent
	c.Shard(Message{Step: 5, File: "f", Bytes: 1, Digest: Digest(nil), Scope: ScopeNode})
	verdict := make(chan Verdict, 1)
	go func() { v, _ := c.BeginStep(6); verdict <- v }()

	second := newRecorder()
	serve(t, path, second)
	second.await(t, "hello", is(TypeHello))
	second.await(t, "step", func(m Message) bool { return m.Type == TypeStep && m.Begun == 5 && m.Done == 5 && *m.Loss == 0.5 })
	second.await(t, "shard", func(m Message) bool { return m.Type == TypeShard && m.Seq == 1 })
	second.await(t, "prepared", func(m Message) bool { return m.ID == "o1" && m.Begun == 5 })
	select {
	case v := <-verdict:
		t.Fatalf("held rank went on: %+v", v)
	default:
	}
	second.conn(t).Send(Message{Type: TypeCommit, ID: "o1", Mode: ModeStop, Step: 4})
	second.await(t, "refusal", func(m Message) bool { return m.Type == TypeRefused && m.Order == TypeCommit })
	second.conn(t).Send(Message{Type: TypeCommit, ID: "o1", Mode: ModeStop, Step: 5})
	if v := <-verdict; v.Kind != SaveAndStop || v.Step != 5 {
		t.Fatalf("%+v", v)
	}
	c.Stopped(5)
	second.await(t, "stopped", is(TypeStopped))
}

func TestNoSocketIsANoOp(t *testing.T) {
	c := dial(t, Env{WorldSize: 1}, Options{})
	for step := int64(1); step < 100; step++ {
		if v, err := c.BeginStep(step); err != nil || v.Kind != Continue {
			t.Fatal(v, err)
		}
		c.Phase(PhaseEval)
		if err := c.EndStep(step, 1, step); err != nil {
			t.Fatal(err)
		}
	}
	c.Finished(99)
}

func TestServerRefusesWhatIsNotTheProtocol(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	r := newRecorder()
	r.refuse = errors.New("no such generation")
	serve(t, path, r)
	c := dial(t, testEnv(path), Options{LingerMs: 50})
	r.await(t, "second try", func(Message) bool { return len(r.conns) >= 2 })
	if _, err := c.BeginStep(5); err != nil { // a refused rank trains on
		t.Fatal(err)
	}
	if r.gone != 0 {
		t.Fatal("gone without an accepted hello")
	}
	if _, err := Listen("/"+string(make([]byte, 200)), 0o600); !errors.Is(err, ErrSocketPath) {
		t.Fatal(err)
	}
}

// Stopped must not wait for ever for an agent that never comes back.
func TestStoppedLingersWithinItsLimit(t *testing.T) {
	c := dial(t, testEnv(filepath.Join(t.TempDir(), "nobody")), Options{LingerMs: 30})
	began := time.Now()
	c.Stopped(4)
	if took := time.Since(began); took > 5*time.Second {
		t.Fatal(took)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	d, err := Dial(ctx, testEnv("nobody"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.BeginStep(5); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	d.Close()
}
