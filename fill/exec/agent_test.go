package exec

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sluice/fill"
	"sluice/nodes"
	"sluice/nodes/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long anything is waited for; on a calm machine all comes in
// milliseconds.
const patience = 20 * time.Second

func open(t *testing.T, dir string, lease int64) *Controller {
	t.Helper()
	c, err := Open(Config{Dir: dir, CheckpointRoot: "/ckpt", Planner: fill.Default(), Strict: true, LeaseMs: lease})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) // a second time is no fault
	return c
}

// eventually polls f until it holds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(patience)
	for !f() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// state reads a fact.
func state[T any](c *Controller, f func(*registry.State) T) (out T) {
	c.Read(func(s *registry.State, _ *nodes.Fleet, _ int64) { out = f(s) })
	return out
}

// agent is the other end of a stream, in the test's hand.
type agent struct {
	t     *testing.T
	conn  net.Conn
	downs chan nodes.Down
	ended chan error // what ServeAgent returned
}

func connect(t *testing.T, c *Controller) *agent {
	t.Helper()
	ours, theirs := net.Pipe()
	a := &agent{t: t, conn: ours, downs: make(chan nodes.Down, 4096), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	read := make(chan struct{})
	go func() { a.ended <- c.ServeAgent(ctx, theirs, "test") }()
	go func() {
		defer close(read)
		defer close(a.downs)
		sc := bufio.NewScanner(ours)
		for sc.Scan() {
			var d nodes.Down
			if json.Unmarshal(sc.Bytes(), &d) != nil {
				return
			}
			a.downs <- d
		}
	}()
	t.Cleanup(func() {
		cancel()
		ours.Close()
		<-read
	})
	return a
}

func (a *agent) send(f nodes.Frame) {
	a.t.Helper()
	b, err := json.Marshal(f)
	if err != nil {
		a.t.Fatal(err)
	}
	a.conn.SetWriteDeadline(time.Now().Add(patience))
	if _, err := a.conn.Write(append(b, '\n')); err != nil {
		a.t.Fatal(err)
	}
}

func (a *agent) hello(node, boot string, holders ...nodes.HolderStatus) {
	a.t.Helper()
	a.send(nodes.Frame{Hello: &nodes.Hello{Node: nodes.Node{ID: node, BootID: boot, Host: "127.0.0.1",
		GPUs: []nodes.GPU{{UUID: node + "-0", MemoryBytes: 80 << 30}}}, Holders: holders}})
}

// next is the next line of the kind that is wanted; others are passed over.
func (a *agent) next(what string, want func(nodes.Down) bool) nodes.Down {
	a.t.Helper()
	limit := time.After(patience)
	for {
		select {
		case d, ok := <-a.downs:
			if !ok {
				a.t.Fatalf("%s: the stream ended", what)
			}
			if want(d) {
				return d
			}
		case <-limit:
			a.t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func isWelcome(d nodes.Down) bool { return d.Welcome != nil }
func isOrder(d nodes.Down) bool   { return d.Order != nil }
func isBeat(d nodes.Down) bool    { return d.Beat != nil }

// end waits for what ServeAgent returns.
func (a *agent) end() error {
	a.t.Helper()
	select {
	case err := <-a.ended:
		return err
	case <-time.After(patience):
		a.t.Fatal("the stream does not end")
		return nil
	}
}

func chat() registry.Command {
	m := registry.ModelSpec{Name: "chat", Command: []string{"engine", "{{port}}"}, MinReplicas: 1, MaxReplicas: 1, ActiveBytes: 1 << 30}
	m.Default()
	return registry.Command{PutModel: &m}
}

func submit(t *testing.T, c *Controller, cmd registry.Command) []registry.Event {
	t.Helper()
	ev, err := c.Submit(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

func nodeOf(c *Controller, id string) registry.Node {
	return state(c, func(s *registry.State) registry.Node {
		if n := s.Nodes[id]; n != nil {
			return *n
		}
		return registry.Node{}
	})
}

func TestHelloIsWelcomed(t *testing.T) {
	c := open(t, t.TempDir(), 400)
	a := connect(t, c)
	a.hello("n1", "b1")
	w := a.next("welcome", isWelcome).Welcome
	if w.LeaseMs != 400 || w.Term == 0 || w.NowMs == 0 {
		t.Errorf("%+v", w)
	}
	if n := nodeOf(c, "n1"); n.ID != "n1" || n.Lost {
		t.Errorf("%+v", n)
	}
	if b := a.next("a beat", isBeat).Beat; b.Term != w.Term || b.NowMs < w.NowMs {
		t.Errorf("%+v after %+v", b, w)
	}
}

// What is no stream of an agent ends, and says why.
func TestStreamsThatAreRefused(t *testing.T) {
	c := open(t, t.TempDir(), 0)
	a := connect(t, c)
	a.send(nodes.Frame{Readings: &nodes.Readings{}})
	if err := a.end(); !errors.Is(err, errNoHello) {
		t.Errorf("no hello: %v", err)
	}
	a = connect(t, c)
	a.hello("", "b")
	if err := a.end(); !errors.Is(err, errNoHello) {
		t.Errorf("a hello without a name: %v", err)
	}
	a = connect(t, c)
	a.conn.Write([]byte("GET / HTTP/1.1\n"))
	var syntax *json.SyntaxError
	if err := a.end(); !errors.As(err, &syntax) {
		t.Errorf("another protocol: %v", err)
	}
	if n := state(c, func(s *registry.State) int { return len(s.Nodes) }); n != 0 {
		t.Errorf("%d nodes", n)
	}
}

// An order is sent once, again when it has had no effect for a while, and at
// once on a new stream; always under the same id. When done it is sent no more.
func TestOrdersAreSentUntilTheyHaveEffect(t *testing.T) {
	c := open(t, t.TempDir(), 60_000)
	a := connect(t, c)
	a.hello("n1", "b1")
	a.next("welcome", isWelcome)
	submit(t, c, chat())
	first := a.next("start", isOrder).Order
	began := time.Now()
	if first.Kind != nodes.OrderStart || first.Spec == nil || first.Spec.Owner != "chat" || len(first.Spec.GPUs) != 1 || first.Term == 0 {
		t.Fatalf("%+v", first)
	}
	again := a.next("start again", isOrder).Order
	if again.ID != first.ID {
		t.Errorf("%+v, then %+v", first, again)
	}
	if waited := time.Since(began); waited < resendMs*time.Millisecond-time.Second {
		t.Errorf("sent again after %v", waited)
	}

	b := connect(t, c)
	b.hello("n1", "b1")
	if err := a.end(); !errors.Is(err, errReplaced) {
		t.Errorf("the older stream: %v", err)
	}
	if o := b.next("start on the new stream", isOrder).Order; o.ID != first.ID {
		t.Errorf("%+v", o)
	}
	b.send(nodes.Frame{Answer: &nodes.Answer{ID: first.ID, Holder: first.Holder, Port: 7}})
	b.send(nodes.Frame{Holder: &nodes.HolderStatus{ID: first.Holder, Kind: nodes.KindReplica, Owner: "chat", Generation: first.Generation, State: nodes.StateReady, Port: 7, GPUs: first.Spec.GPUs}})
	eventually(t, "the replica is ready", func() bool {
		return state(c, func(s *registry.State) bool {
			r := s.Replicas[first.Holder]
			return r != nil && r.Phase == registry.ReplicaReady && r.Addr == "127.0.0.1:7"
		})
	})
	submit(t, c, registry.Command{DeleteModel: &registry.ByName{Name: "chat"}})
	if o := b.next("stop", isOrder).Order; o.Kind != nodes.OrderStop || o.Holder != first.Holder {
		t.Errorf("%+v", o)
	}
	if bad := c.Broken(); len(bad) > 0 {
		t.Error(bad)
	}
}

// An agent that is silent for its lease is lost, and back with its next hello;
// one that is heard is not.
func TestLeaseLost(t *testing.T) {
	c := open(t, t.TempDir(), 300)
	a := connect(t, c)
	a.hello("n1", "b1")
	a.next("welcome", isWelcome)
	for range 6 { // beats come each fifth of the lease: longer than one in all
		a.next("a beat", isBeat)
		a.send(nodes.Frame{Readings: &nodes.Readings{}})
		if nodeOf(c, "n1").Lost {
			t.Fatal("lost while it was heard")
		}
	}
	eventually(t, "the silent node is lost", func() bool { return nodeOf(c, "n1").Lost })
	if err := a.end(); !errors.Is(err, errSilent) {
		t.Errorf("its stream ended with %v", err) // else it would be heard, and lost for ever
	}
	b := connect(t, c)
	b.hello("n1", "b1")
	b.next("welcome", isWelcome)
	if nodeOf(c, "n1").Lost {
		t.Error("lost after its hello")
	}
	lost := 0
	events, _ := c.Events(0, 1000)
	for _, e := range events {
		if e.Kind == "node" && e.To == "lost" && e.Reason != "" {
			lost++
		}
	}
	if lost != 1 {
		t.Errorf("%d losses in %+v", lost, events)
	}
}

// A second machine of the same name is refused while the first is heard.
func TestDuplicateNodeName(t *testing.T) {
	c := open(t, t.TempDir(), 60_000)
	a := connect(t, c)
	a.hello("n1", "b1")
	a.next("welcome", isWelcome)
	b := connect(t, c)
	b.hello("n1", "another machine's boot")
	if err := b.end(); !errors.Is(err, errDuplicate) {
		t.Errorf("%v", err)
	}
	a.send(nodes.Frame{Readings: &nodes.Readings{}})
	a.next("a beat to the first", isBeat)
	if n := nodeOf(c, "n1"); n.BootID != "b1" {
		t.Errorf("%+v", n)
	}
}

// Facts outlive the controller, and what agents still run is not started again.
func TestRestartKeepsFacts(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, 60_000)
	a := connect(t, c)
	a.hello("n1", "b1")
	a.next("welcome", isWelcome)
	submit(t, c, chat())
	start := a.next("start", isOrder).Order
	status := nodes.HolderStatus{ID: start.Holder, Kind: nodes.KindReplica, Owner: "chat", Generation: start.Generation, State: nodes.StateReady, Port: 7, GPUs: start.Spec.GPUs}
	a.send(nodes.Frame{Holder: &status})
	ready := func(c *Controller) bool {
		return state(c, func(s *registry.State) bool {
			r := s.Replicas[start.Holder]
			return r != nil && r.Phase == registry.ReplicaReady
		})
	}
	eventually(t, "it is ready", func() bool { return ready(c) })
	before := state(c, func(s *registry.State) int64 { return s.LastMs })
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.end(); err == nil {
		t.Error("the stream outlives the controller")
	}

	c = open(t, dir, 60_000)
	if !ready(c) || nodeOf(c, "n1").ID == "" || c.NowMs() <= before {
		t.Errorf("facts are lost, or time went back: %d, was %d", c.NowMs(), before)
	}
	a = connect(t, c)
	a.hello("n1", "b1", status)
	a.next("welcome", isWelcome)
	// A stop that is due shows that orders go out; no start came before it.
	submit(t, c, registry.Command{DeleteModel: &registry.ByName{Name: "chat"}})
	if o := a.next("stop", isOrder).Order; o.Kind != nodes.OrderStop || o.Holder != start.Holder {
		t.Errorf("%+v", o)
	}
}

// A command submitted twice under one id has one effect; one that is refused
// says why.
func TestSubmit(t *testing.T) {
	c := open(t, t.TempDir(), 0)
	cmd := chat()
	cmd.ID = "mine"
	if ev := submit(t, c, cmd); len(ev) != 1 {
		t.Errorf("%+v", ev)
	}
	if ev := submit(t, c, cmd); len(ev) != 0 {
		t.Errorf("a second time: %+v", ev)
	}
	if _, err := c.Submit(t.Context(), registry.Command{DeleteModel: &registry.ByName{Name: "none"}}); !errors.Is(err, registry.ErrUnknown) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Submit(ctx, chat()); err == nil {
		t.Error("an ended context")
	}
}
