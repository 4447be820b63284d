package gateway

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"

	"sluice/slo"
)

func TestPlainAnswer(t *testing.T) {
	e := startEngine(t, func(a *asked) {
		replyJSON(a, 200, jsonAnswer, "X-Engine: yes", "Set-Cookie: a=b", "X-Request-Id: theirs", "Connection: X-Hop", "X-Hop: 1")
	})
	f := open(t, nil, nil, e)
	c := f.raw("")
	br := bufio.NewReader(c)
	for range 3 { // on one connection
		io.WriteString(c, post("/v1/chat/completions", strings.Replace(chat, `"m"`, `"alias"`, 1), "X-Request-Id: mine-1"))
		a := readAnswer(br)
		h := a.header
		if a.status != 200 || a.body != jsonAnswer || h.Get("X-Engine") != "yes" || h.Get("Set-Cookie") != "" || h.Get("X-Hop") != "" {
			t.Fatalf("%+v", a)
		}
		if ids := h.Values("X-Request-Id"); len(ids) != 1 || ids[0] != "mine-1" {
			t.Fatal(ids)
		}
	}
	if _, body := e.last(); body != strings.Replace(chat, `"m"`, `"real"`, 1) {
		t.Fatal(body)
	}
	for _, s := range f.settled(3) {
		if s.Outcome != slo.OK || s.InputTokens != 7 || s.OutputTokens != 3 || s.Replica != "r0" || s.Model != "m" || s.E2EMs <= 0 {
			t.Fatalf("%+v", s)
		}
	}
	if st := f.srv.client.Stats(); st.Dials != 1 {
		t.Fatalf("%+v", st)
	}
}

func TestStreamOnOneConnection(t *testing.T) {
	e := startEngine(t, func(a *asked) { stream(a, delta("a"), delta("b"), finishEvent, usageEvent, doneEvent) })
	f := open(t, nil, nil, e)
	c := f.raw("")
	br := bufio.NewReader(c)
	for range 3 {
		io.WriteString(c, post("/v1/chat/completions", chatStream))
		a := readAnswer(br)
		if a.err != nil || a.body != delta("a")+delta("b")+finishEvent+doneEvent {
			t.Fatalf("%+v", a)
		}
		if a.header.Get("X-Accel-Buffering") != "no" || a.header.Get("Cache-Control") != "no-cache" || a.header.Get("Content-Length") != "" {
			t.Fatal(a.header)
		}
		// An answer of our own on the same connection.
		io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
		if a := readAnswer(br); a.status != 200 {
			t.Fatalf("%+v", a)
		}
	}
	for _, s := range f.settled(3) {
		if s.Outcome != slo.OK || s.OutputTokens != 50 || s.TTFTMs <= 0 || s.TTFTMs > s.E2EMs {
			t.Fatalf("%+v", s)
		}
	}
}

func TestPipelinedRequests(t *testing.T) {
	e := startEngine(t, func(a *asked) {
		if strings.Contains(a.body, `"stream":true`) {
			stream(a, delta("a"), finishEvent, doneEvent)
		} else {
			replyJSON(a, 200, jsonAnswer)
		}
	})
	f := open(t, nil, nil, e)
	c := f.raw("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" + post("/v1/chat/completions", chatStream) +
		"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n" + post("/v1/chat/completions", chat))
	br := bufio.NewReader(c)
	for i, want := range []string{`{"status":"ok"}`, delta("a") + finishEvent + doneEvent, "not_found", jsonAnswer} {
		a := readAnswer(br)
		if a.body != want && a.code() != want {
			t.Fatalf("%d: %+v", i, a)
		}
	}
	f.settled(2)
}

func TestCase_GW_07_usage_behind_the_back(t *testing.T) {
	e := startEngine(t, func(a *asked) {
		if strings.Contains(a.body, `"include_usage":true`) {
			stream(a, delta("a"), finishEvent, usageEvent, doneEvent)
		} else {
			stream(a, delta("a"), finishEvent, doneEvent)
		}
	})
	f := open(t, nil, nil, e)
	for i, c := range []struct {
		options string
		want    int
	}{{"", 0}, {`"stream_options":{"include_usage":false,"other":1},`, 0}, {`"stream_options":{"include_usage":true},`, 1}} {
		a := f.do("/v1/chat/completions", strings.Replace(chatStream, `"stream":true,`, `"stream":true,`+c.options, 1))
		if got := strings.Count(a.body, `"choices":[]`); got != c.want || !strings.HasSuffix(a.body, doneEvent) {
			t.Fatalf("%s: %s", c.options, a.body)
		}
		if _, body := e.last(); i == 1 && !strings.Contains(body, `"other":1`) {
			t.Fatal(body)
		}
	}
	for _, s := range f.settled(3) {
		if s.InputTokens != 10 || s.OutputTokens != 50 {
			t.Fatalf("%+v", s)
		}
	}
}

func TestCase_GW_08_done_is_lost(t *testing.T) {
	for name, e := range map[string]*engine{
		"chunked": startEngine(t, func(a *asked) { stream(a, delta("a"), delta("b"), finishEvent) }),
		"http/1.0": startEngine(t, func(a *asked) {
			a.write("HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + delta("a") + delta("b") + finishEvent)
			a.conn.Close()
		}),
		"no blank line": startEngine(t, func(a *asked) { stream(a, delta("a"), delta("b"), strings.TrimSuffix(finishEvent, "\n")) }),
	} {
		f := open(t, nil, nil, e)
		a := f.do("/v1/chat/completions", chatStream)
		if a.err != nil || a.body != delta("a")+delta("b")+finishEvent+doneEvent {
			t.Fatalf("%s: %+v", name, a)
		}
		if s := f.outcome(); s.Outcome != slo.OK || e.served.Load() != 1 {
			t.Fatalf("%s: %+v", name, s)
		}
	}
}

func TestStreamLostInTheMiddle(t *testing.T) {
	for name, tail := range map[string]string{"between events": "", "inside an event": chunk("data: {\"cho")} {
		e := startEngine(t, func(a *asked) { a.write(sseHead + chunk(delta("a")) + tail); a.conn.Close() })
		f := open(t, nil, nil, e)
		a := f.do("/v1/chat/completions", chatStream)
		rest, ok := strings.CutPrefix(a.body, delta("a")+"data: ")
		if a.err != nil || !ok || (answer{body: rest}).code() != "upstream_lost" {
			t.Fatalf("%s: %+v", name, a)
		}
		if s := f.outcome(); s.Outcome != slo.UpstreamLost {
			t.Fatalf("%+v", s)
		}
	}
}

func TestStreamAnswerForms(t *testing.T) {
	parts := delta("你好") + finishEvent + doneEvent
	for name, e := range map[string]*engine{
		"bytes": startEngine(t, func(a *asked) {
			a.write(sseHead)
			for i := range len(parts) {
				a.write(chunk(parts[i : i+1]))
			}
			a.write("0\r\n\r\n")
		}),
		"length": startEngine(t, func(a *asked) {
			a.write(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%s", len(parts), parts))
		}),
		"one write": startEngine(t, func(a *asked) { a.write(sseHead + chunk(parts) + "0\r\n\r\n") }),
	} {
		f := open(t, nil, nil, e)
		if a := f.do("/v1/chat/completions", chatStream); a.err != nil || a.body != parts {
			t.Fatalf("%s: %+v", name, a)
		}
		if s := f.outcome(); s.Outcome != slo.OK {
			t.Fatalf("%s: %+v", name, s)
		}
	}
}

func TestLargeChunkedAnswer(t *testing.T) {
	big := `{"data":"` + strings.Repeat("0123456789", 40_000) + `","usage":{"prompt_tokens":4,"total_tokens":4}}`
	e := startEngine(t, func(a *asked) {
		if strings.Contains(a.body, "chunks") {
			a.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(big[:100]) + chunk(big[100:]) + "0\r\n\r\n")
			return
		}
		replyJSON(a, 200, big)
	})
	f := open(t, nil, nil, e)
	for _, how := range []string{"chunks", "length"} {
		a := f.do("/v1/embeddings", `{"model":"m","input":"`+how+`"}`)
		if a.err != nil || a.body != big {
			t.Fatal(how, a.status, len(a.body), a.err)
		}
	}
	for _, s := range f.settled(2) {
		if s.InputTokens != 4 {
			t.Fatalf("%+v", s)
		}
	}
}

func TestOldClient(t *testing.T) {
	e := startEngine(t, func(a *asked) { stream(a, delta("a"), finishEvent, doneEvent) })
	f := open(t, nil, nil, e)
	c := f.raw(strings.Replace(post("/v1/chat/completions", chatStream), "HTTP/1.1", "HTTP/1.0", 1))
	b, _ := io.ReadAll(c)
	if _, body, _ := strings.Cut(string(b), "\r\n\r\n"); body != delta("a")+finishEvent+doneEvent {
		t.Fatalf("%q", b)
	}
}

func TestModels(t *testing.T) {
	f := open(t, nil, nil, startEngine(t, func(*asked) {}))
	get := func(path string) answer {
		return readAnswer(bufio.NewReader(f.raw("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n")))
	}
	if a := get("/v1/models"); a.status != 200 || strings.Count(a.body, `"object":"model"`) != 2 {
		t.Fatalf("%+v", a)
	}
	if a := get("/v1/models/alias"); a.status != 200 || !strings.Contains(a.body, `"id":"alias"`) {
		t.Fatalf("%+v", a)
	}
	if a := get("/v1/models/none"); a.status != 404 || a.code() != "model_not_found" {
		t.Fatalf("%+v", a)
	}
	if a := get("/readyz"); a.status != 200 {
		t.Fatalf("%+v", a)
	}
}

func TestRefusals(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, func(c *Config) { c.MaxBodyBytes = 1 << 12 }, e)
	for _, c := range []struct {
		request string
		status  int
		code    string
	}{
		{post("/v1/chat/completions", `{"model":"nope","messages":[]}`), 404, "model_not_found"},
		{post("/v1/chat/completions", `{"messages":[]}`), 400, "missing_model"},
		{post("/v1/chat/completions", `{"model":"m",`), 400, "invalid_body"},
		{post("/v1/chat/completions", `{"model":"m","model":"other"}`), 400, "invalid_body"},
		{post("/v1/chat/completions", chat, "Content-Encoding: br"), 415, "unsupported_content_encoding"},
		{post("/v1/chat/completions", chat, "X-Request-Timeout-Ms: soon"), 400, "invalid_timeout"},
		{post("/v1/chat/completions", chat, "X-Sluice-Class: urgent"), 400, "invalid_class"},
		{post("/v1/chat/completions", strings.Repeat("x", 1<<12+1)), 413, "body_too_large"},
		{post("/v1/%63hat/completions", chat), 404, "not_found"},
		{post("/V1/chat/completions", chat), 404, "not_found"},
		{post("/v1//chat/completions", chat), 404, "not_found"},
		{"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed"},
		{"GET / HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 10_000) + "\r\n\r\n", 431, "headers_too_large"},
		{post("/v1/chat/completions", `{"model":"empty","messages":[]}`), 503, "no_replica"},
	} {
		a := readAnswer(bufio.NewReader(f.raw(c.request)))
		if a.status != c.status || a.code() != c.code {
			t.Errorf("%.60q: %d %s, want %d %s", c.request, a.status, a.code(), c.status, c.code)
		}
		if retry := a.header.Get("Retry-After"); (c.status == 503) != (retry != "") {
			t.Errorf("%.60q: Retry-After %q", c.request, retry)
		}
	}
	if e.served.Load() != 0 {
		t.Fatal("an engine was asked")
	}
	f.settled(1)
}
