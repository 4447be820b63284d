package anthropic

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"sluice/gateway/wire"
)

func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"model":"m","max_tokens":1,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image","source":{"type":"url","url":"u"}}]}],"stream":true}`))
	f.Add([]byte(`{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b","input":{"c":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"x"}],"is_error":true}]}],"tools":[{"name":"b","input_schema":{}}],"tool_choice":{"type":"tool","name":"b"}}`))
	f.Add([]byte(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],"thinking":{"type":"enabled","budget_tokens":1},"output_config":{"effort":"low","format":{"type":"json_schema","schema":{}}},"metadata":{"user_id":"u"},"stop_sequences":["a"],"top_k":1,"x\u0041":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		chat, _, err := AppendChat(nil, body)
		if err != nil {
			return
		}
		if !json.Valid(chat) {
			t.Fatalf("not JSON: %s", chat)
		}
		var h wire.Head
		if err := h.Scan(chat); err != nil && !strings.Contains(err.Error(), "nested") && !strings.Contains(err.Error(), "model") {
			t.Fatalf("%v: %s", err, chat)
		}
		if n := EstimateTokens(chat); n < 0 || n > imageTokens*len(chat) {
			t.Fatalf("%d tokens", n)
		}
	})
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"id":"a","choices":[{"message":{"content":"x","reasoning":"y","tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"a\":1}"}}]},"finish_reason":"stop","stop_reason":"E"}],"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":2}}}`), 500)
	f.Fuzz(func(t *testing.T, body []byte, status int) {
		message, err := AppendMessage(nil, body, Answer{ID: "r", Model: "m"})
		if err == nil && !json.Valid(message) || err != nil && len(message) > 0 {
			t.Fatalf("%v: %s", err, message)
		}
		kind, text := EngineError(body, status)
		if e := AppendError(nil, Error{Type: kind, Message: text}); !json.Valid(e) || len(e) > 8*maxErrorText {
			t.Fatalf("not an error: %s", e)
		}
	})
}

func FuzzStream(f *testing.F) {
	for _, text := range samples(f) {
		f.Add([]byte(text), 7)
	}
	f.Fuzz(func(t *testing.T, p []byte, size int) {
		want, s := whole(p, len(p)+1)
		events, err := checked(want)
		if err != nil {
			t.Fatalf("%v:\n%s", err, want)
		}
		if !s.Ended() {
			t.Fatal("it does not end")
		}
		for id, input := range toolInputs(events) {
			if !s.Fault && s.end.finish != "length" && input != "" && input[0] != '{' {
				t.Fatalf("%s: %q", id, input)
			}
		}
		if got, _ := whole(p, size%64, 3); !bytes.Equal(got, want) {
			t.Fatalf("%s\nnot\n%s", got, want)
		}
	})
}
