package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/gateway/admin"
	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/slo"
)

// facts is a controller without a floor, for verbs.
type facts struct {
	mu     sync.Mutex
	state  *registry.State
	fleet  *nodes.Fleet
	events []admin.Recorded
}

func (f *facts) Read(fn func(*registry.State, *nodes.Fleet, int64)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(f.state, f.fleet, 5000)
}

func (f *facts) Submit(_ context.Context, c registry.Command) ([]registry.Event, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.AtMs = 1000
	events, err := f.state.Apply(&c)
	for _, e := range events {
		f.events = append(f.events, admin.Recorded{Seq: int64(len(f.events) + 1), Event: e})
	}
	return events, err
}

func (f *facts) Headroom() map[string]slo.Headroom { return nil }
func (f *facts) Waiting() []admin.Waiting          { return nil }
func (f *facts) ServeAgent(context.Context, io.ReadWriteCloser, string) error {
	return nil
}

func (f *facts) Events(since int64, limit int) ([]admin.Recorded, int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	newest := int64(len(f.events))
	if since >= newest || limit == 0 {
		return nil, newest
	}
	out := f.events[since:min(newest, since+int64(limit))]
	return out, out[len(out)-1].Seq
}

func (f *facts) WaitEvents(ctx context.Context, _ int64) { <-ctx.Done() }

// withServer starts a control port and points the verbs at it.
func withServer(t *testing.T) *facts {
	t.Helper()
	f := &facts{state: registry.New(), fleet: nodes.NewFleet()}
	srv, err := admin.New(admin.Config{Controller: f, Audit: io.Discard, Version: "test", CAHash: func() ([32]byte, error) { return [32]byte{1}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "c.sock")
	ln, err := admin.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(ln)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		srv.Shutdown(ctx)
	})
	t.Setenv("SLUICE_SERVER", "unix:"+path)
	t.Setenv("SLUICE_TOKEN", "")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	return f
}

// sluice runs one command line and returns what it printed.
func sluice(t *testing.T, want int, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if code := run(t.Context(), args, strings.NewReader(""), &out, &out); code != want {
		t.Fatalf("sluice %s: exit %d, want %d:\n%s", strings.Join(args, " "), code, want, out.String())
	}
	return out.String()
}

func TestVerbs(t *testing.T) {
	f := withServer(t)
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "spec.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	says := func(got string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%q lacks %q", got, w)
			}
		}
	}
	node := nodes.Node{ID: "n1", GPUs: []nodes.GPU{{UUID: "GPU-a", MemoryBytes: 80 << 30}}}
	if _, err := f.Submit(t.Context(), registry.Command{NodeSeen: &node}); err != nil {
		t.Fatal(err)
	}
	says(sluice(t, exitOK, "apply", "-f", "../../examples/floor.yaml"), "tenant/web: set", "model/support: v1", "job/nightly: pending")
	says(sluice(t, exitRefused, "apply", "-f", "../../examples/floor.yaml"), "tenant/web was applied before", "floor.yaml:", "an object of that name exists", "cancel the old one first")
	says(sluice(t, exitRefused, "model", "apply", "-f", file("name: m\nurl: http://h:1\ntenant: nobody\n")), "tenant", `there is no tenant "nobody"`, "sluice tenant apply")
	says(sluice(t, exitOK, "model", "list"), "MODEL", "support")
	says(sluice(t, exitOK, "model", "describe", "support"), "command:", "2 GPUs each")
	says(sluice(t, exitOK, "model", "describe", "support", "-o", "yaml"), "name: support", "maxInFlight: 64")
	says(sluice(t, exitOK, "job", "submit", "bert", "--world", "1-4", "--env", "A=b", "--grace", "2m", "--active-memory", "1GiB", "--", "python", "-c", "x --y"), "job/bert: pending")
	if j := f.state.Jobs["bert"].Spec; j.MaxWorld != 4 || j.GraceMs != 120_000 || j.Env["A"] != "b" || j.ActiveBytes != 1<<30 || len(j.Command) != 3 || !filepath.IsAbs(j.Workdir) {
		t.Errorf("job %+v", j)
	}
	says(sluice(t, exitOK, "job", "list"), "bert", "0/1-4")
	says(sluice(t, exitOK, "job", "pause", "bert"), "job/bert")
	says(sluice(t, exitOK, "job", "describe", "bert"), "wanted:", "paused")
	says(sluice(t, exitRefused, "job", "logs", "bert"), "no rank of this job has written a log")
	says(sluice(t, exitOK, "why", "job/bert"), "job bert: pending", "needs at least 1", "Lately:")
	says(sluice(t, exitRefused, "why", "nothing"), "name a job, model")
	says(sluice(t, exitOK, "key", "create", "--tenant", "web", "--model", "support"), "secret:", "sk-", "cannot be shown again")
	says(sluice(t, exitOK, "key", "list"), "web", "support", "interactive")
	says(sluice(t, exitOK, "token", "create", "--role", "operator", "-o", "json"), `"token": "sluice-join.`)
	says(sluice(t, exitOK, "token", "list"), "operator")
	says(sluice(t, exitOK, "tenant", "list"), "default", "web")
	says(sluice(t, exitOK, "node", "cordon", "n1"), "node/n1")
	says(sluice(t, exitOK, "node", "list"), "cordoned")
	says(sluice(t, exitOK, "gpu", "list"), "GPU-a", "80GiB", "n/a")
	says(sluice(t, exitOK, "replica", "list"), "REPLICA")
	says(sluice(t, exitOK, "books"), "trainingKept", "balance", "0.000")
	says(sluice(t, exitOK, "status"), "node n1 cordoned", "job bert pending", "books idle=")
	says(sluice(t, exitOK, "top", "--once"), "gpu n1/0 idle free")
	says(sluice(t, exitOK, "top", "--once", "-o", "json"), `"models":[`)
	says(sluice(t, exitOK, "events"), "job bert pending", "model support v1")
	says(sluice(t, exitOK, "events", "-o", "json", "--since", "0"), `"seq":1,`)
	says(sluice(t, exitOK, "model", "delete", "support"), "model/support: deleted")
	says(sluice(t, exitRefused, "model", "delete", "support"), `there is no model "support"`, "sluice model list")
}

func TestEventsFollowEndsQuietly(t *testing.T) {
	f := withServer(t)
	if _, err := f.Submit(t.Context(), registry.Command{PutTenant: &registry.TenantSpec{Name: "web"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() { code <- run(ctx, []string{"events", "-f"}, nil, w, w); w.Close() }()
	buf := make([]byte, 100)
	n, err := r.Read(buf)
	if err != nil || !strings.Contains(string(buf[:n]), "tenant web") {
		t.Fatalf("%q %v", buf[:n], err)
	}
	go io.Copy(io.Discard, r)
	cancel()
	if c := <-code; c != exitOK {
		t.Errorf("exit %d after an interrupt", c)
	}
}

func TestSettings(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("XDG_DATA_HOME", "/data")
	t.Setenv("SLUICE_SERVER", "")
	t.Setenv("SLUICE_TOKEN", "")
	resolve := func(f clientFlags) (clientSettings, error) { return f.resolve() }
	if s, err := resolve(clientFlags{}); err != nil || s.Server != "unix:/data/sluice/control.sock" {
		t.Errorf("%+v %v", s, err)
	}
	path := filepath.Join(dir, "sluice", "config.yaml")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		os.Chmod(path, mode)
	}
	write("server: https://a:1\ntoken: planted\n", 0o644)
	if _, err := resolve(clientFlags{}); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a readable token: %v", err)
	}
	write("server: https://a:1\ntokn: planted\n", 0o600)
	if _, err := resolve(clientFlags{}); err == nil || strings.Contains(err.Error(), "planted") {
		t.Errorf("an unknown field: %v", err)
	}
	write("server: https://a:1\ntoken: filed\n", 0o600)
	if s, err := resolve(clientFlags{}); err != nil || s.Server != "https://a:1" || s.Token != "filed" {
		t.Errorf("%+v %v", s, err)
	}
	t.Setenv("SLUICE_SERVER", "/run/c.sock")
	t.Setenv("SLUICE_TOKEN", "env")
	if s, err := resolve(clientFlags{}); err != nil || s.Server != "unix:/run/c.sock" || s.Token != "env" {
		t.Errorf("%+v %v", s, err)
	}
	tok := filepath.Join(dir, "tok")
	os.WriteFile(tok, []byte(" flagged\n"), 0o600)
	if s, err := resolve(clientFlags{server: "unix:/x", tokenFile: tok}); err != nil || s.Server != "unix:/x" || s.Token != "flagged" {
		t.Errorf("%+v %v", s, err)
	}
	os.Chmod(tok, 0o640)
	if _, err := resolve(clientFlags{tokenFile: tok}); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a readable token file: %v", err)
	}
}

// The browser's door: one secret, one host, two paths, reading only.
func TestDashboardDoor(t *testing.T) {
	withServer(t)
	cl, err := (&clientFlags{}).open()
	if err != nil {
		t.Fatal(err)
	}
	d := newBrowserDoor(cl, "127.0.0.1:9999")
	ask := func(method, host, path, cookie string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, nil)
		r.Host = host
		if cookie != "" {
			r.AddCookie(&http.Cookie{Name: doorCookie, Value: cookie})
		}
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		return w
	}
	for name, c := range map[string]struct {
		method, host, path, cookie string
		status                     int
	}{
		"no secret":     {"GET", d.host, "/", "", 403},
		"wrong secret":  {"GET", d.host, "/?open=x", "", 403},
		"other host":    {"GET", "evil.example:9999", "/", d.secret, 403},
		"secret":        {"GET", d.host, "/?open=" + d.secret, "", 303},
		"page":          {"GET", d.host, "/", d.secret, 200},
		"status":        {"GET", d.host, "/v1/status", d.secret, 200},
		"other path":    {"GET", d.host, "/v1/keys", d.secret, 404},
		"odd path":      {"GET", d.host, "/v1/status/../keys", d.secret, 404},
		"change":        {"POST", d.host, "/v1/status", d.secret, 403},
		"change by get": {"DELETE", d.host, "/v1/models/chat", d.secret, 403},
	} {
		if w := ask(c.method, c.host, c.path, c.cookie); w.Code != c.status {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, c.status)
		}
	}
	w := ask("GET", d.host, "/?open="+d.secret, "")
	if c := w.Result().Cookies(); len(c) != 1 || !c[0].HttpOnly || c[0].SameSite != http.SameSiteStrictMode || w.Header().Get("Location") != "/" {
		t.Errorf("cookie %v, location %q", c, w.Header().Get("Location"))
	}
	if w := ask("GET", d.host, "/", d.secret); w.Header().Get("Content-Security-Policy") == "" {
		t.Error("the page lost its policy")
	}
}
