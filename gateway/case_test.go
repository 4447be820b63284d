package gateway

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/slo"
)

// hold waits until the gateway has closed the connection.
func hold(a *asked) { <-a.gone }

// leaveBy closes a client's connection, with FIN or with RST.
func leaveBy(c net.Conn, reset bool) {
	if reset {
		c.(*net.TCPConn).SetLinger(0)
	}
	c.Close()
}

func TestCase_GW_01_bytes_pass_unchanged(t *testing.T) {
	text := delta("x")[:6] + `{"choices":[{"index":0,"delta":{"content":"你好 🌍"}}]}` + "\n\n" + doneEvent
	e := startEngine(t, func(a *asked) {
		a.write(sseHead)
		for i := range len(text) {
			a.write(chunk(text[i : i+1]))
		}
		a.write("0\r\n\r\n")
	})
	f := open(t, nil, nil, e)
	if a := f.do("/v1/chat/completions", chatStream); a.body != text || strings.Contains(a.body, "\xef\xbf\xbd") {
		t.Fatalf("%q", a.body)
	}
}

func TestCase_GW_04_comments_before_the_first_token(t *testing.T) {
	e := startEngine(t, func(a *asked) {
		a.write(sseHead)
		for range 3 {
			a.write(chunk(": PROCESSING\n\n"))
			<-time.After(150 * time.Millisecond)
		}
		a.write(chunk(delta("a")) + chunk(finishEvent) + chunk(doneEvent) + "0\r\n\r\n")
	})
	f := open(t, nil, func(c *Config) { c.StreamIdleMs = 420 }, e)
	a := f.do("/v1/chat/completions", chatStream)
	if strings.Contains(a.body, "data: :") || !strings.HasSuffix(a.body, delta("a")+finishEvent+doneEvent) {
		t.Fatalf("%q", a.body)
	}
	if s := f.outcome(); s.Outcome != slo.OK || s.TTFTMs < 445 {
		t.Fatalf("%+v", s)
	}
}

func TestCase_GW_14_client_leaves_in_mid_stream(t *testing.T) {
	for _, reset := range []bool{false, true} {
		closed := make(chan time.Time, 1)
		e := startEngine(t, func(a *asked) {
			a.write(sseHead + chunk(delta("a")) + chunk(delta("b")) + chunk(delta("c")))
			hold(a)
			closed <- time.Now()
		})
		f := open(t, nil, nil, e)
		c := f.raw(post("/v1/chat/completions", chatStream))
		br := bufio.NewReader(c)
		for line := ""; !strings.Contains(line, `"c"`); line, _ = br.ReadString('\n') {
		}
		left := time.Now()
		leaveBy(c, reset)
		if d := (<-closed).Sub(left); d > 2*time.Second {
			t.Errorf("reset=%v: the engine was told after %v", reset, d)
		}
		if s := f.outcome(); s.Outcome != slo.ClientGone || s.OutputTokens != 3 {
			t.Fatalf("%+v", s)
		}
	}
}

func TestCase_GW_15_client_leaves_before_the_answer(t *testing.T) {
	e := startEngine(t, hold)
	f := open(t, nil, nil, e)
	for i := range int64(5) {
		c := f.raw(post("/v1/chat/completions", chat))
		until(t, "the engine has the request", func() bool { return e.served.Load() == i+1 })
		left := time.Now()
		leaveBy(c, i%2 == 0)
		until(t, "the engine was told", func() bool { return e.running.Load() == 0 })
		if d := time.Since(left); d > 2*time.Second {
			t.Errorf("told after %v", d)
		}
	}
	for _, s := range f.settled(5) {
		if s.Outcome != slo.ClientGone {
			t.Fatalf("%+v", s)
		}
	}
	if e.peak.Load() != 1 {
		t.Fatalf("%d at once", e.peak.Load())
	}
}

func TestClientLeavesTheQueue(t *testing.T) {
	e := startEngine(t, hold)
	f := open(t, nil, nil, e)
	var conns []net.Conn
	for range 65 { // one more than the replica takes
		conns = append(conns, f.raw(post("/v1/chat/completions", chat)))
	}
	const room = 60 // 64 slots, of which standard requests leave some to interactive ones
	until(t, "the replica is full", func() bool { return e.running.Load() == room })
	until(t, "all have arrived", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.begun == 65 })
	for _, c := range conns {
		c.Close()
	}
	until(t, "all were let go", func() bool { return f.srv.InFlight() == 0 })
	for _, s := range f.settled(65) {
		if s.Outcome != slo.ClientGone {
			t.Fatalf("%+v", s)
		}
	}
	// A place that comes free may go to a waiter whose departure is noticed a moment later, but not to all of them.
	if n := e.served.Load(); n > 65 {
		t.Fatalf("%d requests were sent", n)
	}
}

func TestCase_GW_16_stall_in_mid_stream(t *testing.T) {
	var prefill atomic.Bool
	e := startEngine(t, func(a *asked) {
		a.write(sseHead)
		if prefill.Load() {
			<-time.After(250 * time.Millisecond) // longer than the idle limit, and fine
			a.write(chunk(delta("a")) + chunk(doneEvent) + "0\r\n\r\n")
			return
		}
		a.write(chunk(delta("a")))
		hold(a)
	})
	f := open(t, nil, func(c *Config) { c.StreamIdleMs = 100 }, e)
	from := time.Now()
	a := f.do("/v1/chat/completions", chatStream)
	rest := strings.TrimPrefix(a.body, delta("a")+"data: ")
	if a.err != nil || (answer{body: rest}).code() != "upstream_timeout" || time.Since(from) > 4*time.Second {
		t.Fatalf("%+v", a)
	}
	until(t, "the engine was told", func() bool { return e.running.Load() == 0 })
	prefill.Store(true)
	if a := f.do("/v1/chat/completions", chatStream); !strings.HasSuffix(a.body, doneEvent) {
		t.Fatalf("%+v", a)
	}
	s := f.settled(2)
	if s[0].Outcome != slo.Timeout || s[1].Outcome != slo.OK {
		t.Fatalf("%+v", s)
	}
}

func TestFirstByteTimeout(t *testing.T) {
	e := startEngine(t, hold)
	f := open(t, nil, func(c *Config) { c.ClientWriteMs = 20 }, e) // shorter than the wait: it counts for writes only
	a := f.do("/v1/chat/completions", chat, "X-Request-Timeout-Ms: 50")
	if a.status != 504 || a.code() != "upstream_timeout" {
		t.Fatalf("%+v", a)
	}
	if s := f.outcome(); s.Outcome != slo.Timeout {
		t.Fatalf("%+v", s)
	}
}

func TestCase_GW_22_expect_continue(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, keyring{hashOf("sk-good"): {ID: "k"}}, nil, e)
	ask := func(key string, length int) (net.Conn, *bufio.Reader) {
		c := f.raw(fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", key, length))
		return c, bufio.NewReader(c)
	}
	_, br := ask("sk-bad", 314572800)
	if line, _ := br.ReadString('\n'); !strings.Contains(line, " 413 ") && !strings.Contains(line, " 401 ") {
		t.Fatal(line)
	}
	_, br = ask("sk-bad", len(chat))
	if a := readAnswer(br); a.status != 401 || !strings.Contains(a.body, "invalid_api_key") || a.header.Get("X-Request-Id") == "" || a.header.Get("Www-Authenticate") != "Bearer" {
		t.Fatalf("%+v", a)
	}
	_, br = ask("sk-good", 314572800)
	if a := readAnswer(br); a.status != 413 || !strings.Contains(a.body, "body_too_large") || a.header.Get("X-Request-Id") == "" {
		t.Fatalf("%+v", a)
	}
	c, br := ask("sk-good", len(chat))
	if line, _ := br.ReadString('\n'); !strings.Contains(line, " 100 ") {
		t.Fatal(line)
	}
	br.ReadString('\n')
	io.WriteString(c, chat)
	if a := readAnswer(br); a.status != 200 {
		t.Fatalf("%+v", a)
	}
}

func TestCase_GW_31_headers_of_the_failed_try(t *testing.T) {
	var n atomic.Int64
	reply := func(a *asked) {
		if n.Add(1) == 1 {
			replyJSON(a, 503, `{"error":{"message":"busy"}}`, "X-Request-Id: a1", "X-Ratelimit-Remaining: 0", "Set-Cookie: s=a", "X-Only-A: 1")
			return
		}
		replyJSON(a, 200, jsonAnswer, "X-Request-Id: b1", "X-Only-B: 1")
	}
	f := open(t, nil, nil, startEngine(t, reply), startEngine(t, reply))
	a := f.do("/v1/chat/completions", chat, "X-Request-Id: ours")
	if a.status != 200 || a.header.Get("X-Only-B") != "1" || a.header.Get("X-Only-A") != "" || a.header.Get("Set-Cookie") != "" ||
		a.header.Get("X-Ratelimit-Remaining") != "" || a.header.Get("X-Request-Id") != "ours" {
		t.Fatalf("%+v", a)
	}
	if s := f.outcome(); s.Outcome != slo.OK || f.srv.books.retries.Get() != 1 {
		t.Fatalf("%+v", s)
	}
}

func TestCase_GW_32_errors_that_are_not_json(t *testing.T) {
	var status int
	var body, contentType string
	e := startEngine(t, func(a *asked) {
		// One write: once an empty body is answered the test goes on to the next.
		a.write(fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: %s\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n%s", status, contentType, len(body), body))
	})
	f := open(t, nil, nil, e)
	for i, c := range []struct {
		status            int
		contentType, body string
	}{
		{502, "text/html", "<html><script>bad</script></html>"}, {500, "application/json", "null"}, {500, "application/json", ""},
		{400, "application/json", "[]"}, {500, "application/json", `{"error":null}`}, {500, "application/json", `{"error":"text"}`},
		{429, "application/json", `{"detail":"slow"}`}, {500, "text/plain", strings.Repeat("x", 1<<20)}, {404, "text/event-stream", "data: x\n\n"},
		{400, "application/json", `{"error":{"message":"context length","type":"invalid_request_error","code":"context_length_exceeded"}}`},
	} {
		status, body, contentType = c.status, c.body, c.contentType
		a := f.do("/v1/chat/completions", chatStream)
		want := "upstream_error"
		if c.status == 429 {
			want = "upstream_rate_limit"
		}
		if strings.Contains(c.body, "context length") {
			want = "context_length_exceeded"
		}
		if a.status != c.status || a.code() != want || strings.Contains(a.body, "<") || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%d %.40s: %+v", c.status, c.body, a)
		}
		if c.status == 429 && a.header.Get("Retry-After") != "7" {
			t.Error(a.header)
		}
		f.settled(i + 1)
	}
}

func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// moods answers as the request's text says.
func moods(a *asked) {
	switch {
	case strings.Contains(a.body, "kind-500"):
		replyJSON(a, 500, "oops")
	case strings.Contains(a.body, "kind-lost"):
		a.conn.Close()
	case strings.Contains(a.body, "kind-torn"):
		a.write(sseHead + chunk("data: {"))
		a.conn.Close()
	case strings.Contains(a.body, "kind-hang"):
		hold(a)
	case strings.Contains(a.body, "kind-garbage"):
		a.write("220 smtp ready\r\n\r\n")
		a.conn.Close()
	case strings.Contains(a.body, `"stream":true`):
		stream(a, delta("a"), delta("b"), finishEvent, doneEvent)
	default:
		replyJSON(a, 200, jsonAnswer)
	}
}

// TestCase_GW_33 ends requests in every way there is and looks for a slot that was not given back.
func TestCase_GW_33_slots_come_back(t *testing.T) {
	e := startEngine(t, moods)
	f := open(t, keyring{hashOf("sk-1"): {ID: "k", Tenant: "t", Limits: Limits{Concurrent: 4, TokensPerMin: 1 << 29, TokensPerDay: 1 << 40}, TenantLimits: Limits{TokensPerMonth: 1 << 41, RequestsPerMin: 1 << 29}}}, nil, e)
	const requests, workers = 400, 6
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for range requests / workers {
				kind := []string{"ok", "kind-500", "kind-lost", "kind-torn", "kind-hang", "kind-garbage", "bad", "unknown"}[r.IntN(8)]
				body := fmt.Sprintf(`{"model":"m","stream":%v,"messages":[%q]}`, r.IntN(2) == 0, kind)
				switch kind {
				case "bad":
					body = "{"
				case "unknown":
					body = `{"model":"nobody"}`
				}
				c, err := net.Dial("tcp", f.addr)
				if err != nil {
					t.Error(err)
					return
				}
				io.WriteString(c, post("/v1/chat/completions", body, "Authorization: Bearer sk-1", "Connection: close"))
				c.SetDeadline(time.Now().Add(50 * time.Millisecond)) // gives up on what hangs
				if r.IntN(4) == 0 {
					if r.IntN(2) == 0 {
						c.Read(make([]byte, 1+r.IntN(300)))
					}
					leaveBy(c, r.IntN(2) == 0)
					continue
				}
				io.Copy(io.Discard, c)
				c.Close()
			}
		})
	}
	wg.Wait()
	f.deserted()
	f.mu.Lock()
	begun := f.begun
	f.mu.Unlock()
	f.settled(begun)
	until(t, "the engine is idle", func() bool { return e.running.Load() == 0 })
	var four sync.WaitGroup
	for range 4 {
		four.Go(func() {
			if a := f.do("/v1/chat/completions", chat, "Authorization: Bearer sk-1"); a.status != 200 {
				t.Errorf("%+v", a)
			}
		})
	}
	four.Wait()
}

func TestPanicInAHandler(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, nil, e)
	f.srv.deps.UpstreamAuth = func(string) string { panic("sk-secret") }
	if a := f.do("/v1/chat/completions", chat); a.status != 500 || a.code() != "internal" || strings.Contains(a.body, "secret") {
		t.Fatalf("%+v", a)
	}
	if s := f.outcome(); s.Outcome != slo.Internal {
		t.Fatalf("%+v", s)
	}
}

// TestReplicaKilled cuts one of two replicas under load: no client sees an error unless its answer had begun.
func TestReplicaKilled(t *testing.T) {
	var dead atomic.Bool
	victim := startEngine(t, func(a *asked) {
		if dead.Load() {
			a.conn.Close()
			return
		}
		<-time.After(time.Millisecond)
		if dead.Load() {
			a.conn.Close()
			return
		}
		replyJSON(a, 200, jsonAnswer)
	})
	other := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, nil, victim, other)
	var wg sync.WaitGroup
	var bad atomic.Int64
	for i := range 16 {
		wg.Go(func() {
			c, err := net.Dial("tcp", f.addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			br := bufio.NewReader(c)
			for n := range 30 {
				io.WriteString(c, post("/v1/chat/completions", chat))
				if a := readAnswer(br); a.status != 200 || a.err != nil {
					bad.Add(1)
				}
				if i == 0 && n == 8 {
					dead.Store(true)
				}
			}
		})
	}
	wg.Wait()
	if bad.Load() != 0 {
		t.Fatalf("%d errors", bad.Load())
	}
	for _, s := range f.settled(480) {
		if s.Outcome != slo.OK {
			t.Fatalf("%+v", s)
		}
	}
}

func TestErrorAsFirstEventGoesElsewhere(t *testing.T) {
	var n atomic.Int64
	reply := func(a *asked) {
		if n.Add(1) == 1 {
			stream(a, "data: {\"error\":{\"message\":\"quota\"}}\n\n")
			return
		}
		stream(a, delta("good"), finishEvent, doneEvent)
	}
	f := open(t, nil, nil, startEngine(t, reply), startEngine(t, reply))
	if a := f.do("/v1/chat/completions", chatStream); a.body != delta("good")+finishEvent+doneEvent {
		t.Fatalf("%+v", a)
	}
}

func TestCase_GW_13_client_that_never_reads(t *testing.T) {
	event := delta(strings.Repeat("x", 8<<10))
	e := startEngine(t, func(a *asked) {
		for err := a.write(sseHead); err == nil; { // ends when the gateway closes the connection
			err = a.write(chunk(event))
		}
	})
	f := open(t, nil, func(c *Config) { c.ClientWriteMs = 100 }, e)
	c := f.raw("")
	c.(*net.TCPConn).SetReadBuffer(4 << 10)
	io.WriteString(c, post("/v1/chat/completions", chatStream))
	if s := f.outcome(); s.Outcome != slo.ClientGone {
		t.Fatalf("%+v", s)
	}
	until(t, "the engine was told", func() bool { return e.running.Load() == 0 })
}
