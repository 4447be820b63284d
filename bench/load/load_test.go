package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// net/http lingers half a second on a connection that it ends.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// gateway is a server of the test's own; closed with it.
func gateway(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func play(t *testing.T, c Config, requests ...Request) []Result {
	t.Helper()
	rs, err := Run(t.Context(), c, requests, nil)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

const (
	token     = `data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n"
	lastUsage = `data: {"choices":[],"usage":{"completion_tokens":3}}` + "\n\n"
	done      = "data: [DONE]\n\n"
)

// What the body of an answer says about a streamed request.
func TestStreamedAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		body   string
		err    string // contained; empty: a whole answer
		tokens int
	}{
		"whole":                {token + token + token + lastUsage + done, "", 3},
		"no [DONE]":            {token + token + token + lastUsage, "without [DONE]", 3},
		"cut in a token":       {token + token[:20], "without [DONE]", 0},
		"nothing":              {"", "without [DONE]", 0},
		"an error, then DONE":  {token + `data: {"error":{"message":"engine lost","code":"upstream_lost"}}` + "\n\n" + done, "engine lost", 0},
		"comments and no text": {": ping\n\n" + `data: {"choices":[{"delta":{"role":"assistant","content":""}}]}` + "\n\n" + done, "", 0},
	} {
		addr := gateway(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, c.body) })
		r := play(t, Config{Addr: addr}, Request{Model: "m", OutputTokens: 3, Stream: true})[0]
		if r.Status != 200 || r.OK() != (c.err == "") || !strings.Contains(r.Err, c.err) || r.OutputTokens != c.tokens {
			t.Errorf("%s: %+v", name, r)
		}
		if hasText := strings.Contains(c.body, `"content":"a"`) && len(c.body) > len(token); (r.TTFTMs > 0) != (hasText && c.body[:len(token)] == token) {
			t.Errorf("%s: first token after %v ms", name, r.TTFTMs)
		}
	}
}

func TestPlainAnswersAndRefusals(t *testing.T) {
	addr := gateway(t, func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Model     string `json:"model"`
			MaxTokens int    `json:"max_tokens"`
			Stream    bool   `json:"stream"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Stream || r.Header.Get("X-Sluice-Class") != "interactive" || r.Header.Get("Authorization") != "Bearer k" {
			t.Errorf("%+v %v %v", body, err, r.Header)
		}
		switch body.Model {
		case "full":
			w.Header().Set("Retry-After", "7")
			http.Error(w, "no room", http.StatusServiceUnavailable)
		case "odd":
			io.WriteString(w, "{}")
		default:
			fmt.Fprintf(w, `{"usage":{"completion_tokens":%d}}`, body.MaxTokens)
		}
	})
	rs := play(t, Config{Addr: addr, Key: "k"}, Request{Model: `a "name"`, InputTokens: 9, OutputTokens: 5}, Request{Model: "full"}, Request{Model: "odd"})
	if r := rs[0]; !r.OK() || r.OutputTokens != 5 || r.TTFTMs != 0 || r.E2EMs <= 0 {
		t.Errorf("%+v", r)
	}
	if r := rs[1]; r.OK() || r.Status != 503 || r.RetryAfterS != 7 || !strings.Contains(r.Err, "no room") {
		t.Errorf("%+v", r)
	}
	if r := rs[2]; r.OK() || r.Status != 200 || !strings.Contains(r.Err, "usage") {
		t.Errorf("%+v", r)
	}
	if _, err := Run(t.Context(), Config{Addr: "nowhere"}, nil, nil); err == nil {
		t.Error("an address without a port")
	}
}

// The loop is open: while the server stands still, requests go out at their
// times, and each latency counts from the time that was intended for it.
func TestLatencyCountsFromTheIntendedTime(t *testing.T) {
	const count, everyMs = 20, 5.0
	var arrived atomic.Int64
	all := make(chan struct{})
	free := make(chan struct{})
	addr := gateway(t, func(w http.ResponseWriter, r *http.Request) {
		if arrived.Add(1) == count {
			close(all)
		}
		<-free
		io.WriteString(w, token+token+token+lastUsage+done)
	})
	var requests []Request
	for i := range count {
		requests = append(requests, Request{AtMs: float64(i) * everyMs, Model: "m", OutputTokens: 3, Stream: true})
	}
	go func() {
		<-all // a closed loop would never get here
		close(free)
	}()
	// Nothing was answered before the last request had come, and that was at
	// its time or later.
	for i, r := range play(t, Config{Addr: addr}, requests...) {
		if !r.OK() || r.Unsent {
			t.Fatalf("%+v", r)
		}
		if want := requests[count-1].AtMs - requests[i].AtMs; r.TTFTMs < want || r.E2EMs < r.TTFTMs || r.LateMs < 0 {
			t.Errorf("request %d: first token after %.1f ms, the server stood still for %.1f ms of it", i, r.TTFTMs, want)
		}
	}
}

// A request beyond those in flight is not sent, and is told as such.
func TestUnsentBeyondTheBound(t *testing.T) {
	const sent = 8
	free := make(chan struct{})
	var arrived atomic.Int64
	addr := gateway(t, func(w http.ResponseWriter, r *http.Request) {
		if arrived.Add(1) == sent {
			close(free)
		}
		<-free
		io.WriteString(w, `{"usage":{"completion_tokens":1}}`)
	})
	var requests []Request
	for range sent + 5 {
		requests = append(requests, Request{Model: "m"})
	}
	var mu sync.Mutex
	heard := 0
	rs, err := run(t.Context(), Config{Addr: addr}, requests, func(*Result) {
		mu.Lock()
		defer mu.Unlock()
		heard++
	}, sent)
	if err != nil {
		t.Fatal(err)
	}
	unsent := 0
	for i, r := range rs {
		if r.Unsent {
			unsent++
			if r.Status != 0 || r.OK() {
				t.Errorf("request %d: %+v", i, r)
			}
		} else if !r.OK() {
			t.Errorf("request %d: %+v", i, r)
		}
	}
	if unsent != 5 || heard != sent {
		t.Errorf("%d unsent of 5, %d heard of %d", unsent, heard, sent)
	}
}

// A run that is ended early tells of what it began.
func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	addr := gateway(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		cancel()
		<-r.Context().Done()
	})
	rs, err := Run(ctx, Config{Addr: addr}, []Request{{Model: "m"}, {AtMs: 3_600_000, Model: "m"}}, nil)
	if err == nil || len(rs) != 1 || rs[0].OK() || rs[0].Err == "" {
		t.Errorf("%+v %v", rs, err)
	}
}

// One request is bounded in time.
func TestTimeout(t *testing.T) {
	addr := gateway(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	if r := play(t, Config{Addr: addr, TimeoutMs: 30}, Request{Model: "m"})[0]; r.Err != "timeout" || r.OK() {
		t.Errorf("%+v", r)
	}
}
