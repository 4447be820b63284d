package gateway

import (
	"bufio"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"sluice/slo"
)

// mortal is an engine that can be killed with all its connections, and started again at the same address.
type mortal struct {
	t     *testing.T
	addr  string
	reply func(a *asked)
	mu    sync.Mutex
	ln    net.Listener // guarded by mu
	conns []net.Conn   // guarded by mu
	dead  bool         // guarded by mu
	all   sync.WaitGroup
}

func startMortal(t *testing.T, reply func(a *asked)) *mortal {
	m := &mortal{t: t, addr: "127.0.0.1:0", reply: reply}
	m.start()
	t.Cleanup(func() { m.kill(); m.all.Wait() })
	return m
}

func (m *mortal) start() {
	ln, err := net.Listen("tcp", m.addr)
	if err != nil {
		m.t.Fatal(err)
	}
	m.mu.Lock()
	m.ln, m.addr, m.dead = ln, ln.Addr().String(), false
	m.mu.Unlock()
	e := &engine{}
	m.all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			m.mu.Lock()
			if m.dead {
				c.Close()
			}
			m.conns = append(m.conns, c)
			m.mu.Unlock()
			m.all.Go(func() { e.serve(c, m.reply) })
		}
	})
}

// kill ends every connection as the kernel does for a process that is gone: with a reset where bytes are unread.
func (m *mortal) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
	m.ln.Close()
	for _, c := range m.conns {
		c.Close()
	}
	m.conns = nil
}

// keepAsking sends requests over one connection until over is closed, and returns how many were answered well. Any other
// answer is a fault: none has begun when its engine dies.
func (f *floor) keepAsking(t *testing.T, over <-chan struct{}, done *atomic.Int64) {
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	br := bufio.NewReader(c)
	for {
		select {
		case <-over:
			return
		default:
		}
		io.WriteString(c, post("/v1/chat/completions", chat))
		if a := readAnswer(br); a.status != 200 || a.err != nil {
			t.Errorf("%+v", a)
			return
		}
		done.Add(1)
	}
}

// TestReplicaRestarted kills one of two replicas under load, with requests inside and idle connections in the pool, and
// starts it again, several times over: no client notices.
func TestReplicaRestarted(t *testing.T) {
	reply := func(a *asked) { replyJSON(a, 200, jsonAnswer) }
	m, other := startMortal(t, reply), startEngine(t, reply)
	f := open(t, nil, nil, &engine{addr: m.addr}, other)
	over := make(chan struct{})
	var done atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { f.keepAsking(t, over, &done) })
	}
	rounds := 5
	if testing.Short() {
		rounds = 2
	}
	further := func(n int64) {
		from := done.Load()
		until(t, "requests are served", func() bool { return done.Load() >= from+n || t.Failed() })
	}
	for range rounds {
		further(50)
		m.kill()
		further(50)
		m.start()
	}
	further(50)
	close(over)
	wg.Wait()
	until(t, "all ended", func() bool { return f.srv.InFlight() == 0 })
	for _, s := range f.samples() {
		if s.Outcome != slo.OK {
			t.Fatalf("%+v", s)
		}
	}
	f.idle(t)
}
