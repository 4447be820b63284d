package gateway

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"sluice/slo"
)

// gzipped returns p compressed.
func gzipped(t *testing.T, p []byte) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(p); err != nil {
		t.Fatal(err)
	}
	w.Close()
	return b.String()
}

func TestCase_GW_18_deltas_pass_unchanged(t *testing.T) {
	call := func(index, id, name, arguments string) string {
		return `data: {"choices":[{"index":0,"delta":{"tool_calls":[{` + index + id + `"function":{` + name + `"arguments":"` + arguments + `"}}]}}]}` + "\n\n"
	}
	for name, events := range map[string]string{
		"no index": call("", `"id":"call_a",`, `"name":"get_weather",`, `{\"c`) + call("", `"id":"call_b",`, `"name":"get_time",`, `{\"z`) +
			call("", `"id":"call_a",`, "", `ity\":1}`) + call("", `"id":"call_b",`, "", `one\":2}`),
		"same index": call(`"index":0,`, `"id":"call_a",`, `"name":"get_weather",`, `{`) + call(`"index":0,`, `"id":"call_b",`, `"name":"get_time",`, `{`),
		"id once": call(`"index":0,`, `"id":"call_a",`, `"name":"get_weather",`, `{`) + call(`"index":1,`, `"id":"call_b",`, `"name":"get_time",`, `{`) +
			call(`"index":0,`, "", "", `}`) + call(`"index":1,`, "", "", `}`),
	} {
		text := events + finishEvent + doneEvent
		e := startEngine(t, func(a *asked) { stream(a, strings.SplitAfter(text, "\n\n")...) })
		f := open(t, nil, nil, e)
		if a := f.do("/v1/chat/completions", chatStream); a.body != text {
			t.Errorf("%s: %q", name, a.body)
		}
	}
}

func TestCase_GW_19_two_choices(t *testing.T) {
	part := func(index int, text, finish string) string {
		return fmt.Sprintf("data: {\"choices\":[{\"index\":%d,\"delta\":{\"content\":%q},\"logprobs\":{\"content\":[{\"token\":%q,\"logprob\":-0.5}]},\"finish_reason\":%s}]}\n\n",
			index, text, text, finish)
	}
	events := []string{part(0, "a", "null"), part(1, "x", "null"), part(0, "b", "null"), part(1, "y", "null"), part(0, "", `"stop"`), part(1, "", `"stop"`), usageEvent, doneEvent}
	e := startEngine(t, func(a *asked) { stream(a, events...) })
	f := open(t, nil, nil, e)
	a := f.do("/v1/chat/completions", `{"model":"m","n":2,"stream":true,"logprobs":true,"top_logprobs":1,"stream_options":{"include_usage":true},"messages":[]}`)
	if a.body != strings.Join(events, "") {
		t.Fatalf("%q", a.body)
	}
	if s := f.outcome(); s.InputTokens != 10 || s.OutputTokens != 50 || s.Outcome != slo.OK {
		t.Fatalf("%+v", s)
	}
	var b bytes.Buffer
	f.srv.Metrics().WritePrometheus(&b)
	if !strings.Contains(b.String(), `sluice_gateway_choices_total{model="m"} 2`) {
		t.Error("the books do not show two choices")
	}
}

func TestCase_GW_22_unknown_expectation(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, nil, e)
	for _, request := range []string{
		"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: something-else\r\nContent-Length: 314572800\r\n\r\n",
		post("/v1/chat/completions", chat, "Expect: 100-continue, more"),
	} {
		var buf [64]byte
		n, _ := f.raw(request).Read(buf[:])
		if !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 417 ") {
			t.Errorf("%.100q: %q", request, buf[:n])
		}
	}
	if e.served.Load() != 0 {
		t.Error("the engine was asked")
	}
}

func TestCase_GW_23_compressed_body(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, func(c *Config) { c.MaxBodyBytes = 1 << 20 }, e)
	if a := f.do("/v1/chat/completions", gzipped(t, []byte(chat)), "Content-Encoding: gzip"); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if head, body := e.last(); body != strings.Replace(chat, `"m"`, `"real"`, 1) || strings.Contains(strings.ToLower(head), "content-encoding") {
		t.Errorf("the engine got %q", body)
	}
	bomb := gzipped(t, make([]byte, 64<<20))
	for _, c := range []struct {
		body, coding string
		status       int
		code, tells  string
	}{
		{chat, "br", 415, "unsupported_content_encoding", "Content-Encoding"},
		{chat, "gzip, gzip", 415, "unsupported_content_encoding", "Content-Encoding"},
		{chat, "gzip", 400, "invalid_body", "gzip"},
		{gzipped(t, []byte(chat))[:40], "gzip", 400, "invalid_body", "gzip"},
		{bomb, "gzip", 413, "body_too_large", "1048576"},
		{gzipped(t, make([]byte, 1<<20+1)), "gzip", 413, "body_too_large", "1048576"},
	} {
		if a := f.do("/v1/chat/completions", c.body, "Content-Encoding: "+c.coding); a.status != c.status || a.code() != c.code || !strings.Contains(a.body, c.tells) {
			t.Errorf("%s: %d %s", c.coding, a.status, a.body)
		}
	}
}

// A bomb costs no memory: what is too large is never made.
func TestCase_GW_23_a_bomb_takes_no_memory(t *testing.T) {
	if raceOn {
		t.Skip("the race detector allocates")
	}
	bomb := []byte(gzipped(t, make([]byte, 64<<20)))
	if _, err := gunzip(bomb, 32<<20); err != errInflated {
		t.Fatal(err)
	}
	res := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			gunzip(bomb, 32<<20)
		}
	})
	if n := res.AllocedBytesPerOp(); n > 1<<20 {
		t.Errorf("%d bytes were allocated", n)
	}
}

// vectorsAnswer is an embeddings answer with three vectors of so many floats.
func vectorsAnswer(size int, inBase64 bool) (answer string, vectors [3][]float32) {
	var b strings.Builder
	b.WriteString(`{"object":"list","data":[`)
	for i := range vectors {
		raw := []byte{}
		for j := range size {
			x := float32(i+1) / float32(j+3)
			vectors[i] = append(vectors[i], x)
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
		}
		text, _ := json.Marshal(vectors[i])
		if inBase64 {
			text, _ = json.Marshal(base64.StdEncoding.EncodeToString(raw))
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"object":"embedding","index":%d,"embedding":%s}`, i, text)
	}
	b.WriteString(`],"model":"m","usage":{"prompt_tokens":9,"total_tokens":9}}`)
	return b.String(), vectors
}

func TestCase_GW_24_vectors_have_the_form_asked_for(t *testing.T) {
	for _, engineBase64 := range []bool{false, true} {
		reply, want := vectorsAnswer(1024, engineBase64)
		for _, chunked := range []bool{false, true} {
			e := startEngine(t, func(a *asked) {
				if !chunked {
					replyJSON(a, 200, reply)
					return
				}
				a.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
				for rest := reply; len(rest) > 0; rest = rest[min(len(rest), 999):] {
					a.write(chunk(rest[:min(len(rest), 999)]))
				}
				a.write("0\r\n\r\n")
			})
			f := open(t, nil, nil, e)
			formats := []string{`"base64"`, `"float"`, `null`, ``}
			for _, format := range formats {
				body := `{"model":"m","input":["a","b","c"]}`
				if format != "" {
					body = strings.TrimSuffix(body, "}") + `,"encoding_format":` + format + `}`
				}
				a := f.do("/v1/embeddings", body)
				if a.status != 200 || a.err != nil {
					t.Fatalf("%s: %d %v %.200s", format, a.status, a.err, a.body)
				}
				if _, got := e.last(); got != strings.Replace(body, `"m"`, `"real"`, 1) {
					t.Errorf("%s: the engine got %q", format, got)
				}
				if (format == `"base64"`) == engineBase64 && a.body != reply {
					t.Errorf("%s: what was right was changed", format)
				}
				checkVectors(t, a.body, format == `"base64"`, want)
			}
			for _, s := range f.settled(len(formats)) {
				if s.InputTokens != 9 || s.Outcome != slo.OK {
					t.Errorf("%+v", s)
				}
			}
			if a := f.do("/v1/embeddings", `{"model":"m","input":"a","encoding_format":"hex"}`); a.status != 400 || a.code() != "invalid_encoding_format" {
				t.Errorf("hex: %d %s", a.status, a.body)
			}
		}
	}
}

func checkVectors(t *testing.T, body string, inBase64 bool, want [3][]float32) {
	t.Helper()
	var got struct {
		Data []struct {
			Index     int
			Embedding json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || len(got.Data) != len(want) {
		t.Fatalf("%v, %d vectors", err, len(got.Data))
	}
	for i, d := range got.Data {
		vector := []float32{}
		if inBase64 {
			raw := []byte{}
			if err := json.Unmarshal(d.Embedding, &raw); err != nil {
				t.Fatal(err)
			}
			for at := 0; at+4 <= len(raw); at += 4 {
				vector = append(vector, math.Float32frombits(binary.LittleEndian.Uint32(raw[at:])))
			}
		} else if err := json.Unmarshal(d.Embedding, &vector); err != nil {
			t.Fatal(err)
		}
		if d.Index != i || fmt.Sprint(vector) != fmt.Sprint(want[i]) {
			t.Errorf("vector %d has index %d and %d floats, or others than sent", i, d.Index, len(vector))
		}
	}
}

func TestCase_GW_24_malformed_vectors_never_reach_the_client(t *testing.T) {
	for name, reply := range map[string]string{
		"nested": `{"data":[{"embedding":[[1,2]]}]}`,
		"cut":    `{"data":[{"embedding":[1,2`,
		"text":   `{"data":[{"embedding":["1"]}]}`,
	} {
		e := startEngine(t, func(a *asked) { replyJSON(a, 200, reply) })
		f := open(t, nil, nil, e)
		if a := f.do("/v1/embeddings", `{"model":"m","input":"a","encoding_format":"base64"}`); a.status != 502 || a.code() != "upstream_malformed" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	first, _ := vectorsAnswer(8192, false) // so long that its beginning goes out before the fault comes
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, first[:len(first)-200]+`,{"embedding":[x]}]}`) })
	f := open(t, nil, nil, e)
	if a := f.do("/v1/embeddings", `{"model":"m","input":"a","encoding_format":"base64"}`); a.err == nil {
		t.Error("a broken answer looks whole")
	}
	if s := f.outcome(); s.Outcome != slo.UpstreamError {
		t.Errorf("%+v", s)
	}
}

func TestCase_GW_27_through_an_alias(t *testing.T) {
	body := `{"model":"alias","messages":[{"role":"user","content":"x"}],"seed":9007199254740993,"x_custom":{"id":12345678901234567890,` +
		`"f":1e400,"z":0.10000000000000000001},"metadata":{"k":"\u0000\ud83d\ude00"},"Model":"another field"}`
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, nil, e)
	if a := f.do("/v1/chat/completions", body); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if _, got := e.last(); got != strings.Replace(body, `"alias"`, `"real"`, 1) {
		t.Errorf("%q", got)
	}
}
