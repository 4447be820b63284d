package record

import (
	"encoding/hex"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"sluice/slo"
)

// full is a record with every field set.
func full() *Record {
	r := &Record{
		StartUnixNs: 1_700_000_000_123_456_789, QueueMs: 1.5, TTFTMs: 20.25, ITLMs: 3, E2EMs: 100.125,
		Client: "10.0.0.9", Method: "POST", Endpoint: "/v1/chat/completions", Tenant: "web", Key: "k1", Model: "chat",
		Version: "v2", Replica: "r1", Class: "interactive", Stream: true, Status: 200, Outcome: slo.OK, Code: "none",
		InputTokens: 7, OutputTokens: 3, BytesIn: 99, BytesOut: 1234,
		Trace: Context{TraceID: [16]byte{0xab, 1}, SpanID: [8]byte{0xcd, 2}, Flags: Sampled}, Parent: [8]byte{0xef},
	}
	r.SetID([]byte("req-1"))
	first := r.Begin("r0")
	first.Status, first.Outcome, first.E2EMs = 503, slo.UpstreamError, 2
	first.SetUpstreamID([]byte("a1"))
	second := r.Begin("r1")
	second.Version, second.Status, second.AtMs, second.E2EMs = "v2", 200, 3, 97
	second.SetUpstreamID([]byte("b1"))
	return r
}

func TestLine(t *testing.T) {
	const want = `{"time":"2023-11-14T22:13:20.123Z","requestId":"req-1","traceId":"ab010000000000000000000000000000","client":"10.0.0.9",` +
		`"tenant":"web","key":"k1","method":"POST","endpoint":"/v1/chat/completions","model":"chat","version":"v2","replica":"r1",` +
		`"class":"interactive","stream":true,"status":200,"outcome":"ok","code":"none","queueMs":1.500,"ttftMs":20.250,"itlMs":3.000,` +
		`"e2eMs":100.125,"inputTokens":7,"outputTokens":3,"bytesIn":99,"bytesOut":1234,"tries":[` +
		`{"replica":"r0","upstreamRequestId":"a1","status":503,"outcome":"upstream_error","e2eMs":2.000},` +
		`{"replica":"r1","upstreamRequestId":"b1","status":200,"outcome":"ok","atMs":3.000,"e2eMs":97.000}]}` + "\n"
	if got := string(full().AppendLine(nil)); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	var empty Record
	if got := string(empty.AppendLine(nil)); got != `{"time":"1970-01-01T00:00:00.000Z","requestId":"","stream":false,"status":0,"outcome":"ok",`+
		`"inputTokens":0,"outputTokens":0,"bytesIn":0,"bytesOut":0}`+"\n" {
		t.Fatal(got)
	}
}

// hostile is text that would forge lines, colours or markup where it is written raw.
const hostile = "x\"}\n{\"outcome\":\"ok\"}\r\x00\x1b[31m\u2028\u2029\u0085\x7f<script>\xff\\"

// setHostile puts the text in every field that takes one.
func setHostile(r *Record, text string) {
	v := reflect.ValueOf(r).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.String {
			f.SetString(text)
		}
	}
	r.SetID([]byte(text))
	try := r.Begin(text)
	try.Version = text
	try.SetUpstreamID([]byte(text))
}

func TestCase_SEC_10_one_request_one_line(t *testing.T) {
	for _, text := range []string{hostile, strings.Repeat(hostile, 2_000)} {
		var r Record
		setHostile(&r, text)
		line := string(r.AppendLine(nil))
		if strings.Count(line, "\n") != 1 || strings.ContainsAny(line[:len(line)-1], "\r\x00\x1b\u2028\u2029\u0085\x7f<>") {
			t.Fatalf("%.300q", line)
		}
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		if id := m["requestId"].(string); len(id) > MaxIDBytes || strings.Trim(id, "?abcdefghijklmnopqrstuvwxyz0123456789:") != "" {
			t.Fatalf("%q", id)
		}
		if !json.Valid(r.AppendSpan(nil)) {
			t.Fatal("the span is no JSON")
		}
	}
}

func TestFurtherTriesAreCounted(t *testing.T) {
	var r Record
	for i := range MaxTries + 2 {
		if try := r.Begin("r"); (try == nil) != (i >= MaxTries) {
			t.Fatal(i)
		}
	}
	if line := string(r.AppendLine(nil)); !strings.Contains(line, `"furtherTries":2`) || len(r.Tries()) != MaxTries {
		t.Fatal(line)
	}
	r.Reset()
	if !reflect.DeepEqual(r, Record{}) {
		t.Fatal("something is left")
	}
}

// otlpSpan is a span as a receiver reads it.
type otlpSpan struct {
	TraceID, SpanID, ParentSpanID, Name string
	Kind                                int
	StartTimeUnixNano, EndTimeUnixNano  string
	Attributes                          []attribute
	Events                              []struct {
		TimeUnixNano, Name string
		Attributes         []attribute
	}
	Status *struct {
		Code    int
		Message string
	}
}

type attribute struct {
	Key   string
	Value map[string]any
}

func spanOf(t *testing.T, r *Record) (otlpSpan, map[string]any) {
	t.Helper()
	var s otlpSpan
	if err := json.Unmarshal(r.AppendSpan(nil), &s); err != nil {
		t.Fatalf("%v: %s", err, r.AppendSpan(nil))
	}
	return s, values(s.Attributes)
}

func values(list []attribute) map[string]any {
	out := map[string]any{}
	for _, a := range list {
		for _, v := range a.Value {
			out[a.Key] = v
		}
	}
	return out
}

func TestSpan(t *testing.T) {
	s, attrs := spanOf(t, full())
	if s.TraceID != "ab010000000000000000000000000000" || s.SpanID != "cd02000000000000" || s.ParentSpanID != "ef00000000000000" ||
		s.Name != "chat chat" || s.Kind != 2 || s.Status != nil ||
		s.StartTimeUnixNano != "1700000000123456789" || s.EndTimeUnixNano != "1700000000223581789" {
		t.Fatalf("%+v", s)
	}
	for name, want := range map[string]any{
		"gen_ai.operation.name": "chat", "gen_ai.request.model": "chat", "gen_ai.usage.input_tokens": "7", "gen_ai.usage.output_tokens": "3",
		"http.request.method": "POST", "http.route": "/v1/chat/completions", "http.response.status_code": "200", "client.address": "10.0.0.9",
		"sluice.request_id": "req-1", "sluice.outcome": "ok", "sluice.tenant": "web", "sluice.key": "k1", "sluice.class": "interactive",
		"sluice.version": "v2", "sluice.replica": "r1", "sluice.queue_ms": 1.5, "sluice.ttft_ms": 20.25, "sluice.itl_ms": 3.0, "error.type": nil,
	} {
		if attrs[name] != want {
			t.Errorf("%s is %v, want %v", name, attrs[name], want)
		}
	}
	if len(s.Events) != 3 || s.Events[0].Name != "sluice.try" || s.Events[2].Name != "sluice.first_token" {
		t.Fatalf("%+v", s.Events)
	}
	if e := values(s.Events[0].Attributes); e["sluice.upstream_request_id"] != "a1" || e["sluice.outcome"] != "upstream_error" || e["http.response.status_code"] != "503" {
		t.Fatalf("%v", e)
	}
}

func TestSpanStatus(t *testing.T) {
	for _, c := range []struct {
		endpoint string
		status   int
		outcome  slo.Outcome
		name     string
		failed   bool
	}{
		{"/v1/chat/completions", 200, slo.OK, "chat m", false},
		{"/v1/completions", 400, slo.BadRequest, "text_completion m", false}, // the client's fault is no error of the server
		{"/v1/embeddings", 502, slo.UpstreamLost, "embeddings m", true},
		{"/v1/chat/completions", 200, slo.UpstreamLost, "chat m", true}, // in mid-stream
		{"/v1/chat/completions", 200, slo.ClientGone, "chat m", false},
		{"/v1/models", 200, slo.OK, "/v1/models", false},
		{"", 404, slo.BadRequest, "request", false},
	} {
		s, attrs := spanOf(t, &Record{Endpoint: c.endpoint, Status: c.status, Outcome: c.outcome, Model: "m"})
		if s.Name != c.name || (s.Status != nil) != c.failed || (attrs["error.type"] != nil) != (c.outcome != slo.OK) {
			t.Errorf("%+v: %+v %v", c, s, attrs)
		}
		if c.failed && (s.Status.Code != 2 || s.Status.Message != c.outcome.String()) {
			t.Errorf("%+v: %+v", c, s.Status)
		}
	}
}

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestParseContext(t *testing.T) {
	for text, ok := range map[string]bool{
		parent:                           true,
		parent[:53] + "00":               true,
		"cc" + parent[2:]:                true, // a later version
		"cc" + parent[2:] + "-more":      true,
		"cc" + parent[2:] + ".more":      false,
		parent + "-more":                 false,
		parent + " ":                     false,
		"ff" + parent[2:]:                false,
		strings.ToUpper(parent):          false,
		parent[:54]:                      false,
		strings.Repeat("x", len(parent)): false,
		"":                               false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": false,
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": false,
		"00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01": false,
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x": false,
	} {
		c, got := ParseContext([]byte(text))
		if got != ok || c.Valid() != ok {
			t.Errorf("%q: %v, want %v", text, got, ok)
		}
		if ok && (hex.EncodeToString(c.TraceID[:]) != parent[3:35] || hex.EncodeToString(c.SpanID[:]) != parent[36:52]) {
			t.Errorf("%q: %+v", text, c)
		}
	}
	c, _ := ParseContext([]byte(parent[:53] + "ff"))
	if got := string(c.Append(nil)); got != parent {
		t.Fatal(got)
	}
}

func FuzzParseContext(f *testing.F) {
	f.Add([]byte(parent))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, ok := ParseContext(b)
		if !ok {
			return
		}
		if again, ok := ParseContext(c.Append(nil)); !ok || again != c {
			t.Fatalf("%q: %+v became %+v", b, c, again)
		}
	})
}

func TestValidState(t *testing.T) {
	for text, ok := range map[string]bool{
		"": false, "a=1": true, "a=1, b=2": true, "a=\x00": false, "a=é": false, "a=1\r\nX: y": false,
		strings.Repeat("a", 513): false, strings.Repeat(",", 32): false, strings.Repeat("a=1,", 31) + "a=1": true,
	} {
		if ValidState([]byte(text)) != ok {
			t.Errorf("%q: want %v", text, ok)
		}
	}
}

func TestAppendingAllocatesNothing(t *testing.T) {
	r, buf := full(), make([]byte, 0, 8192)
	if n := testing.AllocsPerRun(100, func() { buf = r.AppendSpan(r.AppendLine(buf[:0])) }); n > 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkLine(b *testing.B) {
	r, buf := full(), make([]byte, 0, 8192)
	for b.Loop() {
		buf = r.AppendLine(buf[:0])
	}
}
