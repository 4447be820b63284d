package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// A probe under way outlives memberlist's Shutdown by its own timeout.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

var testKey = bytes.Repeat([]byte{7}, KeyBytes)

// network is a wire on which nodes can be cut off from each other.
type network struct {
	mu    sync.Mutex
	group map[string]int // guarded by mu; by address; 0 by default
}

func newNetwork() *network { return &network{group: map[string]int{}} }

func (n *network) cut(group int, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range addrs {
		n.group[a] = group
	}
}

func (n *network) open(from, to string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.group[from] == n.group[to]
}

func (n *network) wire(t memberlist.NodeAwareTransport) memberlist.NodeAwareTransport {
	nt := t.(*memberlist.NetTransport)
	ip, port, _ := nt.FinalAdvertiseAddr("127.0.0.1", nt.GetAutoBindPort())
	return &cable{NetTransport: nt, net: n, self: net.JoinHostPort(ip.String(), fmt.Sprint(port))}
}

type cable struct {
	*memberlist.NetTransport
	net  *network
	self string
}

var errCut = errors.New("cut")

func (c *cable) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	if !c.net.open(c.self, a.Addr) {
		return time.Now(), nil // lost, as UDP is
	}
	return c.NetTransport.WriteToAddress(b, a)
}

func (c *cable) DialAddressTimeout(a memberlist.Address, d time.Duration) (net.Conn, error) {
	if !c.net.open(c.self, a.Addr) {
		return nil, errCut
	}
	return c.NetTransport.DialAddressTimeout(a, d)
}

func start(t *testing.T, cfg Config) *Gossip {
	t.Helper()
	if cfg.Bind == "" {
		cfg.Bind = "127.0.0.1"
	}
	if cfg.Pace == (Pace{}) {
		cfg.Pace = Fast()
	}
	g, err := Start(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

func until(t *testing.T, what string, ok func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 30 s: %s", what)
		}
	}
	return time.Since(begin)
}

// sees says whether g's members are exactly ids.
func sees(g *Gossip, ids string) bool {
	var have []string
	for _, m := range g.Members() {
		have = append(have, m.ID)
	}
	return strings.Join(have, " ") == ids
}

func TestNodesFindEachOther(t *testing.T) {
	a := start(t, Config{NodeID: "a", Key: testKey, Meta: Meta{Role: "serve", ControlAddr: "127.0.0.1:9"}})
	b := start(t, Config{NodeID: "b", Key: testKey, Seeds: []string{a.Addr()}, Meta: Meta{Role: "agent"}})
	c := start(t, Config{NodeID: "c", Key: testKey, Seeds: []string{b.Addr()}, Meta: Meta{Role: "agent"}})
	for _, g := range []*Gossip{a, b, c} {
		until(t, "all three seen", func() bool { return sees(g, "a b c") })
	}
	if m := c.Members()[0]; m.Meta != (Meta{Role: "serve", ControlAddr: "127.0.0.1:9"}) || m.Addr != a.Addr() {
		t.Fatalf("c knows a as %+v", m)
	}
	if err := b.SetMeta(context.Background(), Meta{Role: "agent", Version: "2"}); err != nil {
		t.Fatal(err)
	}
	until(t, "b's new description at c", func() bool { return c.Members()[1].Meta.Version == "2" })

	if err := c.Leave(context.Background()); err != nil {
		t.Fatal(err)
	}
	took := until(t, "c's goodbye", func() bool { return sees(a, "a b") && sees(b, "a b") })
	t.Logf("goodbye seen after %v", took)
	b.Close()
	took = until(t, "b's death", func() bool { return sees(a, "a") })
	t.Logf("death seen after %v", took)

	last := map[string]Kind{}
	for len(last) < 3 || last["b"] != Leave || last["c"] != Leave {
		select {
		case e := <-a.Events():
			last[e.Member.ID] = e.Kind
		case <-time.After(10 * time.Second):
			t.Fatalf("events ended with %v", last)
		}
	}
	a.Close()
	for range a.Events() { // closed
	}
}

func five(t *testing.T, n *network) []*Gossip {
	var all []*Gossip
	var seeds []string
	for i := range 5 {
		g := start(t, Config{NodeID: fmt.Sprintf("n%d", i+1), Key: testKey, Seeds: seeds, wire: n.wire})
		if i == 0 {
			seeds = []string{g.Addr()} // the first has no seeds itself
		}
		all = append(all, g)
	}
	for _, g := range all {
		until(t, "five members", func() bool { return sees(g, "n1 n2 n3 n4 n5") })
	}
	return all
}

func TestCase_ND_01(t *testing.T) {
	for name, c := range map[string]struct {
		away       []int
		here, gone string
	}{
		"one of five":    {[]int{4}, "n1 n2 n3 n4", "n5"},
		"two from three": {[]int{3, 4}, "n1 n2 n3", "n4 n5"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork()
			all := five(t, n)
			for _, i := range c.away {
				n.cut(1, all[i].Addr())
			}
			until(t, "both sides alone", func() bool { return sees(all[0], c.here) && sees(all[4], c.gone) })
			// Beyond GossipToTheDeadTime (30 probes) nobody calls the dead.
			<-time.After(35 * Fast().Probe)
			n.cut(0, all[3].Addr(), all[4].Addr())
			took := until(t, "whole again", func() bool {
				for _, g := range all {
					if !sees(g, "n1 n2 n3 n4 n5") {
						return false
					}
				}
				return true
			})
			t.Logf("healed after %v", took)
		})
	}
}

func TestCase_ND_02_Moved(t *testing.T) {
	a := start(t, Config{NodeID: "a", Key: testKey})
	old := start(t, Config{NodeID: "gpu-07", Key: testKey, Bind: "127.0.0.2", Seeds: []string{a.Addr()}})
	b := start(t, Config{NodeID: "b", Key: testKey, Seeds: []string{a.Addr()}})
	until(t, "three", func() bool { return sees(a, "a b gpu-07") && sees(b, "a b gpu-07") })
	was := old.Addr()
	old.Close()
	moved := start(t, Config{NodeID: "gpu-07", Key: testKey, Bind: "127.0.0.3", Seeds: []string{a.Addr()}})
	at := func(g *Gossip) string {
		for _, m := range g.Members() {
			if m.ID == "gpu-07" {
				return m.Addr
			}
		}
		return ""
	}
	took := until(t, "the new address everywhere", func() bool { return at(a) == moved.Addr() && at(b) == moved.Addr() })
	t.Logf("moved node accepted after %v", took)
	until(t, "the move in events", func() bool {
		e := <-a.Events()
		return e.Member.ID == "gpu-07" && e.Member.Addr == moved.Addr() && e.Kind != Conflict
	})
	if at(a) == was {
		t.Fatal("the old address came back")
	}
}

func TestCase_ND_02_Cloned(t *testing.T) {
	var out lockedBuffer
	a, err := Start(Config{NodeID: "a", Bind: "127.0.0.1", Key: testKey, Pace: Fast()}, slog.New(slog.NewTextHandler(&out, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	first := start(t, Config{NodeID: "gpu-07", Key: testKey, Bind: "127.0.0.2", Seeds: []string{a.Addr()}})
	until(t, "two", func() bool { return sees(a, "a gpu-07") })
	clone := start(t, Config{NodeID: "gpu-07", Key: testKey, Bind: "127.0.0.3", Seeds: []string{a.Addr()}})
	until(t, "several conflicts", func() bool { return a.Stats().Conflicts >= 5 && clone.Stats().Conflicts > 0 })
	if m := a.Members()[1]; m.Addr != first.Addr() {
		t.Fatalf("the clone took over: %+v", m)
	}
	until(t, "the conflict in events", func() bool {
		e := <-a.Events()
		return e.Kind == Conflict && e.Member.Addr == clone.Addr()
	})
	if n := strings.Count(out.String(), "two nodes use one name"); n != 1 {
		t.Fatalf("logged %d times", n)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestCase_ND_03_ForeignClusters(t *testing.T) {
	other := bytes.Repeat([]byte{9}, KeyBytes)
	for name, c := range map[string]Config{
		"other label":         {Key: testKey, Cluster: "blue"},
		"other key":           {Key: other, Cluster: "green"},
		"other key and label": {Key: other, Cluster: "blue"},
		"no key":              {Cluster: "green"},
	} {
		t.Run(name, func(t *testing.T) {
			ours := start(t, Config{NodeID: "ours", Key: testKey, Cluster: "green"})
			c.NodeID, c.Seeds = "theirs", []string{ours.Addr()}
			theirs := start(t, c)
			until(t, "rejected and counted", func() bool {
				return ours.Stats().Rejected >= 3 && theirs.Stats().JoinFails >= 3
			})
			if !sees(ours, "ours") || !sees(theirs, "theirs") {
				t.Fatalf("merged: %v %v", ours.Members(), theirs.Members())
			}
		})
	}
}

func TestCase_ND_03_RotationNeedsNoDowntime(t *testing.T) {
	next := bytes.Repeat([]byte{9}, KeyBytes)
	a := start(t, Config{NodeID: "a", Key: testKey})
	b := start(t, Config{NodeID: "b", Key: testKey, Seeds: []string{a.Addr()}})
	c := start(t, Config{NodeID: "c", Key: testKey, Seeds: []string{a.Addr()}})
	all := []*Gossip{a, b, c}
	for _, g := range all {
		until(t, "three", func() bool { return sees(g, "a b c") })
	}
	for _, step := range []func(*Gossip) error{
		func(g *Gossip) error { return g.AddKey(next) },
		func(g *Gossip) error { return g.UseKey(next) },
		func(g *Gossip) error { return g.RemoveKey(testKey) },
	} {
		for _, g := range all {
			if err := step(g); err != nil {
				t.Fatal(err)
			}
			before := b.Stats().Rejoins
			until(t, "traffic goes on", func() bool { return b.Stats().Rejoins > before })
		}
	}
	for _, g := range all {
		if !sees(g, "a b c") || g.Stats().Rejected != 0 {
			t.Fatalf("%v, %+v", g.Members(), g.Stats())
		}
	}
	late := start(t, Config{NodeID: "late", Key: testKey, Seeds: []string{a.Addr()}})
	until(t, "the old key is refused", func() bool { return late.Stats().JoinFails > 1 })
}

func TestConfigRules(t *testing.T) {
	for name, c := range map[string]Config{
		"no id":           {Bind: "127.0.0.1"},
		"no bind":         {NodeID: "a"},
		"open, no key":    {NodeID: "a", Bind: "0.0.0.0"},
		"short key":       {NodeID: "a", Bind: "127.0.0.1", Key: []byte("short")},
		"long label":      {NodeID: "a", Bind: "127.0.0.1", Cluster: strings.Repeat("x", 256)},
		"seed, no port":   {NodeID: "a", Bind: "127.0.0.1", Seeds: []string{"host"}},
		"too many seeds":  {NodeID: "a", Bind: "127.0.0.1", Seeds: make([]string, MaxSeeds+1)},
		"bad advertise":   {NodeID: "a", Bind: "127.0.0.1", Advertise: "x"},
		"port over range": {NodeID: "a", Bind: "127.0.0.1", Port: 70000},
	} {
		if _, err := Start(c, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	long := Config{NodeID: "a", Bind: "127.0.0.1", Meta: Meta{Version: strings.Repeat("v", 600)}}
	if _, err := Start(long, nil); !errors.Is(err, ErrMeta) {
		t.Errorf("long description: %v", err)
	}
	open := Config{NodeID: "a", Bind: "10.0.0.1"}
	if err := open.Validate(); !errors.Is(err, ErrNoKey) {
		t.Errorf("no key: %v", err)
	}
}

func TestPortInUseIsSaid(t *testing.T) {
	a := start(t, Config{NodeID: "a"})
	_, port, _ := net.SplitHostPort(a.Addr())
	var p int
	fmt.Sscan(port, &p)
	if _, err := Start(Config{NodeID: "b", Bind: "127.0.0.1", Port: p}, slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("two on one port")
	}
}

func TestForeignDescriptionsDoNoHarm(t *testing.T) {
	for _, b := range [][]byte{nil, []byte("{"), []byte("[]"), []byte("null"), bytes.Repeat([]byte("x"), 600)} {
		if m := decodeMeta(b); m != (Meta{}) {
			t.Errorf("%q became %+v", b, m)
		}
	}
	if m := decodeMeta([]byte(`{"role":"agent","later":1}`)); m.Role != "agent" {
		t.Errorf("an unknown field: %+v", m)
	}
}

func FuzzMeta(f *testing.F) {
	f.Add([]byte(`{"role":"agent"}`))
	f.Fuzz(func(t *testing.T, b []byte) { decodeMeta(b) })
}
