package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

// server is an engine that runs over real sockets.
type server struct {
	t    testing.TB
	url  string
	http *http.Client
	end  context.CancelFunc
	done chan error
}

func fast() Config {
	c := Default()
	c.Listen, c.Speed, c.DrainMs = "127.0.0.1:0", 1000, 100
	return c
}

// start runs an engine until the test ends and waits for its listener.
func start(t testing.TB, cfg Config) *server {
	t.Helper()
	addr := make(chan string, 1)
	cfg.OnListen = func(a string) { addr <- a }
	ctx, cancel := context.WithCancel(context.Background())
	s := &server{t: t, http: &http.Client{Transport: &http.Transport{}}, end: cancel, done: make(chan error, 1)}
	go func() { s.done <- Run(ctx, cfg) }()
	select {
	case a := <-addr:
		s.url = "http://" + a
	case err := <-s.done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		s.http.CloseIdleConnections()
		if err := <-s.done; err != nil {
			t.Errorf("engine ended with %v", err)
		}
	})
	return s
}

func startHealthy(t testing.TB, cfg Config) *server {
	t.Helper()
	s := start(t, cfg)
	s.until("healthy", func() bool { status, _ := s.get("/health"); return status == 200 })
	return s
}

func (s *server) until(what string, ok func() bool) {
	s.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("not %s within 10 s", what)
		}
	}
}

func (s *server) do(ctx context.Context, method, path, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	return s.http.Do(req)
}

func (s *server) call(method, path, body string) (int, string) {
	s.t.Helper()
	resp, err := s.do(context.Background(), method, path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

func (s *server) get(path string) (int, string) { s.t.Helper(); return s.call("GET", path, "") }
func (s *server) post(path, body string) (int, string) {
	s.t.Helper()
	return s.call("POST", path, body)
}

func (s *server) postOK(path, body string, into any) {
	s.t.Helper()
	status, raw := s.post(path, body)
	if status != 200 {
		s.t.Fatalf("%s: %d %s", path, status, raw)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal([]byte(raw), into); err != nil {
		s.t.Fatalf("%s: %v in %s", path, err, raw)
	}
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

type completion struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Model   string `json:"model"`
	Choices []struct {
		Text    string `json:"text"`
		Message struct{ Role, Content string }
		Delta   struct{ Role, Content string }
		Finish  *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *usage `json:"usage"`
}

// events reads a whole stream.
func (s *server) events(path, body string) []completion {
	s.t.Helper()
	resp, err := s.do(context.Background(), "POST", path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if ct := resp.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
		s.t.Fatalf("content type %q", ct)
	}
	var out []completion
	done := false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok && lines.Text() != "":
			s.t.Fatalf("line %q", lines.Text())
		case data == "[DONE]":
			done = true
		case ok:
			var c completion
			if err := json.Unmarshal([]byte(data), &c); err != nil {
				s.t.Fatalf("%v in %s", err, data)
			}
			out = append(out, c)
		}
	}
	if !done {
		s.t.Fatal("no [DONE]")
	}
	return out
}

func chatBody(extra string) string {
	return `{"model":"sim","messages":[{"role":"system","content":"be br\"ief"},{"role":"user","content":[{"type":"text","text":"hello there"}]}]` + extra + `}`
}

func TestChatStreamedAndWhole(t *testing.T) {
	s := startHealthy(t, fast())
	var whole completion
	s.postOK("/v1/chat/completions", chatBody(`,"max_tokens":40`), &whole)
	text := whole.Choices[0].Message.Content
	if n := len(strings.Fields(text)); n != 40 || whole.Choices[0].Message.Role != "assistant" || *whole.Choices[0].Finish != "length" {
		t.Fatalf("whole answer %+v", whole)
	}
	// "be br\"ief" and "hello there" are 20 bytes.
	if *whole.Usage != (usage{5, 40, 45}) || whole.Object != "chat.completion" || whole.Model != "sim" {
		t.Fatalf("whole answer %+v, usage %+v", whole, whole.Usage)
	}
	for _, interval := range []int{1, 7} {
		cfg := fast()
		cfg.StreamInterval = interval
		s := startHealthy(t, cfg)
		events := s.events("/v1/chat/completions", chatBody(`,"max_completion_tokens":40,"stream":true,"stream_options":{"include_usage":true}`))
		var joined strings.Builder
		for i, ev := range events {
			if ev.ID != events[0].ID || ev.Object != "chat.completion.chunk" {
				t.Fatalf("event %+v", ev)
			}
			if len(ev.Choices) == 1 {
				joined.WriteString(ev.Choices[0].Delta.Content)
				if (ev.Choices[0].Delta.Role == "assistant") != (i == 0) {
					t.Errorf("role in event %d", i)
				}
			}
		}
		if joined.String() != text {
			t.Errorf("streamed %q, whole %q", joined.String(), text)
		}
		last, finish := events[len(events)-1], events[len(events)-2]
		if last.Usage == nil || *last.Usage != *whole.Usage || len(last.Choices) != 0 || *finish.Choices[0].Finish != "length" {
			t.Errorf("end of stream %+v, %+v", finish, last)
		}
		// One token, then one event an interval, the finish and the usage.
		if want := 1 + (39+interval-1)/interval + 2; len(events) != want {
			t.Errorf("interval %d: %d events, want %d", interval, len(events), want)
		}
	}
}

func TestCompletions(t *testing.T) {
	s := startHealthy(t, fast())
	var a, again, other completion
	s.postOK("/v1/completions", `{"model":"sim","prompt":"twelve bytes"}`, &a)
	s.postOK("/v1/completions", `{"model":"sim","prompt":["twelve bytes"]}`, &again)
	s.postOK("/v1/completions", `{"model":"sim","prompt":[1,2,3,4,5]}`, &other)
	n := len(strings.Fields(a.Choices[0].Text))
	if a.Choices[0].Text != again.Choices[0].Text || n < 16 || n > 256 || *a.Choices[0].Finish != "stop" || *a.Usage != (usage{3, n, 3 + n}) {
		t.Errorf("first %+v %+v, again %q", a, a.Usage, again.Choices[0].Text)
	}
	if other.Usage.Prompt != 5 || other.Choices[0].Text == a.Choices[0].Text {
		t.Errorf("token ids: %+v", other)
	}
	events := s.events("/v1/completions", `{"model":"sim","prompt":"twelve bytes","stream":true}`)
	var joined strings.Builder
	for _, ev := range events {
		joined.WriteString(ev.Choices[0].Text)
		if ev.Usage != nil {
			t.Error("usage that nobody asked for")
		}
	}
	if joined.String() != a.Choices[0].Text || *events[len(events)-1].Choices[0].Finish != "stop" {
		t.Errorf("streamed %q", joined.String())
	}
}

func TestEmbeddings(t *testing.T) {
	s := startHealthy(t, fast())
	type answer[E any] struct {
		Data []struct {
			Index     int
			Embedding E
		}
		Usage usage
	}
	var plain answer[[]float32]
	s.postOK("/v1/embeddings", `{"model":"sim","input":["one","two","one"],"dimensions":8}`, &plain)
	if len(plain.Data) != 3 || len(plain.Data[0].Embedding) != 8 || plain.Data[2].Index != 2 || plain.Usage.Prompt != 3 {
		t.Fatalf("%+v", plain)
	}
	norm := 0.0
	for i, x := range plain.Data[0].Embedding {
		norm += float64(x) * float64(x)
		if x != plain.Data[2].Embedding[i] {
			t.Error("one input, two vectors")
		}
	}
	if math.Abs(norm-1) > 1e-5 || plain.Data[0].Embedding[0] == plain.Data[1].Embedding[0] {
		t.Errorf("norm %v", norm)
	}
	var packed answer[string]
	s.postOK("/v1/embeddings", `{"model":"sim","input":"one","dimensions":8,"encoding_format":"base64"}`, &packed)
	raw, err := base64.StdEncoding.DecodeString(packed.Data[0].Embedding)
	if err != nil || len(raw) != 32 {
		t.Fatalf("%d bytes, %v", len(raw), err)
	}
	for i, x := range plain.Data[0].Embedding {
		if math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])) != x {
			t.Fatal("base64 differs from floats")
		}
	}
}

func TestRefusals(t *testing.T) {
	s := startHealthy(t, fast())
	for _, c := range []struct {
		path, body string
		status     int
		part       string
	}{
		{"/v1/chat/completions", `{"model":"other","messages":[{"content":"x"}]}`, 404, "does not exist"},
		{"/v1/chat/completions", `{"model":"sim","messages":[]}`, 400, "messages"},
		{"/v1/chat/completions", `{"model":"sim","messages":[{"content":7}]}`, 400, "messages[0].content"},
		{"/v1/chat/completions", `not json`, 400, "not a request"},
		{"/v1/chat/completions", chatBody(`,"n":17`), 400, "n must be 1 to 16"},
		{"/v1/chat/completions", chatBody(`,"max_tokens":0`), 400, "max_tokens"},
		{"/v1/chat/completions", chatBody(`,"max_tokens":9000000000`), 400, "context length"},
		{"/v1/completions", `{"model":"sim","prompt":["a","b"]}`, 400, "one prompt"},
		{"/v1/completions", `{"model":"sim"}`, 400, "prompt"},
		{"/v1/completions", `{"model":"sim","prompt":"` + strings.Repeat("x", 70000) + `"}`, 400, "context length"},
		{"/v1/completions", `{"model":"sim","prompt":"` + strings.Repeat("x", maxBodyBytes) + `"}`, 413, "above"},
		{"/v1/embeddings", `{"model":"sim","input":[]}`, 400, "input"},
		{"/v1/embeddings", `{"model":"sim","input":"x","dimensions":0}`, 400, "dimensions"},
		{"/v1/embeddings", `{"model":"sim","input":"x","encoding_format":"int"}`, 400, "encoding_format"},
		{"/sleep?level=3", ``, 400, "level"},
	} {
		status, body := s.post(c.path, c.body)
		var e struct {
			Error struct {
				Message string
				Type    string
				Code    int
			}
		}
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			t.Errorf("%s: %v in %s", c.path, err, body)
		}
		if status != c.status || e.Error.Code != c.status || !strings.Contains(e.Error.Message, c.part) || e.Error.Type == "" {
			t.Errorf("%s %.60s: %d %s, want %d with %q", c.path, c.body, status, body, c.status, c.part)
		}
	}
	if _, body := s.get("/v1/models"); !strings.Contains(body, `"id":"sim"`) {
		t.Errorf("models %s", body)
	}
}

func TestFullQueueAnswers503(t *testing.T) {
	cfg := fast()
	cfg.Speed, cfg.MaxBatch, cfg.MaxWaiting, cfg.LoadMs = 1, 1, 1, 0
	s := startHealthy(t, cfg)
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	left := make(chan struct{}, 2)
	for range 2 {
		go func() {
			resp, err := s.do(ctx, "POST", "/v1/completions", `{"model":"sim","prompt":"x","max_tokens":1000,"stream":true}`)
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			left <- struct{}{}
		}()
	}
	s.until("one running, one waiting", func() bool { return s.metric("vllm:num_requests_waiting") == "1" })
	resp, err := s.do(ctx, "POST", "/v1/completions", `{"model":"sim","prompt":"x"}`)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("%d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	// Clients that leave, running or waiting, free their places at once.
	leave()
	<-left
	<-left
	s.until("empty", func() bool {
		return s.metric("vllm:num_requests_running") == "0" && s.metric("vllm:num_requests_waiting") == "0" && s.metric("vllm:kv_cache_usage_perc") == "0"
	})
	if n := s.metric(`vllm:request_success_total{model_name="sim",finished_reason="abort"}`); n != "2" {
		t.Errorf("%s aborted", n)
	}
}

// metric returns the value of the line that begins with name.
func (s *server) metric(name string) string {
	s.t.Helper()
	_, body := s.get("/metrics")
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ") {
			return strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:])
		}
	}
	return "absent"
}

// A client that reads nothing holds up neither its own sequence nor others.
func TestSlowReaderHoldsNobodyUp(t *testing.T) {
	cfg := fast()
	cfg.Speed = 1e6
	s := startHealthy(t, cfg)
	resp, err := s.do(context.Background(), "POST", "/v1/chat/completions", chatBody(`,"max_tokens":16000,"stream":true`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	s.postOK("/v1/completions", `{"model":"sim","prompt":"x","max_tokens":50}`, nil)
	s.until("finished", func() bool {
		return s.metric(`vllm:request_success_total{model_name="sim",finished_reason="length"}`) == "2"
	})
	text, err := io.ReadAll(resp.Body)
	if err != nil || strings.Count(string(text), "data: ") != 16000+2 {
		t.Errorf("%d events, %v", strings.Count(string(text), "data: "), err)
	}
}

func TestMetricsCount(t *testing.T) {
	s := startHealthy(t, fast())
	s.postOK("/v1/completions", `{"model":"sim","prompt":"twelve bytes","max_tokens":9}`, nil)
	for name, want := range map[string]string{
		"vllm:prompt_tokens_total": "3", "vllm:generation_tokens_total": "9", "vllm:num_requests_running": "0",
		`vllm:request_success_total{model_name="sim",finished_reason="length"}`: "1",
		"vllm:time_to_first_token_seconds_count":                                "1", "vllm:e2e_request_latency_seconds_count": "1",
		"sluice_engine_refused_total": "0", "vllm:engine_sleep_state": "0",
	} {
		if got := s.metric(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

func TestSleepAndWake(t *testing.T) {
	cfg := fast()
	cfg.LoadMs = 1000 * 1000 // one second
	s := start(t, cfg)
	if status, body := s.get("/health"); status != 503 || !strings.Contains(body, "loading") {
		t.Fatalf("while loading: %d %s", status, body)
	}
	if status, _ := s.post("/v1/completions", `{"model":"sim","prompt":"x"}`); status != 503 {
		t.Fatalf("request while loading: %d", status)
	}
	if status, _ := s.post("/sleep", ""); status != 503 {
		t.Fatalf("sleep while loading: %d", status)
	}
	s.until("healthy", func() bool { status, _ := s.get("/health"); return status == 200 })
	for range 2 {
		s.postOK("/sleep?level=1", "", nil)
	}
	if _, body := s.get("/is_sleeping"); body != `{"is_sleeping":true}` {
		t.Errorf("is_sleeping %s", body)
	}
	if status, body := s.get("/health"); status != 503 || !strings.Contains(body, "asleep") {
		t.Errorf("asleep: %d %s", status, body)
	}
	if status, _ := s.post("/v1/completions", `{"model":"sim","prompt":"x"}`); status != 503 {
		t.Errorf("request while asleep: %d", status)
	}
	for range 2 {
		s.postOK("/wake_up", "", nil)
	}
	s.postOK("/v1/completions", `{"model":"sim","prompt":"x"}`, nil)
	if _, body := s.get("/is_sleeping"); body != `{"is_sleeping":false}` {
		t.Errorf("is_sleeping %s", body)
	}
}

// What was accepted is finished before the engine sleeps.
func TestSleepWaitsForRequests(t *testing.T) {
	cfg := fast()
	cfg.Speed, cfg.LoadMs, cfg.SleepMs = 50, 0, 0
	s := startHealthy(t, cfg)
	body := make(chan string, 1)
	go func() {
		_, text := s.call("POST", "/v1/completions", `{"model":"sim","prompt":"x","max_tokens":200,"stream":true}`)
		body <- text
	}()
	s.until("running", func() bool { return s.metric("vllm:num_requests_running") == "1" })
	s.postOK("/sleep", "", nil)
	if text := <-body; !strings.Contains(text, "[DONE]") {
		t.Errorf("stream ended with %q", text[max(0, len(text)-200):])
	}
}

// A stopped engine cuts a stream so that it cannot be taken for a whole one.
func TestStopCutsStreams(t *testing.T) {
	cfg := fast()
	cfg.Speed, cfg.LoadMs, cfg.DrainMs = 1, 0, 0
	s := startHealthy(t, cfg)
	resp, err := s.do(context.Background(), "POST", "/v1/completions", `{"model":"sim","prompt":"x","max_tokens":1000,"stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	s.end()
	if text, err := io.ReadAll(resp.Body); err == nil || bytes.Contains(text, []byte("[DONE]")) {
		t.Errorf("read to the end without an error: %q", text)
	}
}

func TestConfigIsValidated(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatal(err)
	}
	for i, spoil := range []func(*Config){
		func(c *Config) { c.Listen = "" }, func(c *Config) { c.ServedModel = "" }, func(c *Config) { c.TP = 3 },
		func(c *Config) { c.Speed = 0 }, func(c *Config) { c.Speed = math.NaN() }, func(c *Config) { c.MaxBatch = 0 },
		func(c *Config) { c.MaxWaiting = 0 }, func(c *Config) { c.KVTokens = 100 }, func(c *Config) { c.PrefillTokens = 0 },
		func(c *Config) { c.ActiveBytes = 1 }, func(c *Config) { c.LoadMs = -1 }, func(c *Config) { c.StreamInterval = 0 },
		func(c *Config) { c.EmbeddingDims = 0 }, func(c *Config) { c.MaxModelTokens = 0 },
	} {
		c := Default()
		spoil(&c)
		if err := Run(context.Background(), c); !errors.Is(err, ErrConfig) {
			t.Errorf("spoilt %d: %v", i, err)
		}
	}
}
