package agent

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sluice/nodes"
	"sluice/nodes/agent/hold"
	"sluice/nodes/simgpu"
)

// A holder's whole life: prepare, start, readings, stop, proof, forget.
func TestHolderLife(t *testing.T) {
	s := newSite(t, 2)
	s.start()
	spec := s.job("a", []string{"G0"}, "sleeper")
	port := s.must(nodes.Order{ID: "a:prepare:1", Kind: nodes.OrderPrepare, Holder: "a", Generation: 1, Spec: spec}).Port
	if port < 21000 || port > 30999 {
		t.Fatalf("master port %d", port)
	}
	if st := s.await("a", nodes.StatePrepared); st.Pid != 0 {
		t.Fatalf("prepared, and a process: %+v", st)
	}
	s.begin(nodes.OrderStart, spec)
	st := s.await("a", nodes.StateRunning)
	if !alive(st.Pid) {
		t.Fatalf("pid %d is not there", st.Pid)
	}
	eventually(t, "readings name the holder", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := len(s.read)
		return n > 0 && len(s.read[n-1].GPUs[0].ActiveHolders) == 1 && s.read[n-1].GPUs[0].ActiveHolders[0] == "a" &&
			len(s.read[n-1].GPUs[0].Foreign) == 0
	})
	if a := s.order(nodes.Order{Kind: nodes.OrderForget, Holder: "a", Generation: 1}); !strings.Contains(a.Err, ErrState.Error()) {
		t.Fatalf("forgot a running holder: %+v", a)
	}
	s.do(nodes.OrderStop, spec)
	st = s.await("a", nodes.StateGone)
	if !st.Exited || st.ExitCode != 0 {
		t.Fatalf("%+v", st)
	}
	s.mu.Lock()
	if got, want := fmt.Sprint(s.states["a"]), "[prepared starting running ending gone]"; got != want {
		t.Errorf("states %s, want %s", got, want)
	}
	s.mu.Unlock()
	forget := nodes.Order{ID: "a:forget:1", Kind: nodes.OrderForget, Holder: "a", Generation: 1}
	s.must(forget)
	eventually(t, "directory goes", func() bool { return !exists(filepath.Join(s.args.Data, "holders", "a")) })
	// A later holder of the same name, with orders of the same ids.
	again := s.must(nodes.Order{ID: "a:prepare:1", Kind: nodes.OrderPrepare, Holder: "a", Generation: 1, Spec: spec})
	s.await("a", nodes.StatePrepared)
	if again.Port == port {
		t.Errorf("the second got the port of the first")
	}
	s.begin(nodes.OrderStart, spec)
	s.await("a", nodes.StateRunning)
	s.do(nodes.OrderKill, spec)
	s.await("a", nodes.StateGone)
	s.must(forget)
	if exists(filepath.Join(s.args.Data, "holders", "a")) {
		t.Error("the second was not forgotten")
	}
}

// Terms and ids: an older term is refused, a known id gets its earlier answer
// and has no second effect, also after a restart.
func TestTermsAndIDs(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	spec := s.job("a", []string{"G0"}, "sleeper")
	first := nodes.Order{ID: "x1", Term: 5, Kind: nodes.OrderPrepare, Holder: "a", Generation: 1, Spec: spec}
	s.mu.Lock()
	s.term = 5
	s.mu.Unlock()
	port := s.must(first).Port
	old := s.order(nodes.Order{ID: "x2", Term: 4, Kind: nodes.OrderStart, Holder: "a", Generation: 1, Spec: spec})
	if !strings.Contains(old.Err, ErrOldTerm.Error()) {
		t.Fatalf("an older term was obeyed: %+v", old)
	}
	if a := s.order(nodes.Order{Kind: nodes.OrderStart, Holder: "a", Generation: 2, Spec: withGeneration(spec, 2)}); !strings.Contains(a.Err, ErrGeneration.Error()) {
		t.Fatalf("another generation was obeyed: %+v", a)
	}
	s.stop()
	s.start()
	if h := s.lastHello(); h.Term != 5 || len(h.Holders) != 1 || h.Holders[0].State != nodes.StatePrepared {
		t.Fatalf("after a restart: %+v", h)
	}
	if a := s.must(first); a.Port != port {
		t.Fatalf("a known id got port %d, earlier %d", a.Port, port)
	}
	if a := s.order(nodes.Order{ID: "x3", Term: 4, Kind: nodes.OrderKill, Holder: "a", Generation: 1}); !strings.Contains(a.Err, ErrOldTerm.Error()) {
		t.Fatalf("the term was forgotten: %+v", a)
	}
	s.do(nodes.OrderKill, spec)
	s.await("a", nodes.StateGone)
}

func withGeneration(spec *nodes.HolderSpec, g int64) *nodes.HolderSpec {
	c := *spec
	c.Generation = g
	return &c
}

// A leader of an older term is hung up on.
func TestOldLeader(t *testing.T) {
	s := newSite(t, 1)
	s.term = 7
	s.start()
	s.must(nodes.Order{Kind: nodes.OrderKill, Holder: "nobody"})
	s.mu.Lock()
	s.term = 6
	s.mu.Unlock()
	before := s.helloCount()
	eventually(t, "agent hangs up and comes again", func() bool { return s.helloCount() > before })
}

// Orders that cannot be obeyed are refused with the reason.
func TestRefusals(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	refused := func(what string, want error, o nodes.Order) {
		t.Helper()
		if o.Holder == "" && o.Spec != nil {
			o.Holder, o.Generation = o.Spec.ID, o.Spec.Generation
		}
		if a := s.order(o); !strings.Contains(a.Err, want.Error()) {
			t.Errorf("%s: %q, want %q", what, a.Err, want)
		}
	}
	spec := s.job("a", []string{"G9"}, "sleeper")
	refused("unknown GPU", ErrGPUs, nodes.Order{Kind: nodes.OrderPrepare, Spec: spec})
	spec = s.job("a", []string{"G0"}, "sleeper")
	spec.Workdir = "/no/such/place"
	refused("workdir", ErrFiles, nodes.Order{Kind: nodes.OrderPrepare, Spec: spec})
	spec.Workdir, spec.User = "", "nobody-of-this-name"
	refused("user", ErrFiles, nodes.Order{Kind: nodes.OrderPrepare, Spec: spec})
	spec.User, spec.Command = "", []string{"no-such-command-here"}
	refused("command", ErrFiles, nodes.Order{Kind: nodes.OrderPrepare, Spec: spec})
	spec = s.job("../a", []string{"G0"}, "sleeper")
	refused("name", ErrBadOrder, nodes.Order{Kind: nodes.OrderPrepare, Spec: spec})
	spec = s.trainer("a", "G0")
	spec.ActiveBytes = gpuBytes + 1
	refused("memory", ErrGPUs, nodes.Order{Kind: nodes.OrderPrepare, Spec: spec})
	refused("wake of nobody", ErrUnknownHolder, nodes.Order{Kind: nodes.OrderWake, Holder: "b"})
	spec = s.job("a", []string{"G0"}, "sleeper")
	s.begin(nodes.OrderStart, spec)
	s.await("a", nodes.StateRunning)
	refused("taken", ErrGPUs, nodes.Order{Kind: nodes.OrderPrepare, Spec: s.job("b", []string{"G0"}, "sleeper")})
	refused("no protocol", ErrState, nodes.Order{Kind: nodes.OrderRankPrepare, Holder: "a", Generation: 1, StopID: "s", Mode: nodes.StopYield})
}

// A process that nobody placed fences its GPU, by name; so does a bad device.
func TestForeignAndBadGPUs(t *testing.T) {
	s := newSite(t, 3)
	s.start()
	dev, err := simgpu.Open(s.args.Sim, "G0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := dev.Attach("a") // the name of a holder does not make it one
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Close()
	_ = simgpu.SetXID(s.args.Sim, "G1", 79)
	_ = simgpu.SetLost(s.args.Sim, "G2", true)
	for _, g := range []string{"G0", "G1", "G2"} {
		spec := s.job("a", []string{g}, "sleeper")
		a := s.order(nodes.Order{Kind: nodes.OrderPrepare, Holder: "a", Generation: 1, Spec: spec})
		if !strings.Contains(a.Err, ErrGPUs.Error()) {
			t.Errorf("%s: %+v", g, a)
		}
	}
	eventually(t, "readings tell", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.read) == 0 {
			return false
		}
		r := s.read[len(s.read)-1].GPUs
		return len(r[0].Foreign) == 1 && strings.HasPrefix(r[0].Foreign[0], fmt.Sprintf("pid %d (", os.Getpid())) &&
			strings.Contains(r[1].BadReason, "XID 79") && r[2].Lost && r[2].BadReason != ""
	})
}

// FILL-10: a grandchild that outlives the command, in a session of its own,
// keeps the GPU; the holder is gone only when it is.
func TestCase_FILL_10_Grandchildren(t *testing.T) {
	for _, marks := range []bool{false, true} {
		t.Run(fmt.Sprintf("marks=%v", marks), func(t *testing.T) {
			s := newSite(t, 1)
			s.args.NoCgroup = marks
			s.start()
			spec := s.job("a", []string{"G0"}, "stubborn")
			s.begin(nodes.OrderStart, spec)
			eventually(t, "grandchild computes", func() bool {
				r, err := simgpu.Read(s.args.Sim)
				return err == nil && len(r[0].Procs) == 1 && r[0].Procs[0].Active
			})
			s.must(nodes.Order{Kind: nodes.OrderStop, Holder: "a", Generation: 1, GraceMs: 100})
			st := s.await("a", nodes.StateGone)
			if st.ExitCode != 128+int(syscall.SIGKILL) {
				t.Errorf("%+v", st)
			}
			if r, _ := simgpu.Read(s.args.Sim); len(r[0].Procs) != 0 {
				t.Errorf("gone, and on the GPU: %+v", r[0].Procs)
			}
			// A command that exits by itself leaves nothing either.
			spec = s.job("b", []string{"G0"}, "stubborn", "leave")
			s.begin(nodes.OrderStart, spec)
			if st := s.await("b", nodes.StateGone); st.ExitCode != 7 || !st.Exited {
				t.Errorf("%+v", st)
			}
			if r, _ := simgpu.Read(s.args.Sim); len(r[0].Procs) != 0 {
				t.Errorf("gone, and on the GPU: %+v", r[0].Procs)
			}
		})
	}
}

// A command that cannot start, and one stopped by its own signal.
func TestExitCodes(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	spec := s.job("a", nil, "sleeper")
	spec.Command = []string{"/bin/sh", "-c", "exit 9"}
	s.begin(nodes.OrderStart, spec)
	if st := s.await("a", nodes.StateGone); st.ExitCode != 9 || st.Reason != "exited with code 9" {
		t.Errorf("%+v", st)
	}
	spec = s.job("b", nil, "sleeper")
	spec.Rank.StopSignal = "SIGUSR1"
	s.begin(nodes.OrderStart, spec)
	s.await("b", nodes.StateRunning)
	eventually(t, "it listens for signals", func() bool {
		log, _ := os.ReadFile(filepath.Join(s.args.Data, "holders", "b", hold.LogFile))
		return bytes.Contains(log, []byte("sleeper runs b in 1"))
	})
	s.do(nodes.OrderStop, spec)
	if st := s.await("b", nodes.StateGone); st.ExitCode != 10 {
		t.Errorf("%+v", st)
	}
}

// A killed shim: the holder counts as failed and is ended.
func TestShimLost(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	spec := s.job("a", []string{"G0"}, "sleeper")
	s.begin(nodes.OrderStart, spec)
	st := s.await("a", nodes.StateRunning)
	shim, err := hold.ReadProcess(filepath.Join(s.args.Data, "holders", "a"), hold.ShimFile)
	if err != nil {
		t.Fatal(err)
	}
	_ = shim.Signal(syscall.SIGKILL)
	end := s.await("a", nodes.StateGone)
	if !end.Exited || end.ExitCode != -1 || end.Reason != "shim lost" {
		t.Errorf("%+v", end)
	}
	if alive(st.Pid) {
		t.Errorf("pid %d outlived its shim", st.Pid)
	}
}

// The log is bounded, and its end can be read and followed.
func TestLogBound(t *testing.T) {
	s := newSite(t, 1)
	s.args.LogMaxBytes = 32 << 10
	s.start()
	s.begin(nodes.OrderStart, s.job("a", nil, "chatty"))
	st := s.await("a", nodes.StateGone)
	if st.ExitCode != 5 {
		t.Errorf("%+v", st)
	}
	for _, f := range []string{hold.LogFile, hold.OldLog} {
		info, err := os.Stat(filepath.Join(s.args.Data, "holders", "a", f))
		if err != nil || info.Size() > 32<<10 {
			t.Errorf("%s: %v %v", f, info, err)
		}
	}
	base := "http://" + s.lastHello().Node.AgentAddr
	for query, want := range map[string]int{"tailBytes=20000&follow=true": 20000, "tailBytes=10": 10} {
		resp, err := http.Get(base + "/v1/holders/a/log?" + query)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if len(body) != want || !bytes.HasSuffix(body, []byte("last line\n")) {
			t.Errorf("%s: %d bytes, end %q", query, len(body), body[max(0, len(body)-20):])
		}
	}
	resp, err := http.Get(base + "/v1/holders/..%2f..%2fx/log")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("a name with slashes: %s", resp.Status)
	}
	http.DefaultClient.CloseIdleConnections()
}

// Without any leader gangs end after the limit; replicas go on.
func TestLeaderless(t *testing.T) {
	s := newSite(t, 2)
	s.args.LeaderlessMs = 700
	s.start()
	gang, rep := s.job("a", []string{"G0"}, "sleeper"), s.replica("r", "G1")
	s.begin(nodes.OrderStart, gang)
	s.begin(nodes.OrderStart, rep)
	s.await("a", nodes.StateRunning)
	s.await("r", nodes.StateReady)
	s.mu.Lock()
	s.silent = true
	s.mu.Unlock()
	if st := s.await("a", nodes.StateGone); !strings.Contains(st.Reason, "no leader") {
		t.Errorf("%+v", st)
	}
	if st := s.status("r"); st.State != nodes.StateReady {
		t.Errorf("%+v", st)
	}
}
