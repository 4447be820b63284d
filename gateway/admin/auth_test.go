package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRoles(t *testing.T) {
	d := open(t, nil)
	operator, agent := d.token(t, RoleOperator), d.token(t, RoleAgent)
	other := "x" // than the id begins with, whatever that is
	if operator[len("sluice-join.")] == 'x' {
		other = "y"
	}
	forged := operator[:len("sluice-join.")] + other + operator[len("sluice-join.")+1:]
	for name, c := range map[string]struct {
		method, path, bearer string
		status               int
	}{
		"nobody":              {"GET", "/v1/status", "", 401},
		"nobody changes":      {"DELETE", "/v1/models/chat", "", 401},
		"nobody scrapes":      {"GET", "/metrics", "", 401},
		"forged":              {"GET", "/v1/status", forged, 401},
		"an api key":          {"GET", "/v1/status", "sk-abc", 401},
		"operator reads":      {"GET", "/v1/status", operator, 200},
		"operator profiles":   {"GET", "/debug/pprof/", operator, 403},
		"agent reads":         {"GET", "/v1/status", agent, 403},
		"agent changes":       {"POST", "/v1/tokens", agent, 403},
		"agent, no upgrade":   {"POST", "/v1/agents/stream", agent, 426},
		"nobody streams":      {"POST", "/v1/agents/stream", "", 401},
		"page without data":   {"GET", "/", "", 200},
		"health without data": {"GET", "/healthz", "", 200},
	} {
		if w := d.remote(c.method, c.path, c.bearer); w.Code != c.status {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, c.status)
		}
	}
	if n := strings.Count(d.audit.String(), `"denied"`); n != 8 {
		t.Errorf("%d denials are on record, want 8:\n%s", n, d.audit.String())
	}
	id := strings.Split(operator, ".")[1]
	d.must(t, "DELETE", "/v1/tokens/"+id, nil, nil)
	if w := d.remote("GET", "/v1/status", operator); w.Code != 401 {
		t.Errorf("a revoked token still works: %d", w.Code)
	}
}

func TestProfilesOnTheSocket(t *testing.T) {
	d := open(t, nil)
	if status, raw := d.do(t, "GET", "/debug/pprof/", nil); status != 200 || !strings.Contains(raw, "goroutine") {
		t.Fatalf("%d %s", status, raw)
	}
}

// Secrets appear in the one answer that makes them, and nowhere else.
func TestCase_SEC_04_SecretsAreShownOnce(t *testing.T) {
	d := open(t, nil)
	d.f.floor(t, "127.0.0.1:1")
	var key NewKey
	d.must(t, "POST", "/v1/keys", KeyRequest{Models: []string{"chat"}}, &key)
	var tok NewToken
	d.must(t, "POST", "/v1/tokens", TokenRequest{Role: RoleOperator}, &tok)
	if !strings.HasPrefix(key.Secret, "sk-") || !strings.HasPrefix(tok.Token, "sluice-join.") {
		t.Fatalf("%+v %+v", key, tok)
	}
	if w := d.remote("GET", "/v1/status", tok.Token); w.Code != 200 {
		t.Fatalf("the new token does not work: %d", w.Code)
	}
	d.refused(t, "DELETE", "/v1/keys/"+key.Secret, nil, 400, "bad_request", "")
	d.refused(t, "DELETE", "/v1/tokens/"+tok.Token, nil, 400, "bad_request", "")
	everything := d.audit.String() + d.log.String()
	for _, path := range []string{"/v1/status", "/v1/keys", "/v1/tokens", "/v1/models", "/v1/models/chat", "/v1/jobs", "/v1/jobs/bert", "/v1/events", "/metrics", "/v1/why/chat", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2"} {
		_, raw := d.do(t, "GET", path, nil)
		everything += raw
	}
	secret := strings.Split(tok.Token, ".")[2]
	for name, planted := range map[string]string{
		"key": key.Secret, "key's hash": d.f.state.Keys[key.ID].HashHex, "token": secret, "token's hash": d.f.state.Tokens[tok.ID].HashHex,
		"model's variable": "hf_planted", "job's variable": "wb_planted", "engine's argument": "sk-engine",
	} {
		if strings.Contains(everything, planted) {
			t.Errorf("the %s is shown somewhere", name)
		}
	}
	if !strings.Contains(everything, Hidden) || !strings.Contains(everything, "/m") {
		t.Error("plain variables should be shown, secret ones replaced")
	}
	d.must(t, "DELETE", "/v1/keys/"+key.ID, nil, nil)
	if len(d.f.state.Keys) != 0 {
		t.Error("the key is still there")
	}
}

func TestAudit(t *testing.T) {
	d := open(t, nil)
	d.must(t, "PUT", "/v1/tenants/web", map[string]any{}, nil)
	d.refused(t, "PUT", "/v1/models/m", map[string]any{"name": "m", "command": []string{"x"}}, 400, "invalid_spec", "command")
	d.f.refuse = errPlanted
	d.refused(t, "PUT", "/v1/tenants/lab", map[string]any{}, 500, "internal", "")
	var got []string
	for line := range strings.Lines(d.audit.String()) {
		var e AuditEntry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if e.Who == "" || e.RequestID == "" || e.At == "" || !strings.HasPrefix(e.Peer, "unix uid:") || e.Role != RoleOperator {
			t.Errorf("incomplete: %s", line)
		}
		got = append(got, e.Action+" "+e.Object+" "+e.Result+" "+e.Code)
	}
	want := "tenant.apply tenant/web asked |tenant.apply tenant/web done |tenant.apply tenant/lab asked |tenant.apply tenant/lab refused internal"
	if strings.Join(got, "|") != want {
		t.Errorf("audit %q, want %q", strings.Join(got, "|"), want)
	}
}

// What cannot be recorded is not done.
func TestAuditFull(t *testing.T) {
	d := open(t, nil)
	d.audit.fail = errors.New("disk full")
	d.refused(t, "PUT", "/v1/tenants/web", map[string]any{}, 503, "audit_unavailable", "")
	if d.f.state.Tenants["web"] != nil {
		t.Error("the change was made")
	}
}

// halfDisk takes a part of one write and fails, then takes all.
type halfDisk struct {
	b    bytes.Buffer
	room int
}

func (h *halfDisk) Write(p []byte) (int, error) {
	if h.room < len(p) {
		n, _ := h.b.Write(p[:h.room])
		h.room = 1 << 20
		return n, errors.New("disk full")
	}
	return h.b.Write(p)
}

// A line that the disk cut short does not spoil the next one.
func TestAuditTornLine(t *testing.T) {
	disk := &halfDisk{room: 10}
	a := &auditLog{now: time.Now, w: disk}
	if a.write(AuditEntry{Action: "first"}) == nil {
		t.Fatal("a cut line counts as written")
	}
	for _, action := range []string{"second", "third"} {
		if err := a.write(AuditEntry{Action: action}); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(disk.b.String(), "\n")
	if len(lines) != 4 || !json.Valid([]byte(lines[1])) || !json.Valid([]byte(lines[2])) || lines[3] != "" {
		t.Fatalf("%q", lines)
	}
}

func TestListenUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "c.sock")
	ln, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	if dir, _ := os.Stat(filepath.Dir(path)); dir.Mode().Perm() != 0o700 {
		t.Errorf("directory's mode %v", dir.Mode())
	}
	if _, err := ListenUnix(path); !errors.Is(err, ErrInUse) {
		t.Fatalf("a second server: %v", err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	ln, err = ListenUnix(path)
	if err != nil {
		t.Fatalf("a dead server's socket: %v", err)
	}
	ln.Close()
	if _, err := ListenUnix("/tmp/" + strings.Repeat("x", 120)); !errors.Is(err, ErrConfig) {
		t.Errorf("a long path: %v", err)
	}
}

func TestNoPlainTCP(t *testing.T) {
	d := open(t, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := d.Serve(ln); !errors.Is(err, ErrConfig) {
		t.Fatalf("plain TCP: %v", err)
	}
	for _, c := range []Config{{}, {Controller: d.f}} {
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
