package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/nodes/trust"
	"sluice/slo"
)

func TestMain(m *testing.M) {
	// net/http lingers half a second on a connection that it ends.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// fake is a Controller over real facts.
type fake struct {
	mu       sync.Mutex
	state    *registry.State
	fleet    *nodes.Fleet
	nowMs    int64
	waiting  []Waiting
	headroom map[string]slo.Headroom
	events   []Recorded
	more     chan struct{} // closed and renewed with each event
	refuse   error
	agent    func(ctx context.Context, conn io.ReadWriteCloser, peer string) error
}

func newFake() *fake {
	f := &fake{state: registry.New(), fleet: nodes.NewFleet(), nowMs: 1_000_000, headroom: map[string]slo.Headroom{}, more: make(chan struct{})}
	return f
}

func (f *fake) Read(fn func(*registry.State, *nodes.Fleet, int64)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(f.state, f.fleet, f.nowMs)
}

func (f *fake) Submit(_ context.Context, c registry.Command) ([]registry.Event, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		return nil, f.refuse
	}
	c.AtMs = f.nowMs
	events, err := f.state.Apply(&c)
	for _, e := range events {
		f.recordLocked(e)
	}
	return events, err
}

func (f *fake) record(e registry.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recordLocked(e)
}

func (f *fake) recordLocked(e registry.Event) {
	f.events = append(f.events, Recorded{int64(len(f.events) + 1), e})
	close(f.more)
	f.more = make(chan struct{})
}

func (f *fake) Headroom() map[string]slo.Headroom { return f.headroom }
func (f *fake) Waiting() []Waiting                { return f.waiting }

func (f *fake) ServeAgent(ctx context.Context, conn io.ReadWriteCloser, peer string) error {
	return f.agent(ctx, conn, peer)
}

func (f *fake) Events(since int64, limit int) ([]Recorded, int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	newest := int64(len(f.events))
	if since >= newest {
		return nil, newest
	}
	out := f.events[since:min(newest, since+int64(limit))]
	if len(out) == 0 {
		return nil, newest
	}
	return append([]Recorded(nil), out...), out[len(out)-1].Seq
}

func (f *fake) WaitEvents(ctx context.Context, since int64) {
	for {
		f.mu.Lock()
		have, more := int64(len(f.events)) > since, f.more
		f.mu.Unlock()
		if have {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-more:
		}
	}
}

// door is a server under test with what it wrote.
type door struct {
	*Server
	f      *fake
	audit  *lockedBuffer
	log    *lockedBuffer
	client *http.Client // over the Unix socket
	socket string
}

type lockedBuffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	fail error
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return 0, l.fail
	}
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func open(t *testing.T, change func(*Config)) *door {
	t.Helper()
	d := &door{f: newFake(), audit: &lockedBuffer{}, log: &lockedBuffer{}, socket: filepath.Join(t.TempDir(), "c.sock")}
	cfg := Config{Controller: d.f, Audit: d.audit, Log: slog.New(slog.NewJSONHandler(d.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		CAHash: func() ([32]byte, error) { return [32]byte{7}, nil }, Version: "test", Now: func() time.Time { return time.Unix(0, 0) }}
	if change != nil {
		change(&cfg)
	}
	var err error
	if d.Server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	ln, err := ListenUnix(d.socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- d.Serve(ln) }()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", d.socket)
	}}
	d.client = &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := d.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		tr.CloseIdleConnections()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return d
}

// do sends body (text or a value) over the socket and returns status and answer.
func (d *door) do(t *testing.T, method, path string, body any) (int, string) {
	t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		raw, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		r = bytes.NewReader(raw)
	}
	req, err := http.NewRequest(method, "http://x"+path, r)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := d.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

// refused checks the shape of a refusal.
func (d *door) refused(t *testing.T, method, path string, body any, status int, code, field string) Error {
	t.Helper()
	got, raw := d.do(t, method, path, body)
	var e struct{ Error Error }
	if err := json.Unmarshal([]byte(raw), &e); err != nil {
		t.Fatalf("%s %s: %d %s: not an error body: %v", method, path, got, raw, err)
	}
	if got != status || e.Error.Code != code || e.Error.Field != field {
		t.Fatalf("%s %s: %d %s; want %d %s field %q", method, path, got, raw, status, code, field)
	}
	if e.Error.Remedy == "" || e.Error.Message == "" || e.Error.RequestID == "" {
		t.Fatalf("%s %s: refusal without message, remedy or request id: %s", method, path, raw)
	}
	return e.Error
}

func (d *door) must(t *testing.T, method, path string, body any, into any) {
	t.Helper()
	status, raw := d.do(t, method, path, body)
	if status >= 300 {
		t.Fatalf("%s %s: %d %s", method, path, status, raw)
	}
	if into != nil {
		if err := json.Unmarshal([]byte(raw), into); err != nil {
			t.Fatalf("%s %s: %s: %v", method, path, raw, err)
		}
	}
}

// token makes a token of a role and returns its text.
func (d *door) token(t *testing.T, role Role) string {
	t.Helper()
	tok, rec, err := trust.CreateToken([32]byte{7}, "", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.f.Submit(t.Context(), registry.Command{PutToken: &registry.TokenSpec{ID: rec.ID, Role: string(role), HashHex: rec.HashHex}}); err != nil {
		t.Fatal(err)
	}
	return tok.Reveal()
}

// remote calls the handler as a TCP client would.
func (d *door) remote(method, path, bearer string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	w := httptest.NewRecorder()
	d.Handler().ServeHTTP(w, r)
	return w
}

// floor puts a node with two GPUs, a model with a ready replica and a running
// job into the facts.
func (f *fake) floor(t *testing.T, agentAddr string) {
	t.Helper()
	node := nodes.Node{ID: "n1", AgentAddr: agentAddr, Host: "127.0.0.1", CPUs: 4, AgentVersion: "test", Missing: []string{"power of GPU-a: not supported"},
		GPUs: []nodes.GPU{{UUID: "GPU-a", Name: "Sim", MemoryBytes: 80 << 30}, {UUID: "GPU-b", Index: 1, Name: "Sim", MemoryBytes: 80 << 30, Island: 1}}}
	submit := func(c registry.Command) {
		t.Helper()
		if _, err := f.Submit(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	submit(registry.Command{NodeSeen: &node})
	model := registry.ModelSpec{Name: "chat", Command: []string{"engine", "--port={{port}}", "--api-key", "sk-engine"}, Env: map[string]string{"HF_TOKEN": "hf_planted", "HF_HOME": "/m"}}
	model.Default()
	submit(registry.Command{PutModel: &model})
	job := registry.JobSpec{Name: "bert", Command: []string{"train"}, Env: map[string]string{"WANDB_API_KEY": "wb_planted"}}
	job.Default()
	submit(registry.Command{SubmitJob: &job})
	submit(registry.Command{JobPlace: &registry.JobPlace{Job: "bert", Seq: f.state.Jobs["bert"].Seq, Ranks: []registry.RankPlace{{Rank: 0, Node: "n1", GPUs: []string{"GPU-b"}}}, TimeoutMs: 1000}})
	j := f.state.Jobs["bert"]
	holder := registry.RankHolder("bert", j.Generation, 0)
	f.fleet.Frame("n1", &nodes.Frame{Hello: &nodes.Hello{Node: node, Holders: []nodes.HolderStatus{{ID: holder, Kind: nodes.KindRank, Owner: "bert", Generation: j.Generation, State: nodes.StateRunning}}}}, f.nowMs)
	f.fleet.Frame("n1", &nodes.Frame{Rank: &nodes.RankNote{Holder: holder, Job: "bert", Generation: j.Generation, Kind: "step", Begun: 8, Done: 7, Loss: 0.25, Samples: 700}}, f.nowMs)
	used := int64(3 << 30)
	f.fleet.Frame("n1", &nodes.Frame{Readings: &nodes.Readings{GPUs: []nodes.Reading{{UUID: "GPU-b", UsedBytes: &used}}}}, f.nowMs)
	f.headroom["chat"] = slo.Headroom{Model: "chat", ArrivalRps: 2, DemandRps: 3, CapacityRps: 4, HeadroomRps: 1, NeedReplicas: 1, HorizonMs: 2000, Reason: "because",
		Objectives: []slo.Attainment{{Objective: slo.Objective{Metric: slo.TTFT, Quantile: 0.9, ThresholdMs: 2000}, ObservedMs: 300, Met: true, Fraction: 0.99}}}
	f.waiting = []Waiting{{Object: "chat", Cause: "shortage", Text: "no free GPU"}}
}

var errPlanted = errors.New("planted: /var/lib/secret/path at 10.9.8.7")
