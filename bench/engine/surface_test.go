package engine

import (
	"bytes"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
)

func surface(t *testing.T) *server {
	cfg := fast()
	cfg.Messages, cfg.Faults = true, true
	return startHealthy(t, cfg)
}

// object posts a body and returns the answer.
func (s *server) object(path, body string) map[string]any {
	s.t.Helper()
	var out map[string]any
	s.postOK(path, body, &out)
	return out
}

// at follows names and indices into a value.
func at(t *testing.T, v any, path ...any) any {
	t.Helper()
	for i, p := range path {
		switch p := p.(type) {
		case string:
			o, ok := v.(map[string]any)
			if !ok {
				t.Fatalf("%v: no object at %v: %v", path, path[:i], v)
			}
			v = o[p]
		case int:
			l, ok := v.([]any)
			if !ok || p >= len(l) {
				t.Fatalf("%v: no item at %v: %v", path, path[:i+1], v)
			}
			v = l[p]
		}
	}
	return v
}

func is(t *testing.T, v, want any, path ...any) {
	t.Helper()
	if got := at(t, v, path...); got != want {
		t.Errorf("%v is %v, want %v", path, got, want)
	}
}

// datas are the data lines of a stream, decoded, without [DONE].
func datas(t *testing.T, raw string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for line := range strings.Lines(raw) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var v map[string]any
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			t.Fatalf("%v in %q", err, data)
		}
		out = append(out, v)
	}
	return out
}

const twoTools = `"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"unit":{"enum":["C"]},"days":{"type":["integer","null"]}}}}},` +
	`{"type":"function","function":{"name":"get_time","parameters":{"type":"object","properties":{"zones":{"type":"array","items":{"type":"string"}}}}}}]`

func TestToolCalls(t *testing.T) {
	s := surface(t)
	const body = `{"model":"sim","messages":[{"role":"user","content":"call:get_weather and call:get_time, not call:other"}],` + twoTools
	whole := s.object("/v1/chat/completions", body+"}")
	is(t, whole, "tool_calls", "choices", 0, "finish_reason")
	is(t, whole, nil, "choices", 0, "message", "content")
	is(t, whole, "get_time", "choices", 0, "message", "tool_calls", 1, "function", "name")
	var weather struct {
		City, Unit string
		Days       int
	}
	arguments := at(t, whole, "choices", 0, "message", "tool_calls", 0, "function", "arguments").(string)
	if err := json.Unmarshal([]byte(arguments), &weather); err != nil || weather.City == "" || weather.Unit != "C" {
		t.Fatalf("%v: %s", err, arguments)
	}
	// A stream makes the same calls, from fragments.
	_, raw := s.post("/v1/chat/completions", body+`,"stream":true}`)
	streamed := []string{"", ""}
	for _, v := range datas(t, raw) {
		delta := at(t, v, "choices", 0, "delta").(map[string]any)
		if delta["tool_calls"] == nil {
			continue
		}
		call := at(t, delta, "tool_calls", 0)
		streamed[int(at(t, call, "index").(float64))] += at(t, call, "function", "arguments").(string)
	}
	if streamed[0] != arguments || streamed[1] != at(t, whole, "choices", 0, "message", "tool_calls", 1, "function", "arguments") {
		t.Errorf("streamed arguments %q", streamed)
	}
	for _, c := range []struct {
		extra string
		calls int
	}{
		{`,"parallel_tool_calls":false`, 1}, {`,"tool_choice":"none"`, 0},
		{`,"tool_choice":{"type":"function","function":{"name":"get_time"}}`, 1},
	} {
		message := at(t, s.object("/v1/chat/completions", body+c.extra+"}"), "choices", 0, "message").(map[string]any)
		calls, _ := message["tool_calls"].([]any)
		if len(calls) != c.calls {
			t.Errorf("%s: %d calls", c.extra, len(calls))
		}
	}
	// Cut short, the call is not whole, and says so.
	short := s.object("/v1/chat/completions", body+`,"max_tokens":3}`)
	is(t, short, "length", "choices", 0, "finish_reason")
	is(t, short, 3.0, "usage", "completion_tokens")
}

func TestChoicesLogprobsAndFormats(t *testing.T) {
	s := surface(t)
	v := s.object("/v1/chat/completions", `{"model":"sim","messages":[{"role":"user","content":"hi"}],"n":3,"max_tokens":5,"logprobs":true,"top_logprobs":2}`)
	is(t, v, 15.0, "usage", "completion_tokens")
	is(t, v, 2.0, "choices", 2, "index")
	if n := len(at(t, v, "choices", 1, "logprobs", "content").([]any)); n != 5 {
		t.Errorf("%d tokens have log probabilities", n)
	}
	if n := len(at(t, v, "choices", 1, "logprobs", "content", 4, "top_logprobs").([]any)); n != 2 {
		t.Errorf("%d alternatives", n)
	}
	_, raw := s.post("/v1/chat/completions", `{"model":"sim","messages":[{"role":"user","content":"hi"}],"n":3,"max_tokens":5,"stream":true}`)
	texts := map[float64]string{}
	for _, e := range datas(t, raw) {
		text, _ := at(t, e, "choices", 0, "delta").(map[string]any)["content"].(string)
		texts[at(t, e, "choices", 0, "index").(float64)] += text
	}
	for i := range 3 {
		is(t, v, texts[float64(i)], "choices", i, "message", "content")
	}
	v = s.object("/v1/completions", `{"model":"sim","prompt":"hi","max_tokens":2,"logprobs":1}`)
	is(t, v, 0.0, "choices", 0, "logprobs", "text_offset", 0)
	v = s.object("/v1/chat/completions", `{"model":"sim","messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object","properties":{"ok":{"type":"boolean"}}}}}}`)
	is(t, v, `{"ok":true}`, "choices", 0, "message", "content")
	is(t, v, 3.0, "usage", "completion_tokens")
	if status, raw := s.post("/v1/chat/completions", chatBody(`,"top_logprobs":21,"logprobs":true`)); status != 400 || !strings.Contains(raw, `"param":"top_logprobs"`) {
		t.Errorf("%d %s", status, raw)
	}
}

func TestResponses(t *testing.T) {
	s := surface(t)
	v := s.object("/v1/responses", `{"model":"sim","input":"hello","max_output_tokens":4}`)
	is(t, v, "completed", "status")
	is(t, v, 4.0, "usage", "output_tokens")
	text := at(t, v, "output", 0, "content", 0, "text").(string)
	id := at(t, v, "id").(string)
	if _, raw := s.get("/v1/responses/" + id); !strings.Contains(raw, text) {
		t.Errorf("asked again: %s", raw)
	}
	if _, raw := s.get("/v1/responses/" + id + "?stream=true"); datas(t, raw)[0]["type"] != "response.created" || !strings.Contains(raw, "response.completed") {
		t.Errorf("its events again: %s", raw)
	}
	_, raw := s.post("/v1/responses", `{"model":"sim","input":[{"role":"user","content":[{"type":"input_text","text":"hello"}]}],"max_output_tokens":4,"stream":true}`)
	streamed := ""
	events := datas(t, raw)
	for i, e := range events {
		is(t, e, float64(i), "sequence_number")
		if e["type"] == "response.output_text.delta" {
			streamed += e["delta"].(string)
		}
	}
	if streamed != text {
		t.Errorf("streamed %q, want %q", streamed, text)
	}
	is(t, events[len(events)-1], "response.completed", "type")
	is(t, events[len(events)-1], 4.0, "response", "usage", "output_tokens")
	v = s.object("/v1/responses", `{"model":"sim","input":"call:f","tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{}}}]}`)
	is(t, v, "function_call", "output", 0, "type")
	is(t, v, "{}", "output", 0, "arguments")

	v = s.object("/v1/responses", `{"model":"sim","input":"long","background":true,"max_output_tokens":16000}`)
	is(t, v, "in_progress", "status")
	path := "/v1/responses/" + at(t, v, "id").(string)
	v = s.object(path+"/cancel", "")
	is(t, v, "cancelled", "status")
	if _, raw := s.get(path); !strings.Contains(raw, `"status":"cancelled"`) {
		t.Errorf("after the cancel: %s", raw)
	}
	if status, _ := s.call("DELETE", path, ""); status != 200 {
		t.Errorf("deleted: %d", status)
	}
	if status, _ := s.get(path); status != 404 {
		t.Errorf("a deleted response: %d", status)
	}
}

func TestMessages(t *testing.T) {
	s := surface(t)
	v := s.object("/v1/messages", `{"model":"sim","max_tokens":4,"system":"be brief","messages":[{"role":"user","content":"hello"}]}`)
	is(t, v, "max_tokens", "stop_reason")
	is(t, v, 4.0, "usage", "output_tokens")
	text := at(t, v, "content", 0, "text").(string)
	_, raw := s.post("/v1/messages", `{"model":"sim","max_tokens":4,"stream":true,"system":"be brief","messages":[{"role":"user","content":"hello"}]}`)
	streamed, kinds := "", []string{}
	for _, e := range datas(t, raw) {
		kinds = append(kinds, e["type"].(string))
		if e["type"] == "content_block_delta" {
			streamed += at(t, e, "delta", "text").(string)
		}
	}
	if streamed != text || kinds[0] != "message_start" || kinds[len(kinds)-1] != "message_stop" {
		t.Errorf("streamed %q by %v, want %q", streamed, kinds, text)
	}
	const tools = `{"model":"sim","max_tokens":400,"messages":[{"role":"user","content":"call:a call:b"}],"tools":[{"name":"a","input_schema":{"type":"object","properties":{"x":{"type":"integer"}}}},{"name":"b","input_schema":{"type":"object"}}]}`
	v = s.object("/v1/messages", tools)
	is(t, v, "tool_use", "stop_reason")
	is(t, v, "b", "content", 1, "name")
	if _, ok := at(t, v, "content", 0, "input", "x").(float64); !ok {
		t.Errorf("%v", v)
	}
	if n := s.object("/v1/messages/count_tokens", tools)["input_tokens"]; n != at(t, v, "usage", "input_tokens") {
		t.Errorf("counted %v", n)
	}
	if status, raw := s.post("/v1/messages", `{"model":"other","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`); status != 404 || !strings.Contains(raw, "not_found_error") {
		t.Errorf("%d %s", status, raw)
	}
}

func TestRankingAndTokens(t *testing.T) {
	s := surface(t)
	v := s.object("/v1/rerank", `{"model":"sim","query":"q","documents":["one","two","three"],"top_n":2}`)
	if len(v["results"].([]any)) != 2 || at(t, v, "results", 0, "relevance_score").(float64) < at(t, v, "results", 1, "relevance_score").(float64) {
		t.Errorf("%v", v)
	}
	v = s.object("/v1/score", `{"model":"sim","text_1":"q","text_2":["one","two"]}`)
	is(t, v, 1.0, "data", 1, "index")
	is(t, v, 4.0, "usage", "total_tokens")
	v = s.object("/tokenize", `{"model":"sim","prompt":"hello wörld"}`)
	is(t, v, 3.0, "count")
	back, err := json.Marshal(v["tokens"])
	if err != nil {
		t.Fatal(err)
	}
	is(t, s.object("/detokenize", `{"model":"sim","tokens":`+string(back)+`}`), "hello wörld", "prompt")
}

func TestTranscription(t *testing.T) {
	s := surface(t)
	send := func(stream string) (int, string) {
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		part, err := form.CreateFormFile("file", "a.wav")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = part.Write(bytes.Repeat([]byte("s"), 40_000))
		_ = form.WriteField("stream", stream)
		_ = form.WriteField("model", "sim") // after the file
		_ = form.Close()
		resp, err := s.http.Post(s.url+"/v1/audio/transcriptions", form.FormDataContentType(), &body)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(raw)
	}
	status, raw := send("false")
	var whole struct {
		Text  string
		Usage struct {
			Out int `json:"output_tokens"`
		}
	}
	if err := json.Unmarshal([]byte(raw), &whole); status != 200 || err != nil || whole.Usage.Out != 6 || len(strings.Fields(whole.Text)) != 6 {
		t.Fatalf("%d %s", status, raw)
	}
	_, raw = send("true")
	events := datas(t, raw)
	is(t, events[len(events)-1], whole.Text, "text")
}

func TestFaultsOnDemand(t *testing.T) {
	s := surface(t)
	ask := func(marker, extra string) (int, string) {
		return s.post("/v1/chat/completions", `{"model":"sim","max_tokens":20,"messages":[{"role":"user","content":"please `+marker+`"}]`+extra+`}`)
	}
	for _, c := range []struct {
		marker string
		status int
	}{{"fault:refuse-429", 429}, {"fault:refuse-500", 500}, {"fault:refuse-503", 503}, {"fault:nonsense", 400}} {
		if status, raw := ask(c.marker, ""); status != c.status {
			t.Errorf("%s: %d %s", c.marker, status, raw)
		}
	}
	first, _ := ask("fault:refuse-429/k1", "")
	if second, raw := ask("fault:refuse-429/k1", ""); first != 429 || second != 200 {
		t.Errorf("%d, then %d %s", first, second, raw)
	}
	for shape, event := range errorShapes {
		if _, raw := ask("fault:error-"+shape, `,"stream":true`); strings.Count(raw, `"content"`) != faultTokens || !strings.HasSuffix(raw, event) {
			t.Errorf("%s: %s", shape, raw)
		}
	}
	resp, err := s.do(t.Context(), "POST", "/v1/chat/completions", chatBody(`,"stream":true,"max_tokens":20,"messages":[{"role":"user","content":"fault:die"}]`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if raw, err := io.ReadAll(resp.Body); err == nil || strings.Count(string(raw), "data: ") != faultTokens {
		t.Errorf("%v after %s", err, raw)
	}
	quiet := startHealthy(t, fast())
	if status, raw := quiet.post("/v1/chat/completions", chatBody(`,"messages":[{"role":"user","content":"fault:refuse-500"}]`)); status != http.StatusOK {
		t.Errorf("a fault without leave: %d %s", status, raw)
	}
}
