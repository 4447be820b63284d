package gateway

import (
	"strings"
	"testing"

	"sluice/slo"
)

// messageEvent is an event of the Messages API.
func messageEvent(kind, rest string) string {
	return "event: " + kind + "\ndata: {\"type\":\"" + kind + "\"" + rest + "}\n\n"
}

var nativeEvents = []string{
	messageEvent("message_start", `,"message":{"id":"msg_1","type":"message","role":"assistant","content":[],"usage":{"input_tokens":3,"cache_read_input_tokens":6,"output_tokens":1}}`),
	messageEvent("ping", ""),
	messageEvent("content_block_start", `,"index":0,"content_block":{"type":"text","text":""}`),
	messageEvent("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":"he"}`),
	messageEvent("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":"llo 🌍"}`),
	messageEvent("content_block_stop", `,"index":0`),
	messageEvent("message_delta", `,"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":12}`),
	messageEvent("message_stop", ""),
}

func TestNativeMessagesPassUnchanged(t *testing.T) {
	const reply = `{"id":"msg_1","type":"message","content":[],"usage":{"input_tokens":3,"cache_creation_input_tokens":4,"output_tokens":5},"x":1e400}`
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, reply, "request-id: theirs") })
	f := openNative(t, e)
	sent := `{ "model" : "alias","max_tokens":5,"container":"c","messages":[{"role":"user","content":"hello"}] , "x":[1.0]}`
	a := f.do("/v1/messages", sent, "anthropic-version: 2023-06-01", "anthropic-beta: a,b", "x-api-key: nothing")
	if a.status != 200 || a.body != reply || len(a.header["Request-Id"]) != 1 || a.header.Get("Request-Id") == "theirs" {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
	head, body := e.last()
	if body != strings.Replace(sent, `"alias"`, `"real"`, 1) {
		t.Error(body)
	}
	if !strings.HasPrefix(head, "POST /v1/messages ") || !strings.Contains(head, "Anthropic-Version: 2023-06-01\r\n") ||
		!strings.Contains(head, "Anthropic-Beta: a,b\r\n") || strings.Contains(head, "nothing") {
		t.Error(head)
	}
	if s := f.outcome(); s.Outcome != slo.OK || s.InputTokens != 7 || s.OutputTokens != 5 {
		t.Errorf("%+v", s)
	}
}

func TestNativeMessagesStreamPassesUnchanged(t *testing.T) {
	text := strings.Join(nativeEvents, "")
	e := startEngine(t, func(a *asked) {
		a.write(sseHead)
		for i := range len(text) {
			a.write(chunk(text[i : i+1]))
		}
		a.write("0\r\n\r\n")
	})
	f := openNative(t, e)
	a := f.do("/v1/messages", askStream)
	if a.body != text {
		t.Errorf("%q", a.body)
	}
	if _, body := e.last(); body != strings.Replace(askStream, `"alias"`, `"real"`, 1) {
		t.Error(body)
	}
	if s := f.outcome(); s.Outcome != slo.OK || s.InputTokens != 9 || s.OutputTokens != 12 || s.TTFTMs == 0 {
		t.Errorf("%+v", s)
	}
}

func TestNativeMessagesErrors(t *testing.T) {
	const theirs = `{"type":"error","error":{"type":"rate_limit_error","message":"slow"},"request_id":"r"}`
	e := startEngine(t, func(a *asked) { replyJSON(a, 429, theirs, "Retry-After: 3") })
	f := openNative(t, e)
	if a := f.do("/v1/messages", ask); a.status != 429 || a.body != theirs || a.header.Get("Retry-After") != "3" {
		t.Errorf("%d %s", a.status, a.body)
	}
	e = startEngine(t, func(a *asked) { replyJSON(a, 400, `{"object":"error","error":{"message":"odd"}}`) })
	f = openNative(t, e)
	a := f.do("/v1/messages", ask)
	if kind, message, _ := a.fault(t); a.status != 400 || kind != "invalid_request_error" || message != "odd" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestNativeMessagesBreakInMidStream(t *testing.T) {
	failed := messageEvent("error", `,"error":{"type":"overloaded_error","message":"busy"}`)
	for name, c := range map[string]struct {
		end     func(a *asked)
		fault   string
		outcome slo.Outcome
	}{
		"its error":   {func(a *asked) { a.write(chunk(failed)); hold(a) }, "busy", slo.UpstreamError},
		"loss":        {func(a *asked) { a.conn.Close() }, "broke", slo.UpstreamLost},
		"no end":      {func(a *asked) { a.write("0\r\n\r\n"); hold(a) }, "broke", slo.UpstreamLost},
		"half an end": {func(a *asked) { a.write(chunk("event: message_stop\ndata: {\"type\":\"mess")); a.conn.Close() }, "broke", slo.UpstreamLost},
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan struct{})
			e := startEngine(t, func(a *asked) {
				a.write(sseHead + chunk(strings.Join(nativeEvents[:4], "")))
				<-seen
				c.end(a)
			})
			f := openNative(t, e)
			a := f.watch(askStream, "text_delta", seen)
			types, text, fault := messageEvents(t, a.body)
			if text != "he" || !strings.Contains(fault, c.fault) || types[len(types)-1] != "error" || a.err != nil {
				t.Errorf("%v %s", a.err, a.body)
			}
			if s := f.outcome(); s.Outcome != c.outcome || s.OutputTokens == 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestNativeMessagesTryAnotherReplica: message_start says nothing yet.
func TestNativeMessagesTryAnotherReplica(t *testing.T) {
	bad := startEngine(t, func(a *asked) {
		stream(a, nativeEvents[0], messageEvent("error", `,"error":{"type":"overloaded_error","message":"busy"}`))
	})
	good := startEngine(t, func(a *asked) { stream(a, nativeEvents...) })
	f := openNative(t, bad, good)
	for range 4 {
		if a := f.do("/v1/messages", askStream); a.body != strings.Join(nativeEvents, "") {
			t.Errorf("%q", a.body)
		}
	}
}

func TestNativeCountTokens(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, `{"input_tokens":42}`) })
	f := openNative(t, e)
	a := f.do("/v1/messages/count_tokens", `{"model":"m","messages":[]}`)
	if head, _ := e.last(); a.body != `{"input_tokens":42}` || !strings.HasPrefix(head, "POST /v1/messages/count_tokens ") {
		t.Errorf("%d %s %s", a.status, a.body, head)
	}
}
