package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/gateway/record"
	"sluice/gateway/sink"
	"sluice/slo"
)

func openSink(t testing.TB, cfg sink.Config) *sink.Sink {
	t.Helper()
	s, err := sink.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

// logged is a gateway with an access log.
type logged struct {
	*floor
	sink *sink.Sink
	path string
}

func openLogged(t *testing.T, keys Keys, change func(*Config), engines ...*engine) *logged {
	t.Helper()
	l := &logged{path: filepath.Join(t.TempDir(), "access.log")}
	l.sink = openSink(t, sink.Config{LogFile: l.path})
	l.floor = open(t, keys, change, engines...)
	l.srv.deps.Records = l.sink
	return l
}

// lines ends the log when all requests have ended, and reads it.
func (l *logged) lines() (text string, out []map[string]any) {
	l.t.Helper()
	until(l.t, "all requests ended", func() bool { return l.srv.InFlight() == 0 })
	l.sink.Close(l.t.Context())
	raw, err := os.ReadFile(l.path)
	if err != nil {
		l.t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			l.t.Fatalf("%q: %v", line, err)
		}
		out = append(out, m)
	}
	return string(raw), out
}

func TestCase_GW_31_the_try_log_holds_both_ids(t *testing.T) {
	var second atomic.Bool
	e := startEngine(t, func(a *asked) {
		if !second.Swap(true) {
			a.write("HTTP/1.1 503 X\r\nX-Request-Id: a1\r\nContent-Length: 0\r\n\r\n")
			return
		}
		a.write(strings.Replace(sseHead, "\r\n\r\n", "\r\nX-Request-Id: b 1\r\n\r\n", 1))
		for _, s := range []string{delta("a"), delta("b"), finishEvent, usageEvent, doneEvent} {
			a.write(chunk(s))
		}
		a.write("0\r\n\r\n")
	})
	l := openLogged(t, keyring{hashOf("sk-1"): {ID: "k7", Tenant: "web"}}, nil, e, e)
	a := l.do("/v1/chat/completions?api_key=sk-1", chatStream, "Authorization: Bearer sk-1", "X-Request-Id: mine-1",
		"Traceparent: "+traceparent, "User-Agent: sk-1")
	if a.status != 200 {
		t.Fatalf("%+v", a)
	}
	text, lines := l.lines()
	if len(lines) != 1 || strings.Contains(text, "sk-1") || strings.Contains(text, "hello") {
		t.Fatal(text)
	}
	m := lines[0]
	for name, want := range map[string]any{
		"requestId": "mine-1", "traceId": traceparent[3:35], "client": "127.0.0.1", "tenant": "web", "key": "k7", "method": "POST",
		"endpoint": "/v1/chat/completions", "model": "m", "class": "standard", "stream": true, "status": 200.0, "outcome": "ok",
		"inputTokens": 10.0, "outputTokens": 50.0, "bytesIn": float64(len(chatStream)),
	} {
		if m[name] != want {
			t.Errorf("%s is %v, want %v", name, m[name], want)
		}
	}
	for _, name := range []string{"ttftMs", "e2eMs", "bytesOut"} {
		if n, _ := m[name].(float64); n <= 0 {
			t.Errorf("%s is %v", name, m[name])
		}
	}
	tries := m["tries"].([]any)
	one, two := tries[0].(map[string]any), tries[1].(map[string]any)
	if len(tries) != 2 || one["upstreamRequestId"] != "a1" || one["status"] != 503.0 || one["outcome"] != "upstream_error" ||
		two["upstreamRequestId"] != "b?1" || two["status"] != 200.0 || two["outcome"] != "ok" || one["replica"] == two["replica"] {
		t.Fatal(tries)
	}
	if m["replica"] != two["replica"] {
		t.Fatal(m["replica"])
	}
}

func TestAccessLogTellsHowRequestsEnd(t *testing.T) {
	e := startEngine(t, func(a *asked) {
		if strings.Contains(a.body, "stream") {
			a.write(sseHead + chunk(delta("a")))
			a.conn.Close()
			return
		}
		replyJSON(a, 200, jsonAnswer)
	})
	l := openLogged(t, keyring{hashOf("sk-1"): {ID: "k"}}, nil, e)
	auth := "Authorization: Bearer sk-1"
	for _, request := range []string{
		post("/v1/chat/completions", chat, auth), post("/v1/chat/completions", chatStream, auth), post("/v1/chat/completions", chat),
		post("/v1/chat/completions", `{"model":"sk-1"}`, auth), post("/v1/nothing/sk-1", chat, auth),
		"GET /v1/models?x=1 HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n\r\n", "GET /v1/models/m HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n\r\n",
		"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", "BREW /livez HTTP/1.1\r\nHost: x\r\n\r\n", "nonsense\r\n\r\n",
	} {
		c := l.raw(request)
		readAnswer(bufio.NewReader(c))
		c.Close()
	}
	text, lines := l.lines()
	var got []string
	for _, m := range lines {
		got = append(got, fmt.Sprint(m["endpoint"], " ", m["status"], " ", m["outcome"], " ", m["code"], " ", m["model"]))
		if len(m["requestId"].(string)) < 10 {
			t.Errorf("%v has no id", m)
		}
	}
	want := []string{
		"/v1/chat/completions 200 ok <nil> m", "/v1/chat/completions 200 upstream_lost upstream_lost m",
		"/v1/chat/completions 401 refused_auth invalid_api_key <nil>", "/v1/chat/completions 404 unknown_model model_not_found <nil>",
		"<nil> 404 bad_request not_found <nil>", "/v1/models 200 ok <nil> <nil>", "/v1/models/{id} 200 ok <nil> <nil>",
		"/livez 405 bad_request method_not_allowed <nil>", "<nil> 400 bad_request malformed_request <nil>",
	}
	slices.Sort(got) // a line is written when its answer has gone, so the next one's may be first
	slices.Sort(want)
	if strings.Join(got, "\n") != strings.Join(want, "\n") || strings.Contains(text, "sk-1") {
		t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// header is a header of the last request that the engine got.
func (e *engine) header(name string) string {
	head, _ := e.last()
	for line := range strings.Lines(head) {
		if n, v, ok := strings.Cut(line, ": "); ok && strings.EqualFold(n, name) {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func TestTraceContextPassesWithoutTracing(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, nil, e)
	for _, c := range []struct {
		headers       []string
		parent, state string
	}{
		{nil, "", ""},
		{[]string{"Traceparent: " + traceparent, "Tracestate: a=1", "Tracestate: b=2"}, traceparent, "a=1,b=2"},
		{[]string{"Traceparent: " + traceparent, "Tracestate: a=é"}, traceparent, ""},
		{[]string{"Traceparent: nonsense", "Tracestate: a=1"}, "", ""},
		{[]string{"Traceparent: " + traceparent, "Traceparent: " + traceparent}, "", ""},
		{[]string{"Tracestate: a=1"}, "", ""},
	} {
		f.do("/v1/chat/completions", chat, c.headers...)
		if p, s := e.header("traceparent"), e.header("tracestate"); p != c.parent || s != c.state {
			t.Errorf("%v: %q and %q", c.headers, p, s)
		}
	}
}

// receiver is an OTLP receiver in this process.
func receiver(t *testing.T) (url string, spans func() []map[string]any) {
	var mu sync.Mutex
	var all []map[string]any
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var doc struct {
			ResourceSpans []struct {
				ScopeSpans []struct{ Spans []map[string]any }
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&doc); err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL, err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, doc.ResourceSpans[0].ScopeSpans[0].Spans...)
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/v1/traces", func() []map[string]any { mu.Lock(); defer mu.Unlock(); return all }
}

func TestTracesAreContinuedOrBegun(t *testing.T) {
	e := startEngine(t, func(a *asked) { stream(a, delta("a"), finishEvent, usageEvent, doneEvent) })
	f := open(t, nil, nil, e)
	url, spans := receiver(t)
	s := openSink(t, sink.Config{TracesURL: url})
	f.srv.deps.Records = s
	var sent []record.Context
	for _, headers := range [][]string{
		{"Traceparent: " + traceparent, "Tracestate: a=1"}, {}, {"Traceparent: nonsense", "Tracestate: a=1"},
		{"Traceparent: " + traceparent[:len(traceparent)-1] + "0"}, // not sampled: continued, not exported
	} {
		f.do("/v1/chat/completions", chatStream, headers...)
		c, ok := record.ParseContext([]byte(e.header("traceparent")))
		if !ok {
			t.Fatalf("%v: %q", headers, e.header("traceparent"))
		}
		if (e.header("tracestate") == "a=1") != (len(sent) == 0) {
			t.Errorf("%v: tracestate %q", headers, e.header("tracestate"))
		}
		sent = append(sent, c)
		f.settled(len(sent)) // so that spans come in this order
	}
	s.Close(t.Context())
	client, _ := record.ParseContext([]byte(traceparent))
	if sent[0].TraceID != client.TraceID || sent[0].SpanID == client.SpanID || sent[3].TraceID != client.TraceID || sent[3].IsSampled() {
		t.Fatalf("%x", sent)
	}
	if sent[1].TraceID == sent[2].TraceID || sent[1].TraceID == client.TraceID || !sent[1].IsSampled() {
		t.Fatalf("%x", sent)
	}
	got := spans()
	if len(got) != 3 || s.Stats().Spans != 3 {
		t.Fatalf("%d spans", len(got))
	}
	for i, span := range got {
		c := sent[i]
		if span["traceId"] != fmt.Sprintf("%x", c.TraceID) || span["spanId"] != fmt.Sprintf("%x", c.SpanID) || span["name"] != "chat m" {
			t.Errorf("%v, the engine got %x", span, c)
		}
		parent := any(nil)
		if i == 0 {
			parent = fmt.Sprintf("%x", client.SpanID)
		}
		if span["parentSpanId"] != parent || len(span["events"].([]any)) != 2 {
			t.Errorf("parent %v, want %v; events %v", span["parentSpanId"], parent, span["events"])
		}
	}
}

// plantedSecrets sends one secret by every way there is, and returns everything that the gateway then tells.
func plantedSecrets(t *testing.T, secret string) string {
	var logs bytes.Buffer
	var mu sync.Mutex
	var ends atomic.Int64
	e := startEngine(t, func(a *asked) {
		switch ends.Add(1) % 4 {
		case 0:
			replyJSON(a, 500, `{"error":{"message":"oops"}}`)
		case 1:
			replyJSON(a, 200, jsonAnswer)
		case 2:
			stream(a, delta("a"), doneEvent)
		case 3:
			a.write("garbage\r\n\r\n")
			a.conn.Close()
		}
	})
	f := open(t, keyring{hashOf(secret): {ID: "k", Tenant: "t"}}, nil, e)
	path := filepath.Join(t.TempDir(), "access.log")
	url, spans := receiver(t)
	s := openSink(t, sink.Config{LogFile: path, TracesURL: url, TracesHeader: http.Header{"Authorization": {secret}}})
	f.srv.deps.Records = s
	f.srv.deps.UpstreamAuth = func(string) string { return "Bearer " + secret }
	f.srv.deps.Log = slog.New(slog.NewTextHandler(&lockedWriter{&mu, &logs}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var told strings.Builder
	body := strings.Replace(chat, "hello", secret, 1)
	for _, c := range []struct{ path, body, header string }{
		{"/v1/chat/completions", body, "Authorization: Bearer " + secret}, {"/v1/chat/completions", body, "X-Api-Key: " + secret},
		{"/v1/chat/completions", body, "Authorization: Bearer x" + secret}, {"/v1/chat/completions?key=" + secret, body, "X-Api-Key: " + secret},
		{"/v1/chat/completions", `{"model":"` + secret + `"}`, "X-Api-Key: " + secret}, {"/v1/" + secret, body, "X-Api-Key: " + secret},
		{"/v1/chat/completions", `{"` + secret, "X-Api-Key: " + secret}, {"/v1/chat/completions", body, "Authorization: Basic " + secret},
		{"/v1/chat/completions", body, "Cookie: " + secret + "\r\nUser-Agent: " + secret + "\r\nX-Api-Key: " + secret},
		{"/v1/chat/completions", body, "X-Sluice-Class: " + secret + "\r\nX-Api-Key: " + secret},
		{"/v1/chat/completions", body, "X-Request-Timeout-Ms: " + secret + "\r\nX-Api-Key: " + secret},
		{"/v1/chat/completions", body, "Content-Encoding: " + secret + "\r\nX-Api-Key: " + secret},
		{"/v1/chat/completions", body, "Transfer-Encoding: " + secret}, {"/v1/chat/completions", body, "Bad Name: " + secret},
		{"/v1/models/" + secret, "", "X-Api-Key: " + secret},
	} {
		fmt.Fprintf(&told, "%+v\n", f.do(c.path, c.body, c.header))
	}
	until(t, "all requests ended", func() bool { return f.srv.InFlight() == 0 })
	s.Close(t.Context())
	access, err := os.ReadFile(path)
	if err != nil || bytes.Count(access, []byte("\n")) != 15 {
		t.Fatalf("%v: %s", err, access)
	}
	told.Write(access)
	fmt.Fprintln(&told, spans())
	f.srv.Metrics().WritePrometheus(&told)
	mu.Lock()
	defer mu.Unlock()
	told.Write(logs.Bytes())
	return told.String()
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func TestCase_SEC_03_planted_secret_is_nowhere(t *testing.T) {
	const secret = "sk-planted-5f2b7c"
	told := plantedSecrets(t, secret)
	if at := strings.Index(told, secret); at >= 0 {
		t.Fatalf("…%s…", told[max(0, at-200):min(len(told), at+100)])
	}
	for _, piece := range []string{hashOf(secret), "planted"} {
		if strings.Contains(told, piece) {
			t.Errorf("%q is told", piece)
		}
	}
	if !strings.Contains(told, "gen_ai.request.model") || !strings.Contains(told, `"endpoint"`) {
		t.Fatal("nothing was told at all")
	}
}

func TestCase_SEC_10_log_lines_cannot_be_forged(t *testing.T) {
	e := startEngine(t, func(a *asked) {
		replyJSON(a, 500, "\x1b[31m\n{\"outcome\":\"ok\"}"+strings.Repeat("x", 1<<20), "X-Request-Id: \x1b]0;x\x07")
	})
	l := openLogged(t, nil, nil, e)
	const fake = `{\"outcome\":\"ok\",\"status\":200}`
	n := 0
	for _, c := range []struct{ body, header string }{
		{chat, "X-Request-Id: x\u2028" + fake}, {chat, "User-Agent: \u2028" + fake}, {chat, "X-Request-Id: " + strings.Repeat("y", 4000)},
		{`{"model":"a\n` + fake + `\u2028\u001b[31m\u0000"}`, "A: b"}, {`{"model":"` + strings.Repeat("z", 1<<20) + `"}`, "A: b"},
		{chat, "X-Request-Id: a\tb"}, {chat, "X-Request-Id: a\rb"}, {chat, "X-Request-Id: a\x00b"},
	} {
		l.do("/v1/chat/completions", c.body, c.header)
		n++
	}
	text, lines := l.lines()
	if len(lines) != n || len(text) > n*1024 || strings.ContainsAny(text, "\x1b\x00\r\u2028") {
		t.Fatalf("%d lines, %d bytes: %.2000q", len(lines), len(text), text)
	}
	for _, m := range lines {
		if m["status"] == 200.0 || m["outcome"] == "ok" {
			t.Errorf("%v", m)
		}
	}
}

// A file that cannot be written costs lines, never a request.
func TestFullDiskStopsNobody(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full here")
	}
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, nil, e)
	s := openSink(t, sink.Config{LogFile: "/dev/full"})
	f.srv.deps.Records = s
	for range 20 {
		if a := f.do("/v1/chat/completions", chat); a.status != 200 {
			t.Fatalf("%+v", a)
		}
	}
	for _, sample := range f.settled(20) {
		if sample.Outcome != slo.OK || sample.E2EMs > float64(10*time.Second/time.Millisecond) {
			t.Fatalf("%+v", sample)
		}
	}
	s.Close(t.Context())
	var b bytes.Buffer
	f.srv.Metrics().WritePrometheus(&b)
	if !strings.Contains(b.String(), "sluice_gateway_access_log_dropped_total 20\n") {
		t.Fatal(b.String())
	}
}
