package gateway

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice/router"
	"sluice/slo"
)

const (
	ask       = `{"model":"alias","max_tokens":50,"system":"be short","messages":[{"role":"user","content":"hello"}]}`
	askStream = `{"model":"alias","max_tokens":50,"stream":true,"messages":[{"role":"user","content":"hello"}]}`
)

// openNative is a floor whose engines speak the Messages API.
func openNative(t *testing.T, engines ...*engine) *floor {
	t.Helper()
	f := open(t, nil, nil, engines...)
	model := router.Model{Name: "m", Aliases: []string{"alias"}, Speaks: []string{speaksMessages}}
	for i, e := range engines {
		model.Replicas = append(model.Replicas, router.Replica{ID: fmt.Sprintf("r%d", i), Addr: e.addr, MaxInFlight: 64, UpstreamModel: "real"})
	}
	table, err := router.NewTable([]router.Model{model})
	if err != nil {
		t.Fatal(err)
	}
	f.router.SetTable(table)
	f.srv.deps.Router = FromOwn(f.router, func() *router.Table { return table })
	return f
}

// fault is the type and the text of an error of the Messages API, its code, and the request's id.
func (a answer) fault(t *testing.T) (kind, message, code string) {
	t.Helper()
	var e struct {
		Type  string
		Error struct{ Type, Message, Code string }
		ID    string `json:"request_id"`
	}
	if json.Unmarshal([]byte(a.body), &e) != nil || e.Type != "error" || e.Error.Message == "" || e.ID == "" || a.header.Get("Request-Id") != e.ID {
		t.Fatalf("no error of the Messages API: %d %s", a.status, a.body)
	}
	return e.Error.Type, e.Error.Message, e.Error.Code
}

// watch sends a request, closes seen once the answer holds mark, and returns the whole answer.
func (f *floor) watch(body, mark string, seen chan struct{}) answer {
	f.t.Helper()
	c := f.raw(post("/v1/messages", body, "Connection: close"))
	defer c.Close()
	var text strings.Builder
	for br, open := bufio.NewReader(c), true; ; {
		line, err := br.ReadString('\n')
		text.WriteString(line)
		if open && (err != nil || strings.Contains(line, mark)) {
			open = false
			close(seen)
		}
		if err != nil {
			return readAnswer(bufio.NewReader(strings.NewReader(text.String())))
		}
	}
}

// messageEvents are the types of a message's events, and the last error's text.
func messageEvents(t *testing.T, body string) (types []string, text, fault string) {
	t.Helper()
	for event := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		_, data, _ := strings.Cut(event, "\ndata: ")
		var e struct {
			Type  string
			Delta struct{ Text string }
			Error struct{ Message string }
		}
		if json.Unmarshal([]byte(data), &e) != nil || e.Type == "" {
			t.Fatalf("no event: %q in %q", event, body)
		}
		types, text = append(types, e.Type), text+e.Delta.Text
		if e.Type == "error" {
			fault = e.Error.Message
		}
	}
	return types, text, fault
}

func TestMessagesAreTranslated(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, nil, e)
	a := f.do("/v1/messages", ask, "anthropic-version: 2023-06-01")
	want := `{"id":"msg_x","type":"message","role":"assistant","model":"alias","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","stop_sequence":null,` +
		`"usage":{"input_tokens":7,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":3}}`
	if a.status != 200 || a.body != want || a.header.Get("Content-Type") != "application/json" || a.header.Get("Request-Id") == "" {
		t.Fatalf("%d %v %s", a.status, a.header, a.body)
	}
	head, body := e.last()
	if !strings.HasPrefix(head, "POST /v1/chat/completions ") || strings.Contains(strings.ToLower(head), "anthropic") {
		t.Error(head)
	}
	if body != `{"model":"real","messages":[{"role":"system","content":"be short"},{"role":"user","content":"hello"}],"max_tokens":50}` {
		t.Error(body)
	}
	if s := f.outcome(); s.Outcome != slo.OK || s.InputTokens != 7 || s.OutputTokens != 3 {
		t.Errorf("%+v", s)
	}
}

func TestMessagesStreamIsTranslated(t *testing.T) {
	e := startEngine(t, func(a *asked) {
		stream(a, ": busy\n\n", delta(""), delta("he"), delta("llo"), finishEvent, usageEvent, doneEvent)
	})
	f := open(t, nil, nil, e)
	a := f.do("/v1/messages", askStream)
	types, text, _ := messageEvents(t, a.body)
	got := strings.Join(types, " ")
	if !strings.HasSuffix(got, "message_start content_block_start content_block_delta content_block_delta content_block_stop message_delta message_stop") || text != "hello" {
		t.Errorf("%s: %q", got, a.body)
	}
	if !strings.Contains(a.body, `"input_tokens":10,`) || !strings.Contains(a.body, `"output_tokens":50}`) || a.header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%v %s", a.header, a.body)
	}
	if _, body := e.last(); !strings.Contains(body, `"stream":true,"stream_options":{"include_usage":true}`) {
		t.Error(body)
	}
	if s := f.outcome(); s.Outcome != slo.OK || s.InputTokens != 10 || s.OutputTokens != 50 || s.TTFTMs == 0 {
		t.Errorf("%+v", s)
	}
}

func TestMessagesStreamTellsTools(t *testing.T) {
	call := func(s string) string {
		return `data: {"choices":[{"index":0,"delta":{"tool_calls":[` + s + `]}}]}` + "\n\n"
	}
	e := startEngine(t, func(a *asked) {
		stream(a,
			call(`{"index":0,"id":"call_a","type":"function","function":{"name":"f","arguments":"{\"a\""}},{"index":1,"id":"call_b","type":"function","function":{"name":"g","arguments":"{"}}`),
			call(`{"index":1,"function":{"arguments":"}"}}`), call(`{"index":0,"function":{"arguments":":1}"}}`), doneEvent)
	})
	f := open(t, nil, nil, e)
	a := f.do("/v1/messages", strings.Replace(askStream, `"stream"`, `"tools":[{"name":"f","input_schema":{"type":"object"}}],"stream"`, 1))
	if types, _, _ := messageEvents(t, a.body); strings.Count(strings.Join(types, " "), "content_block_stop") != 2 ||
		!strings.Contains(a.body, `"id":"call_b","name":"g","input":{}}`) || !strings.Contains(a.body, `"stop_reason":"tool_use"`) {
		t.Error(a.body)
	}
}

// TestCase_GW_18_AmbiguousCallsEndInAnError: what nobody can tell apart is not glued together.
func TestCase_GW_18_AmbiguousCallsEndInAnError(t *testing.T) {
	call := func(s string) string {
		return `data: {"choices":[{"index":0,"delta":{"tool_calls":[` + s + `]}}]}` + "\n\n"
	}
	seen := make(chan struct{})
	e := startEngine(t, func(a *asked) {
		a.write(sseHead + chunk(call(`{"index":0,"id":"call_a","function":{"name":"f","arguments":"{\"a"}}`)))
		<-seen
		a.write(chunk(call(`{"index":0,"id":"call_b","function":{"name":"g","arguments":"{\"b"}}`)))
		a.write(chunk(call(`{"index":0,"function":{"arguments":"\":1}"}}`)))
		hold(a)
	})
	f := open(t, nil, nil, e)
	a := f.watch(askStream, "partial_json", seen)
	if types, _, fault := messageEvents(t, a.body); types[len(types)-1] != "error" || !strings.Contains(fault, "told apart") || a.err != nil {
		t.Errorf("%v %s", a.err, a.body)
	}
	if s := f.outcome(); s.Outcome != slo.UpstreamError {
		t.Errorf("%+v", s)
	}
}

func TestMessagesThatCannotBeTranslated(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, nil, e)
	for body, want := range map[string]string{
		`{"model":"m","messages":[{"role":"user","content":"x"}]}`:                                                                 "max_tokens",
		`{"model":"m","max_tokens":1,"tools":[{"type":"bash_20250124","name":"bash"}],"messages":[{"role":"user","content":"x"}]}`: "tools.0.type",
		`{"model":"m"`: "JSON",
	} {
		a := f.do("/v1/messages", body)
		kind, message, code := a.fault(t)
		if a.status != 400 || kind != "invalid_request_error" || !strings.Contains(message, want) || code != "invalid_body" {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	if n := e.served.Load(); n != 0 {
		t.Errorf("the engine got %d requests", n)
	}
}

func TestMessagesErrorsBeforeTheAnswer(t *testing.T) {
	for _, c := range []struct {
		status           int
		body, kind, text string
	}{
		{429, `{"error":{"message":"slow down","type":"rate_limit"}}`, "rate_limit_error", "slow down"},
		{400, `{"error":{"message":"too long","type":"BadRequestError","code":400}}`, "invalid_request_error", "too long"},
		{503, `busy`, "overloaded_error", "The engine answered with an error."},
		{500, `{"error":{"message":"broken"}}`, "api_error", "broken"},
		{200, `{"error":{"message":"broken"}}`, "api_error", "cannot be told"},
		{200, `data: x`, "api_error", "cannot be told"},
	} {
		e := startEngine(t, func(a *asked) { replyJSON(a, c.status, c.body, "Retry-After: 7") })
		f := open(t, nil, nil, e)
		a := f.do("/v1/messages", ask)
		kind, message, _ := a.fault(t)
		want := c.status
		if want == 200 {
			want = 502
		}
		if a.status != want || kind != c.kind || !strings.Contains(message, c.text) {
			t.Errorf("%d %s: %d %s", c.status, c.body, a.status, a.body)
		}
		if after := a.header.Get("Retry-After"); (c.status == 429 || c.status == 503) && after != "7" {
			t.Errorf("%d: Retry-After %q", c.status, after)
		}
	}
}

func TestMessagesOwnErrors(t *testing.T) {
	f := open(t, keyring{hashOf("sk-1"): {ID: "k", Tenant: "t", Models: []string{"m"}, Limits: Limits{RequestsPerMin: 1}}}, nil,
		startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) }))
	for _, c := range []struct {
		path, body, key string
		status          int
		kind, code      string
	}{
		{"/v1/messages", ask, "", 401, "authentication_error", "invalid_api_key"},
		{"/v1/messages", strings.Replace(ask, "alias", "other", 1), "sk-1", 403, "permission_error", "model_not_allowed"},
		{"/v1/messages/batches", ask, "sk-1", 404, "not_found_error", "not_found"},
		{"/v1/messages", ask, "sk-1", 200, "", ""},
		{"/v1/messages", ask, "sk-1", 429, "rate_limit_error", "requests_per_minute"},
		{"/v1/messages/count_tokens", ask, "sk-1", 429, "rate_limit_error", "requests_per_minute"},
	} {
		a := f.do(c.path, c.body, "x-api-key: "+c.key)
		if a.status != c.status {
			t.Errorf("%s with %q: %d %s", c.path, c.key, a.status, a.body)
		} else if c.status != 200 {
			if kind, _, code := a.fault(t); kind != c.kind || code != c.code {
				t.Errorf("%s with %q: %s", c.path, c.key, a.body)
			}
		}
		if a.status == 429 && a.header.Get("Retry-After") == "" {
			t.Error("429 without Retry-After")
		}
	}
}

func TestMessagesTryAnotherReplica(t *testing.T) {
	for name, bad := range map[string]func(a *asked){
		"error first":      func(a *asked) { stream(a, `data: {"error":{"message":"no"}}`+"\n\n") },
		"role, then error": func(a *asked) { stream(a, delta(""), `data: {"error":{"message":"no"}}`+"\n\n") },
		"garbage":          func(a *asked) { stream(a, "data: {\n\n") },
		"no stream":        func(a *asked) { replyJSON(a, 200, jsonAnswer) },
		"lost":             func(a *asked) { a.write(sseHead + chunk(delta(""))); a.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			var tried atomic.Bool
			serve := func(a *asked) {
				if tried.CompareAndSwap(false, true) {
					bad(a)
					return
				}
				stream(a, delta("good"), finishEvent, doneEvent)
			}
			f := open(t, nil, nil, startEngine(t, serve), startEngine(t, serve))
			a := f.do("/v1/messages", askStream)
			types, text, fault := messageEvents(t, a.body)
			if text != "good" || fault != "" || types[0] != "message_start" || types[len(types)-1] != "message_stop" {
				t.Error(a.body)
			}
			if s := f.outcome(); s.Outcome != slo.OK {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestMessagesBreakInMidStream(t *testing.T) {
	for name, c := range map[string]struct {
		end     func(a *asked)
		fault   string
		outcome slo.Outcome
	}{
		"engine's error": {func(a *asked) { a.write(chunk(`data: {"error":{"message":"out of memory"}}` + "\n\n")); hold(a) }, "out of memory", slo.UpstreamError},
		"odd error":      {func(a *asked) { a.write(chunk(`data: {"object":"error","message":"odd"}` + "\n\n")); hold(a) }, "odd", slo.UpstreamError},
		"garbage":        {func(a *asked) { a.write(chunk("data: {\n\n")); hold(a) }, "malformed", slo.UpstreamError},
		"loss":           {func(a *asked) { a.conn.Close() }, "broke", slo.UpstreamLost},
		"stall":          {hold, "stopped", slo.Timeout},
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan struct{})
			e := startEngine(t, func(a *asked) { a.write(sseHead + chunk(delta("a"))); <-seen; c.end(a) })
			f := open(t, nil, func(cfg *Config) { cfg.StreamIdleMs = 1000 }, e)
			a := f.watch(askStream, `"text":"a"`, seen)
			types, text, fault := messageEvents(t, a.body)
			if text != "a" || !strings.Contains(fault, c.fault) || types[len(types)-1] != "error" || a.err != nil {
				t.Errorf("%v %s", a.err, a.body)
			}
			if s := f.outcome(); s.Outcome != c.outcome {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestMessagesStreamWithoutItsEnd(t *testing.T) {
	e := startEngine(t, func(a *asked) {
		a.write("HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + delta("a") + strings.TrimSuffix(finishEvent, "\n"))
		a.conn.Close()
	})
	f := open(t, nil, nil, e)
	a := f.do("/v1/messages", askStream)
	if types, text, _ := messageEvents(t, a.body); text != "a" || types[len(types)-1] != "message_stop" {
		t.Error(a.body)
	}
}

func TestMessagesClientLeaves(t *testing.T) {
	for _, body := range []string{ask, askStream} {
		e := startEngine(t, func(a *asked) {
			if body == askStream {
				a.write(sseHead + chunk(delta("a")))
			}
			hold(a)
		})
		f := open(t, nil, nil, e)
		c := f.raw(post("/v1/messages", body))
		if body == askStream {
			br := bufio.NewReader(c)
			for line := ""; !strings.Contains(line, `"text":"a"`); line, _ = br.ReadString('\n') {
			}
		} else {
			until(t, "the engine has the request", func() bool { return e.running.Load() == 1 })
		}
		leaveBy(c, false)
		until(t, "the engine was told", func() bool { return e.running.Load() == 0 })
		if s := f.outcome(); s.Outcome != slo.ClientGone {
			t.Errorf("%+v", s)
		}
	}
}

func TestCountTokensAsksTheEngine(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, `{"count":77,"max_model_len":8192,"tokens":[1,2]}`) })
	f := open(t, nil, nil, e)
	a := f.do("/v1/messages/count_tokens", `{"model":"alias","system":"s","messages":[{"role":"user","content":"hello"}]}`)
	head, body := e.last()
	if a.status != 200 || a.body != `{"input_tokens":77}` || !strings.HasPrefix(head, "POST /tokenize ") ||
		body != `{"model":"real","messages":[{"role":"system","content":"s"},{"role":"user","content":"hello"}]}` {
		t.Errorf("%d %s; %s%s", a.status, a.body, head, body)
	}
}

func TestCountTokensIsEstimated(t *testing.T) {
	count := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 100) + `"}]}`
	for name, serve := range map[string]func(a *asked){
		"no such path":   func(a *asked) { replyJSON(a, 404, `{"error":{"message":"not found"}}`) },
		"another answer": func(a *asked) { replyJSON(a, 200, `{"tokens":[]}`) },
		"no JSON":        func(a *asked) { replyJSON(a, 200, `hello`) },
		"broken":         func(a *asked) { replyJSON(a, 500, `{"error":{"message":"broken"}}`) },
		"dead":           func(a *asked) { a.conn.Close() },
		"busy":           func(a *asked) { replyJSON(a, 429, `{}`) },
		"silent":         hold,
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t, nil, nil, startEngine(t, serve))
			a := f.do("/v1/messages/count_tokens", count, "x-request-timeout-ms: 500")
			var got struct {
				N int `json:"input_tokens"`
			}
			if json.Unmarshal([]byte(a.body), &got) != nil || a.status != 200 || got.N < 100 || got.N > 160 || a.header.Get("Retry-After") != "" {
				t.Errorf("%d %v %s", a.status, a.header, a.body)
			}
		})
	}
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, nil, e)
	a := f.do("/v1/messages/count_tokens", strings.Replace(count, `"m"`, `"empty"`, 1))
	if a.status != 200 || !strings.HasPrefix(a.body, `{"input_tokens":`) { // a model without a replica
		t.Errorf("%d %s", a.status, a.body)
	}
	a = f.do("/v1/messages/count_tokens", `{"model":"m","messages":[{"role":"user","content":[{"type":"video"}]}]}`)
	if kind, message, _ := a.fault(t); a.status != 400 || kind != "invalid_request_error" || !strings.Contains(message, "messages.0.content.0.type") {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestMessagesPlainAnswerInPieces(t *testing.T) {
	text := strings.Repeat("x", 100_000)
	whole := `{"choices":[{"message":{"content":"` + text + `"},"finish_reason":"length"}]}`
	e := startEngine(t, func(a *asked) {
		a.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
		for at := 0; at < len(whole); at += 30_000 {
			a.write(chunk(whole[at:min(at+30_000, len(whole))]))
		}
		a.write("0\r\n\r\n")
	})
	f := open(t, nil, nil, e)
	for range 2 { // the second with the buffers of the first
		a := f.do("/v1/messages", ask)
		if a.status != 200 || !strings.Contains(a.body, `"text":"`+text+`"`) || !strings.Contains(a.body, "max_tokens") {
			t.Fatalf("%d, %d bytes", a.status, len(a.body))
		}
	}
}

func TestMessagesInTime(t *testing.T) {
	e := startEngine(t, func(a *asked) {
		a.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-a.gone:
				return
			case <-tick.C:
				a.write(" ")
			}
		}
	})
	f := open(t, nil, nil, e)
	a := f.do("/v1/messages", ask, "x-request-timeout-ms: 300")
	if kind, _, code := a.fault(t); a.status != 504 || kind != "timeout_error" || code != "upstream_timeout" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestMessagesHedge lets the second of two tries win, and the first.
func TestMessagesHedge(t *testing.T) {
	events := func(who string) []string { return []string{roleEvent, delta(who), finishEvent, usageEvent, doneEvent} }
	plain := strings.Replace(jsonAnswer, "hi", "b", 1)
	for name, c := range map[string]struct {
		body string
		a, b func(*duel, *asked)
		text string
		won  uint64
	}{
		"stream, second": {askStream, func(_ *duel, x *asked) { x.write(sseHead + chunk(roleEvent)); hold(x) },
			func(_ *duel, x *asked) { stream(x, events("b")...) }, "b", 1},
		"stream, first": {askStream, func(d *duel, x *asked) { <-d.secondAsked; stream(x, events("a")...) },
			func(_ *duel, x *asked) { x.write(sseHead + chunk(roleEvent)); hold(x) }, "a", 0},
		"plain, second": {ask, func(_ *duel, x *asked) { hold(x) }, func(_ *duel, x *asked) { replyJSON(x, 200, plain) }, "b", 1},
		"plain, first": {ask, func(d *duel, x *asked) { <-d.secondAsked; replyJSON(x, 200, strings.Replace(plain, `"b"`, `"a"`, 1)) },
			func(_ *duel, x *asked) { hold(x) }, "a", 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := openDuel(t, c.a, c.b)
			a := d.do("/v1/messages", c.body, interactive)
			if strings.Count(a.body, `"text":"`+c.text+`"`) != 1 || strings.Count(a.body, `"stop_reason":"end_turn"`) != 1 || a.err != nil {
				t.Errorf("%d %v %s", a.status, a.err, a.body)
			}
			if s := d.outcome(); s.Outcome != slo.OK {
				t.Errorf("%+v", s)
			}
			d.hedges(t, 1, c.won)
		})
	}
}
