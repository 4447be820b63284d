package floor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/nodes/agent/cgroup"
	"sluice/nodes/agent/hold"
	"sluice/nodes/simgpu"
)

// speed is how much faster than real engines answer and the planner decides.
const speed = 20

const (
	settleLimit = 60 * time.Second // for anything to come back; a busy machine is slow
	pollEvery   = 25 * time.Millisecond
)

// site is a running floor. Its methods fail the test; they are for its goroutine.
type site struct {
	t        *testing.T
	dir, exe string
	socket   string
	dataAddr string
	ports    []int
	procs    map[string]*process // by name; the present one
	nodes    map[string]string   // node → directory of its agent's data
	sims     map[string]string   // node → directory of its simulated GPUs
	gossip   map[string]string   // node → where it gossips
	token    string
	http     *http.Client
}

// process is one process of the floor that we started.
type process struct {
	*exec.Cmd
	ended chan struct{}
}

// newSite prepares a floor: directory, program, ports. Nothing runs yet.
func newSite(t *testing.T) *site {
	t.Helper()
	built := build(t)
	dir, err := os.MkdirTemp("", "slf-") // short: there will be sockets in it
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, dir: dir, exe: filepath.Join(dir, "sluice"), procs: map[string]*process{}, nodes: map[string]string{}, sims: map[string]string{}, gossip: map[string]string{}}
	// A name of its own makes the floor's processes known by /proc/PID/exe.
	if err := os.Link(built, s.exe); err != nil {
		t.Fatal(err)
	}
	s.ports = freePorts(t, 5)
	s.dataAddr = s.addr(0)
	s.socket = filepath.Join(dir, "server", "control.sock")
	s.http = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", s.socket)
	}}}
	t.Cleanup(s.end)
	return s
}

func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

func (s *site) addr(i int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.ports[i])) }

// serve starts the server, or starts it again.
func (s *site) serve() { s.t.Helper(); s.serveAt(speed) }

// serveAt is serve with a planner that decides faster times faster.
func (s *site) serveAt(faster int) {
	s.t.Helper()
	s.spawn("server", nil, "serve", "--data", filepath.Join(s.dir, "server"), "--node", "server", "--listen", s.dataAddr,
		"--control", s.addr(1), "--gossip", s.addr(2), "--speed", strconv.Itoa(faster), "--strict")
}

// agent starts the agent of a node, or starts it again.
func (s *site) agent(node string, gpus int) {
	s.t.Helper()
	if s.token == "" {
		var made struct {
			Token string `json:"token"`
		}
		s.await("a join token", func() error { return s.call("POST", "/v1/tokens", map[string]string{"role": "agent"}, &made) })
		s.token = made.Token
	}
	data := filepath.Join(s.dir, node)
	if s.gossip[node] == "" {
		s.gossip[node] = s.addr(3 + len(s.gossip))
	}
	s.nodes[node], s.sims[node] = filepath.Join(data, "agent"), filepath.Join(data, "simgpu")
	s.spawn(node, []string{"SLUICE_JOIN_TOKEN=" + s.token}, "agent", "--data", data, "--node", node, "--gpus", fmt.Sprintf("sim:%d", gpus),
		"--join", s.addr(1), "--gossip", s.gossip[node], "--seeds", s.addr(2))
}

func (s *site) spawn(name string, env []string, args ...string) {
	s.t.Helper()
	logs, err := os.OpenFile(filepath.Join(s.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer logs.Close()
	p := &process{Cmd: exec.Command(s.exe, args...), ended: make(chan struct{})}
	p.Env = append(os.Environ(), env...)
	p.Stdout, p.Stderr = logs, logs
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = p.Wait() // how it ended is no news: we end them
		close(p.ended)
	}()
	s.procs[name] = p
}

// signal sends a signal to one of our processes and waits for its end.
func (s *site) signal(name string, sig syscall.Signal) {
	s.t.Helper()
	p := s.procs[name]
	if err := p.Process.Signal(sig); err != nil {
		s.t.Fatalf("signal %s: %v", name, err)
	}
	select {
	case <-p.ended:
	case <-time.After(settleLimit):
		s.t.Fatalf("%s does not end by signal %v", name, sig)
	}
}

// call speaks with the control socket.
func (s *site) call(method, path string, in, out any) error {
	raw, err := s.raw(method, path, in)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(raw, out)
}

func (s *site) raw(method, path string, in any) ([]byte, error) {
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequest(method, "http://sluice"+path, &body)
	if err != nil {
		return nil, err
	}
	res, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %d: %s", method, path, res.StatusCode, raw)
	}
	return raw, err
}

func (s *site) must(method, path string, in, out any) {
	s.t.Helper()
	if err := s.call(method, path, in, out); err != nil {
		s.t.Fatal(err)
	}
}

// await polls f until it returns nil, and fails the test after settleLimit.
func (s *site) await(what string, f func() error) time.Duration {
	s.t.Helper()
	begin := time.Now()
	limit := time.NewTimer(settleLimit)
	defer limit.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return time.Since(begin)
		}
		select {
		case <-tick.C:
		case <-limit.C:
			s.t.Fatalf("%s: not within %v: %v", what, settleLimit, err)
		}
	}
}

// holderPids are the processes of one holder.
type holderPids struct{ shim, child cgroup.Process }

// holders finds the living holders of a node in the files of their shims.
func (s *site) holders(node string) map[string]holderPids {
	s.t.Helper()
	out := map[string]holderPids{}
	dirs, err := filepath.Glob(filepath.Join(s.nodes[node], "holders", "*"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, dir := range dirs {
		shim, err1 := hold.ReadProcess(dir, hold.ShimFile)
		child, err2 := hold.ReadProcess(dir, hold.ChildFile)
		if err1 == nil && err2 == nil && child.Alive() {
			out[filepath.Base(dir)] = holderPids{shim, child}
		}
	}
	return out
}

// allHolders are those of every node.
func (s *site) allHolders() map[string]holderPids {
	s.t.Helper()
	out := map[string]holderPids{}
	for node := range s.nodes {
		for id, p := range s.holders(node) {
			out[id] = p
		}
	}
	return out
}

// kill9 kills one process of a holder.
func (s *site) kill9(p cgroup.Process) {
	s.t.Helper()
	if err := p.Signal(syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
}

// sound checks what must hold at any time: the server's own invariants, what
// the simulated GPUs saw, and the books.
func (s *site) sound(when string) {
	s.t.Helper()
	var inv struct {
		Broken []string `json:"broken"`
	}
	s.must("GET", "/v1/invariants", nil, &inv)
	for _, b := range inv.Broken {
		s.t.Errorf("%s: invariant broken: %s", when, b)
	}
	for node, dir := range s.sims {
		seen, err := simgpu.Violations(dir)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, v := range seen {
			s.t.Errorf("%s: GPU %s of %s: %s became active beside %s", when, v.UUID, node, v.Holder, v.ActiveHolder)
		}
	}
	if b := s.status().Books.BalanceSeconds; b != 0 {
		s.t.Errorf("%s: the books are off by %g GPU-seconds", when, b)
	}
}

// end takes the floor down in order, then looks for what is left of it.
func (s *site) end() {
	if s.t.Failed() {
		s.showLogs()
	}
	if s.socket != "" && s.call("GET", "/v1/status", nil, &status{}) == nil {
		s.endHolders()
	}
	for name, p := range s.procs {
		_ = p.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.ended:
		case <-time.After(settleLimit):
			s.t.Errorf("%s does not end by SIGTERM", name)
			_ = p.Process.Kill()
			<-p.ended
		}
	}
	s.http.CloseIdleConnections()
	for pid, what := range s.leftOver() {
		s.t.Errorf("process %d outlives the floor: %s", pid, what)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Error(err)
	}
}

// endHolders cancels and deletes everything and waits for the proofs.
func (s *site) endHolders() {
	st := s.status()
	for _, j := range st.Jobs {
		if !j.ended() {
			_ = s.call("POST", "/v1/jobs/"+j.Name+"/cancel", nil, nil) // may end by itself meanwhile
		}
	}
	for _, m := range st.Models {
		_ = s.call("DELETE", "/v1/models/"+m.Name, nil, nil)
	}
	deadline := time.After(settleLimit)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		st, n := s.status(), 0
		for _, j := range st.Jobs {
			if !j.ended() {
				n++
			}
		}
		if n+len(st.Models) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Errorf("%d jobs and %d models do not end", n, len(st.Models))
			return
		}
	}
}

// leftOver finds processes that run the floor's program.
func (s *site) leftOver() map[int]string {
	out := map[int]string{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		exe, err := os.Readlink(filepath.Join(d, "exe"))
		if err != nil || strings.TrimSuffix(exe, " (deleted)") != s.exe {
			continue
		}
		raw, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		out[pid] = strings.ReplaceAll(string(raw), "\x00", " ")
	}
	return out
}

// showLogs writes the ends of the logs of a failed test.
func (s *site) showLogs() {
	const most = 6 << 10
	for name := range s.procs {
		raw, err := os.ReadFile(filepath.Join(s.dir, name+".log"))
		if err == nil {
			s.t.Logf("the end of %s.log:\n%s", name, raw[max(0, len(raw)-most):])
		}
	}
}
