package gateway

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/gateway/quota"
	"sluice/nodes/registry"
	"sluice/router"
	"sluice/router/own"
)

// stopClock makes fleet time stand, as far as limits see it. The router, which judges deadlines, has its own.
func (f *floor) stopClock() *atomic.Int64 {
	clock := &atomic.Int64{}
	clock.Store(time.Now().UnixMilli())
	f.srv.deps.NowMs = clock.Load
	return clock
}

const bearer = "Authorization: Bearer sk-1"

func oneKey(key, tenant Limits) keyring {
	return keyring{hashOf("sk-1"): {ID: "k", Tenant: "t", Limits: key, TenantLimits: tenant}}
}

// usage is what was used since it was asked last, by model, all keys together.
func (f *floor) usage() map[string]registry.UsageCount {
	out := map[string]registry.UsageCount{}
	for _, r := range f.srv.TakeUsage(nil) {
		c := out[r.Model]
		out[r.Model] = registry.UsageCount{Requests: c.Requests + r.Requests, InputTokens: c.InputTokens + r.InputTokens,
			OutputTokens: c.OutputTokens + r.OutputTokens, EstimatedTokens: c.EstimatedTokens + r.EstimatedTokens}
	}
	return out
}

func TestCase_GW_30_every_cause_has_its_code_and_wait(t *testing.T) {
	release := make(chan struct{})
	var upstream atomic.Int64 // an engine's error, by status
	e := startEngine(t, func(a *asked) {
		switch n := int(upstream.Load()); n {
		case 0:
			select {
			case <-release:
			case <-a.gone:
			}
			replyJSON(a, 200, jsonAnswer)
		case 429:
			replyJSON(a, n, "{}", "Retry-After: 7")
		default:
			replyJSON(a, n, "{}", "Retry-After: "+time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		}
	})
	keys := keyring{}
	for name, l := range map[string]Limits{"a": {RequestsPerMin: 6}, "b": {Concurrent: 1}, "c": {}} {
		keys[hashOf("sk-"+name)] = Key{ID: name, Tenant: name, Limits: l}
	}
	f := open(t, keys, nil, e)
	f.stopClock()
	small, table := smallRouter(t, e)
	f.srv.deps.Router = FromOwn(small, func() *router.Table { return table })
	seen := map[string]bool{}
	expect := func(key string, status int, code, wait string) {
		t.Helper()
		a := f.do("/v1/chat/completions", chat, "Authorization: Bearer sk-"+key)
		if a.status != status || a.code() != code || seen[code] || wait != "" && a.header.Get("Retry-After") != wait {
			t.Errorf("%s: %d %s, Retry-After %q", code, a.status, a.body, a.header.Get("Retry-After"))
		}
		if n, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || n < 1 {
			t.Errorf("%s: Retry-After %q", code, a.header.Get("Retry-After"))
		}
		seen[code] = true
	}
	var running sync.WaitGroup
	start := func(key string) {
		running.Go(func() {
			f.do("/v1/chat/completions", chat, "Authorization: Bearer sk-"+key)
		})
	}
	start("b")
	until(t, "one runs", func() bool { return e.running.Load() == 1 })
	expect("b", 429, "concurrency_limit", "")
	start("c")
	until(t, "one waits", func() bool { return small.Depth("m") == 1 })
	expect("c", 503, "queue_full", "")
	close(release)
	running.Wait()
	for range 6 {
		f.do("/v1/chat/completions", chat, "Authorization: Bearer sk-a")
	}
	expect("a", 429, "requests_per_minute", "10")
	upstream.Store(429)
	expect("c", 429, "upstream_rate_limit", "7")
	upstream.Store(503)
	a := f.do("/v1/chat/completions", chat, "Authorization: Bearer sk-c")
	if n, err := strconv.Atoi(a.header.Get("Retry-After")); a.status != 503 || a.code() != "upstream_overloaded" || err != nil || n < 3000 || n > 3600 {
		t.Errorf("%+v", a)
	}
}

func TestCase_GW_30_tokens(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, keyring{hashOf("sk-tokens"): {ID: "tokens", Limits: Limits{TokensPerMin: 600}}, hashOf("sk-day"): {ID: "day", Limits: Limits{TokensPerDay: 300}}}, nil, e)
	f.stopClock()
	for _, key := range []string{"tokens", "day"} {
		if a := f.do("/v1/chat/completions", `{"model":"m","max_tokens":290,"messages":[]}`, "Authorization: Bearer sk-"+key); a.status != 200 { // 10 are used
			t.Errorf("%+v", a)
		}
	}
	ask := func(key string, tokens int) answer {
		return f.do("/v1/chat/completions", fmt.Sprintf(`{"model":"m","max_tokens":%d,"messages":[]}`, tokens), "Authorization: Bearer sk-"+key)
	}
	if a := ask("tokens", 599); a.status != 429 || a.code() != "tokens_per_minute" || a.header.Get("Retry-After") != "1" {
		t.Errorf("%+v", a)
	}
	if a := ask("day", 291); a.status != 429 || a.code() != "tokens_per_day" {
		t.Errorf("%+v", a)
	}
	if a := ask("day", 500); a.status != 400 || a.code() != "request_exceeds_limit" || a.header.Get("Retry-After") != "" || !strings.Contains(a.body, `"param":"max_tokens"`) {
		t.Errorf("%+v", a)
	}
}

// smallRouter has one place on the engine and one in the queue.
func smallRouter(t *testing.T, e *engine) (*own.Router, *router.Table) {
	t.Helper()
	table, err := router.NewTable([]router.Model{{Name: "m", Replicas: []router.Replica{{ID: "r0", Addr: e.addr, MaxInFlight: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	rc := own.Default()
	rc.QueueLimit = 1
	r := own.New(rc)
	r.SetTable(table)
	t.Cleanup(r.Close)
	return r, table
}

func TestCase_GW_34_a_refused_request_pays_nothing(t *testing.T) {
	release := make(chan struct{})
	e := startEngine(t, func(a *asked) {
		select {
		case <-release:
			replyJSON(a, 200, jsonAnswer)
		case <-a.gone:
		}
	})
	f := open(t, oneKey(Limits{Concurrent: 1, RequestsPerMin: 2, TokensPerMin: 1000}, Limits{TokensPerDay: 1000}), nil, e)
	f.stopClock()
	first := make(chan answer)
	go func() { first <- f.do("/v1/chat/completions", chat, "Authorization: Bearer sk-1") }()
	until(t, "A runs", func() bool { return e.running.Load() == 1 })
	if a := f.do("/v1/chat/completions", chat, "X-Api-Key: sk-1"); a.status != 429 || a.code() != "concurrency_limit" || a.header.Get("Retry-After") != "1" {
		t.Fatalf("B: %+v", a)
	}
	close(release)
	if a := <-first; a.status != 200 {
		t.Fatalf("A: %+v", a)
	}
	until(t, "A ended", func() bool { return f.srv.InFlight() == 0 })
	if a := f.do("/v1/chat/completions", chat, "Authorization: bearer sk-1"); a.status != 200 {
		t.Fatalf("C: %+v", a)
	}
	if a := f.do("/v1/chat/completions", chat, "Authorization: Bearer sk-1"); a.status != 429 || a.code() != "requests_per_minute" || a.header.Get("Retry-After") != "30" {
		t.Fatalf("D: %+v", a)
	}
	f.settled(2)
	if u := f.usage()["m"]; u != (registry.UsageCount{Requests: 2, InputTokens: 14, OutputTokens: 6}) {
		t.Fatalf("%+v", u)
	}
}

func TestCase_GW_35_concurrency_holds_in_a_burst(t *testing.T) {
	const limit, requests = 10, 500
	full := make(chan struct{}) // closed when as many as may be are at the engine, and all others were refused
	e := startEngine(t, func(a *asked) {
		select {
		case <-full:
		case <-a.gone:
		}
		replyJSON(a, 200, jsonAnswer)
	})
	keys := keyring{}
	for i := range 2 {
		keys[hashOf(fmt.Sprint("sk-", i))] = Key{ID: fmt.Sprint(i), Tenant: "t", Limits: Limits{Concurrent: 9}, TenantLimits: Limits{Concurrent: limit}}
	}
	f := open(t, keys, nil, e)
	var done, refused atomic.Int64
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			c := f.raw(post("/v1/chat/completions", chat, fmt.Sprint("Authorization: Bearer sk-", i%2), "Connection: close"))
			c.SetDeadline(time.Now().Add(time.Minute)) // those let in wait for all the others
			switch a := readAnswer(bufio.NewReader(c)); a.status {
			case 200:
				done.Add(1)
			case 429:
				if refused.Add(1) == requests-limit {
					close(full)
				}
			default:
				t.Errorf("%+v", a)
			}
		})
	}
	wg.Wait()
	if e.peak.Load() != limit || done.Load() != limit || refused.Load() != requests-limit {
		t.Fatalf("peak %d, %d done, %d refused", e.peak.Load(), done.Load(), refused.Load())
	}
	f.settled(limit)
}

// bodyFor is a request that a path takes.
func bodyFor(path string) string {
	switch e := endpoints[path]; {
	case e != nil && e.form:
		return "--b\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--b--\r\n"
	case strings.HasPrefix(path, messagesPath):
		return `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":5}`
	default:
		return `{"model":"m","messages":[{"role":"user","content":"x"}],"prompt":"x","input":"x","query":"x","documents":["x"],"max_tokens":5}`
	}
}

// TestCase_SEC_07 calls every path of the API with a budget that is used up. A path that is added must be charged too.
func TestCase_SEC_07_no_path_around_the_budget(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, oneKey(Limits{}, Limits{TokensPerDay: 1000}), nil, e)
	f.stopClock()
	f.srv.SyncUsage(&quota.Spent{AtMs: f.srv.deps.NowMs(), Tenants: map[string]quota.Used{"t": {DayTokens: 1000, MonthTokens: 1000}}})
	const form = "Content-Type: multipart/form-data; boundary=b"
	ask := func(path, body string, headers ...string) answer {
		return f.do(path, body, append(headers, bearer, form)...)
	}
	for path := range endpoints {
		body := bodyFor(path)
		if a := ask(path, body); a.status != 429 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
		if a := ask(path+"?model=m&key=sk-2", strings.NewReplacer(`"model":"m",`, "", "name=model", "name=other").Replace(body)); a.status != 400 {
			t.Errorf("%s with the model in the query: %d %s", path, a.status, a.body)
		}
		for _, odd := range []string{strings.Replace(path, "/v1/c", "/v1/%63", 1), strings.Replace(path, "/v1/", "/v1//", 1), strings.ToUpper(path), path + "/", path + "/x",
			"/." + path, path + "%00", "/x/.." + path, path + ";a=b"} {
			if a := ask(odd, body); a.status != 404 && a.status != 405 && (odd != path || a.status != 429) {
				t.Errorf("%s: %d %s", odd, a.status, a.body)
			}
		}
		for _, method := range []string{"GET", "PUT", "DELETE", "PATCH"} {
			c := f.raw(strings.Replace(post(path, body, bearer, "Connection: close"), "POST", method, 1))
			if a := readAnswer(bufio.NewReader(c)); a.status < 400 {
				t.Errorf("%s %s: %d", method, path, a.status)
			}
			if a := ask(path, body, "X-Http-Method-Override: "+method, "X-Original-Url: /v1/models"); a.status != 429 {
				t.Errorf("%s overridden by %s: %d", path, method, a.status)
			}
		}
	}
	for _, path := range []string{"/v1/images/generations", "/v1/batches", "/v1/files", "/v1/fine_tuning/jobs", "/generate", "/openai/deployments/m/chat/completions", "/proxy/v1/chat/completions"} {
		if a := ask(path, bodyFor(path)); a.status != 404 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if n := e.served.Load(); n != 0 {
		t.Fatalf("%d requests reached the engine", n)
	}
}

// usageOfEvent is what usageEvent tells.
var usageOfEvent = registry.UsageCount{Requests: 1, InputTokens: 10, OutputTokens: 50}

func TestUsageIsWhatWasUsed(t *testing.T) {
	var n atomic.Int64
	e := startEngine(t, func(a *asked) {
		switch {
		case strings.Contains(a.body, "fails"):
			replyJSON(a, 503, "{}")
		case strings.Contains(a.body, "once"):
			if n.Add(1) == 1 {
				replyJSON(a, 503, "{}")
				return
			}
			replyJSON(a, 200, jsonAnswer)
		case strings.Contains(a.body, "leave"):
			a.write(sseHead + chunk(delta("a")) + chunk(delta("b")) + chunk(delta("c")))
			hold(a)
		case strings.Contains(a.body, "silent"):
			stream(a, delta("a"), delta("b"), finishEvent, doneEvent)
		case strings.Contains(a.body, `"stream":true`):
			stream(a, delta("a"), finishEvent, usageEvent, doneEvent)
		default:
			replyJSON(a, 200, jsonAnswer)
		}
	})
	f := open(t, oneKey(Limits{TokensPerMin: 1 << 20}, Limits{TokensPerDay: 1 << 20}), nil, e, e)
	for i, c := range []struct {
		word   string
		stream bool
		want   registry.UsageCount
	}{
		{"plain", false, registry.UsageCount{Requests: 1, InputTokens: 7, OutputTokens: 3}},
		{"stream", true, usageOfEvent},
		{"fails", false, registry.UsageCount{Requests: 1}},
		{"fails", true, registry.UsageCount{Requests: 1}},
		{"once", false, registry.UsageCount{Requests: 1, InputTokens: 7, OutputTokens: 3}}, // the try that failed is not billed
		{"silent", true, registry.UsageCount{Requests: 1, InputTokens: 5, OutputTokens: 2, EstimatedTokens: 7}},
		{"leave", true, registry.UsageCount{Requests: 1, InputTokens: 5, OutputTokens: 3, EstimatedTokens: 8}},
	} {
		body := fmt.Sprintf(`{"model":"m","stream":%v,"messages":["%-16s"]}`, c.stream, c.word)
		if c.word == "leave" {
			conn := f.raw(post("/v1/chat/completions", body, bearer))
			br := bufio.NewReader(conn)
			for line := ""; !strings.Contains(line, `"c"`); line, _ = br.ReadString('\n') {
			}
			leaveBy(conn, false)
		} else {
			f.do("/v1/chat/completions", body, bearer)
		}
		f.settled(i + 1)
		if u := f.usage()["m"]; u != c.want {
			t.Errorf("%s: %+v, want %+v", c.word, u, c.want)
		}
	}
}

func TestLimitHeadersOnEveryAnswer(t *testing.T) {
	e := startEngine(t, func(a *asked) {
		if strings.Contains(a.body, `"stream":true`) {
			stream(a, delta("a"), finishEvent, usageEvent, doneEvent)
			return
		}
		replyJSON(a, 200, jsonAnswer, "X-Ratelimit-Remaining-Requests: 999")
	})
	f := open(t, oneKey(Limits{RequestsPerMin: 60, TokensPerMin: 6000, Concurrent: 3}, Limits{}), nil, e)
	f.stopClock()
	check := func(what string, a answer, status int, remaining, reset, tokens string) {
		t.Helper()
		h := a.header
		if a.status != status || h.Get("X-Ratelimit-Limit-Requests") != "60" || len(h["X-Ratelimit-Remaining-Requests"]) != 1 ||
			h.Get("X-Ratelimit-Remaining-Requests") != remaining || h.Get("X-Ratelimit-Reset-Requests") != reset ||
			h.Get("X-Ratelimit-Limit-Tokens") != "6000" || h.Get("X-Ratelimit-Remaining-Tokens") != tokens || h.Get("X-Ratelimit-Limit-Concurrent") != "3" {
			t.Errorf("%s: %d %v", what, a.status, h)
		}
	}
	ask := func(body string) answer { return f.do("/v1/chat/completions", body, bearer) }
	check("plain", ask(`{"model":"m","messages":[],"max_tokens":99}`), 200, "59", "1s", "5900") // "[]" is a token, as is
	f.settled(1)
	check("stream", ask(`{"model":"m","messages":[],"max_tokens":99,"stream":true}`), 200, "58", "2s", "5890")
	f.settled(2)
	const left = "5930" // 10 and 60 were used
	check("bad body", ask("{"), 400, "58", "2s", left)
	check("unknown model", ask(`{"model":"nobody"}`), 404, "58", "2s", left)
	check("no hope", ask(`{"model":"m","messages":[],"max_tokens":99999}`), 400, "58", "2s", left)
	check("models", readAnswer(bufio.NewReader(f.raw("GET /v1/models HTTP/1.1\r\nHost: x\r\n"+bearer+"\r\n\r\n"))), 200, "58", "2s", left)
}

// TestLimitsChangeUnderWay takes a key's limits away and gives it others while a request runs.
func TestLimitsChangeUnderWay(t *testing.T) {
	release := make(chan struct{})
	e := startEngine(t, func(a *asked) {
		select {
		case <-release:
			replyJSON(a, 200, jsonAnswer)
		case <-a.gone:
		}
	})
	keys := &changing{}
	keys.set(oneKey(Limits{Concurrent: 1}, Limits{}))
	f := open(t, keys, nil, e)
	first := make(chan answer, 2)
	start := func() { go func() { first <- f.do("/v1/chat/completions", chat, bearer) }() }
	start()
	until(t, "one runs", func() bool { return e.running.Load() == 1 })
	keys.set(oneKey(Limits{Concurrent: 2, TokensPerMin: 1000}, Limits{Concurrent: 5}))
	start()
	until(t, "two run", func() bool { return e.running.Load() == 2 })
	keys.set(oneKey(Limits{Concurrent: 1}, Limits{}))
	if a := f.do("/v1/chat/completions", chat, bearer); a.code() != "concurrency_limit" {
		t.Errorf("%+v", a)
	}
	close(release)
	for range 2 {
		if a := <-first; a.status != 200 {
			t.Errorf("%+v", a)
		}
	}
	f.settled(2)
}

// changing is a ring of keys that is swapped.
type changing struct{ ring atomic.Pointer[keyring] }

func (c *changing) set(k keyring)                  { c.ring.Store(&k) }
func (c *changing) Empty() bool                    { return false }
func (c *changing) Lookup(hash []byte) (Key, bool) { return c.ring.Load().Lookup(hash) }
