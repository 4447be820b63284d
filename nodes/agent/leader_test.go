package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"sluice/nodes"
	"sluice/nodes/agent/cgroup"
	"sluice/nodes/simgpu"
)

// leader is the other end of the stream.
type leader struct {
	t    *testing.T
	ln   net.Listener
	path string

	mu      sync.Mutex
	term    uint64 // of welcomes and orders
	silent  bool   // no beats
	conns   map[net.Conn]bool
	conn    net.Conn // the present one
	hellos  []nodes.Hello
	holders map[string]nodes.HolderStatus
	states  map[string][]nodes.HolderState // each once in a row
	answers map[string]nodes.Answer
	notes   []nodes.RankNote
	read    []nodes.Readings
	orders  int
	wg      sync.WaitGroup
}

func newLeader(t *testing.T) *leader {
	dir, err := os.MkdirTemp("", "sl")
	if err != nil {
		t.Fatal(err)
	}
	l := &leader{t: t, path: filepath.Join(dir, "c.sock"), term: 1, conns: map[net.Conn]bool{},
		holders: map[string]nodes.HolderStatus{}, states: map[string][]nodes.HolderState{}, answers: map[string]nodes.Answer{}}
	l.ln, err = net.Listen("unix", l.path)
	if err != nil {
		t.Fatal(err)
	}
	l.wg.Go(func() {
		for {
			c, err := l.ln.Accept()
			if err != nil {
				return
			}
			l.wg.Go(func() { l.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.ln.Close()
		l.hangUp()
		l.wg.Wait()
		os.RemoveAll(dir)
	})
	return l
}

func (l *leader) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
}

func (l *leader) serve(c net.Conn) {
	l.mu.Lock()
	l.conns[c], l.conn = true, c
	l.mu.Unlock()
	defer func() {
		c.Close()
		l.mu.Lock()
		delete(l.conns, c)
		l.mu.Unlock()
	}()
	rd := bufio.NewReader(c)
	req, err := http.ReadRequest(rd)
	if err != nil {
		return
	}
	if req.URL.Path != StreamPath || req.Header.Get("Upgrade") != StreamProtocol || req.Header.Get("Authorization") != "Bearer t0ken" {
		fmt.Fprint(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
		return
	}
	l.mu.Lock()
	term := l.term
	l.mu.Unlock()
	// Head and first line in one write: the dialer must lose neither.
	fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n{\"welcome\":{\"term\":%d,\"leaseMs\":3000,\"nowMs\":1}}\n", StreamProtocol, term)
	done := make(chan struct{})
	defer close(done)
	l.wg.Go(func() {
		for wait(context.Background(), 100) {
			select {
			case <-done:
				return
			default:
			}
			l.mu.Lock()
			term, silent := l.term, l.silent
			l.mu.Unlock()
			if !silent {
				fmt.Fprintf(c, "{\"beat\":{\"term\":%d}}\n", term)
			}
		}
	})
	dec := json.NewDecoder(rd)
	for {
		var f nodes.Frame
		if dec.Decode(&f) != nil {
			return
		}
		l.take(f)
	}
}

func (l *leader) take(f nodes.Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	status := func(h nodes.HolderStatus) {
		l.holders[h.ID] = h
		s := l.states[h.ID]
		if len(s) == 0 || s[len(s)-1] != h.State {
			l.states[h.ID] = append(s, h.State)
		}
	}
	switch {
	case f.Hello != nil:
		l.hellos = append(l.hellos, *f.Hello)
		for _, h := range f.Hello.Holders {
			status(h)
		}
		l.notes = append(l.notes, f.Hello.Ranks...)
	case f.Answer != nil:
		l.answers[f.Answer.ID] = *f.Answer
	case f.Holder != nil:
		status(*f.Holder)
	case f.Rank != nil:
		l.notes = append(l.notes, *f.Rank)
	case f.Readings != nil:
		l.read = append(l.read, *f.Readings)
	}
}

func (l *leader) helloCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.hellos)
}

func (l *leader) lastHello() nodes.Hello {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hellos[len(l.hellos)-1]
}

// send sends an order as it is.
func (l *leader) send(o nodes.Order) {
	line, err := json.Marshal(nodes.Down{Order: &o})
	if err != nil {
		l.t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		l.conn.Write(append(line, '\n'))
	}
}

// order fills in term and id, sends and waits for the answer.
func (l *leader) order(o nodes.Order) nodes.Answer {
	l.t.Helper()
	l.mu.Lock()
	l.orders++
	if o.ID == "" {
		o.ID = fmt.Sprintf("o%d", l.orders)
	}
	if o.Term == 0 {
		o.Term = l.term
	}
	delete(l.answers, o.ID)
	l.mu.Unlock()
	l.send(o)
	var a nodes.Answer
	eventually(l.t, "answer to "+string(o.Kind)+" of "+o.Holder, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		var ok bool
		a, ok = l.answers[o.ID]
		return ok
	})
	return a
}

// must is order, without an error.
func (l *leader) must(o nodes.Order) nodes.Answer {
	l.t.Helper()
	a := l.order(o)
	if a.Err != "" {
		l.t.Fatalf("%s of %s: %s", o.Kind, o.Holder, a.Err)
	}
	return a
}

func (l *leader) status(id string) nodes.HolderStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holders[id]
}

func (l *leader) await(id string, state nodes.HolderState) nodes.HolderStatus {
	l.t.Helper()
	var last nodes.HolderStatus
	defer func() {
		if l.t.Failed() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.t.Logf("%s: last %+v, states %v", id, last, l.states[id])
		}
	}()
	eventually(l.t, id+" "+string(state), func() bool {
		last = l.status(id)
		return last.State == state
	})
	return last
}

// note waits for a note of a rank.
func (l *leader) note(holder, kind, stopID string) nodes.RankNote {
	l.t.Helper()
	var found nodes.RankNote
	eventually(l.t, holder+" says "+kind+" "+stopID, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, n := range l.notes {
			if n.Holder == holder && n.Kind == kind && (stopID == "" || n.StopID == stopID) {
				found = n
				return true
			}
		}
		return false
	})
	return found
}

// site is one node with a leader and simulated GPUs.
type site struct {
	*leader
	args agentArgs
	stop func() // ends the agent, in the process or outside
	proc *exec.Cmd
}

func newSite(t *testing.T, gpus int) *site {
	t.Helper()
	if testing.Short() {
		t.Skip("real processes are left out in short mode")
	}
	t.Parallel() // they mostly wait
	data, err := os.MkdirTemp("", "sld")
	if err != nil {
		t.Fatal(err)
	}
	s := &site{leader: newLeader(t)}
	s.args = agentArgs{Data: data, Sim: filepath.Join(data, "sim"), Socket: s.leader.path}
	var specs []simgpu.Spec
	for i := range gpus {
		specs = append(specs, simgpu.Spec{UUID: fmt.Sprintf("G%d", i), Name: "sim", MemoryBytes: gpuBytes})
	}
	if err := simgpu.Create(s.args.Sim, specs); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.stop != nil {
			s.stop()
		}
		s.sweep()
		// A shim may be about to write its last file.
		eventually(t, "directories go", func() bool { return os.RemoveAll(data) == nil })
	})
	return s
}

// sweep ends whatever a test left behind.
func (s *site) sweep() {
	mark := "n1-" + digest8(s.args.Data)
	for _, tree := range []cgroup.Tree{cgroup.Find(mark), cgroup.Marks(mark)} {
		names, _ := tree.Holders()
		for _, n := range names {
			_ = tree.Group(n).Kill()
		}
		for _, n := range names {
			eventually(s.t, "sweep", func() bool {
				pids, err := tree.Group(n).Pids()
				return err == nil && len(pids) == 0
			})
			_ = tree.Group(n).Remove()
		}
		if tree.Real() {
			eventually(s.t, "shims end", func() bool {
				pids, err := tree.Shims().Pids()
				return err == nil && len(pids) == 0
			})
			_ = tree.Remove()
		}
	}
}

// start runs the agent in this process.
func (s *site) start() {
	s.t.Helper()
	before := s.helloCount()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, s.args.config()) }()
	s.stop = func() {
		s.stop = nil
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("agent: %v", err)
		}
	}
	eventually(s.t, "hello", func() bool { return s.helloCount() > before })
}

// spawn runs the agent as a process of its own.
func (s *site) spawn() {
	s.t.Helper()
	before := s.helloCount()
	raw, _ := json.Marshal(s.args)
	s.proc = exec.Command(os.Args[0], "agent", string(raw))
	s.proc.Stdout, s.proc.Stderr = os.Stderr, os.Stderr
	if !testing.Verbose() {
		s.proc.Stdout, s.proc.Stderr = nil, nil
	}
	if err := s.proc.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.stop = func() {
		s.stop = nil
		_ = s.proc.Process.Signal(syscall.SIGTERM)
		_ = s.proc.Wait()
	}
	eventually(s.t, "hello", func() bool { return s.helloCount() > before })
}

// kill9 kills the agent's process.
func (s *site) kill9() {
	s.t.Helper()
	s.stop = nil
	_ = s.proc.Process.Kill()
	_ = s.proc.Wait()
}

func (s *site) job(id string, gpus []string, role ...string) *nodes.HolderSpec {
	return &nodes.HolderSpec{
		ID: id, Kind: nodes.KindRank, Owner: "j", Tenant: "t", Generation: 1, GPUs: gpus,
		Command: append([]string{os.Args[0]}, role...),
		Rank:    &nodes.RankSpec{Job: "j", Launcher: nodes.LaunchRanks, WorldSize: 1, LocalWorldSize: 1, NodeCount: 1, MasterAddr: "127.0.0.1"},
	}
}

// trainer is a job that speaks the protocol.
func (s *site) trainer(id string, gpus ...string) *nodes.HolderSpec {
	spec := s.job(id, gpus, "rank")
	spec.ActiveBytes, spec.ResidentBytes = rankActive, rankResident
	spec.Rank.Protocol, spec.Rank.CheckpointDir = true, filepath.Join(s.args.Data, "ckpt", id)
	return spec
}

func (s *site) replica(id string, gpus ...string) *nodes.HolderSpec {
	return &nodes.HolderSpec{
		ID: id, Kind: nodes.KindReplica, Owner: "m", Tenant: "t", Generation: 1, GPUs: gpus,
		Command:     []string{os.Args[0], "engine", "{{port}}"},
		Env:         map[string]string{"PORT_TOO": "{{port}}"},
		ActiveBytes: engineActive, ResidentBytes: engineResident,
		Replica: &nodes.ReplicaSpec{HealthPath: "/health", Sleep: nodes.SleepVLLM},
	}
}

func (s *site) begin(kind nodes.OrderKind, spec *nodes.HolderSpec) nodes.Answer {
	s.t.Helper()
	return s.must(nodes.Order{Kind: kind, Holder: spec.ID, Generation: spec.Generation, Spec: spec})
}

func (s *site) do(kind nodes.OrderKind, spec *nodes.HolderSpec) nodes.Answer {
	s.t.Helper()
	return s.must(nodes.Order{Kind: kind, Holder: spec.ID, Generation: spec.Generation})
}

func alive(pid int) bool {
	st, ok := cgroup.ReadStat(pid)
	return ok && st.Letter != 'Z'
}
