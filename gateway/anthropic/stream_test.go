package anthropic

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// sseEvent is one event of a message's stream, as far as its order is checked.
type sseEvent struct {
	Type         string
	Index        int
	ContentBlock struct{ Type, ID, Name string } `json:"content_block"`
	Delta        struct {
		Type, Text, Thinking string
		PartialJSON          string `json:"partial_json"`
		StopReason           string `json:"stop_reason"`
	}
	Error struct{ Type, Message string }
}

// checked reads a translated stream as a client does and reports the first break of the API's order.
func checked(out []byte) (events []sseEvent, err error) {
	open, next, started, over := -1, 0, false, false
	kind, input := "", ""
	for text := range strings.SplitSeq(strings.TrimSuffix(string(out), "\n\n"), "\n\n") {
		if text == "" {
			continue
		}
		name, data, ok := strings.Cut(text, "\n")
		name, named := strings.CutPrefix(name, "event: ")
		data, dated := strings.CutPrefix(data, "data: ")
		var e sseEvent
		if !ok || !named || !dated || strings.ContainsAny(data, "\r\n") || json.Unmarshal([]byte(data), &e) != nil || e.Type != name {
			return events, fmt.Errorf("no event: %q", text)
		}
		events = append(events, e)
		good := started && !over
		switch e.Type {
		case "ping":
			good = !over
		case "error":
			good, over = !over && e.Error.Message != "" && e.Error.Type != "", true
		case "message_start":
			good, started = !started && !over, true
		case "content_block_start":
			good = good && open < 0 && e.Index == next
			open, kind, input = e.Index, e.ContentBlock.Type, ""
			next++
			good = good && (kind != kindTool || e.ContentBlock.ID != "" && e.ContentBlock.Name != "")
		case "content_block_delta":
			input += e.Delta.PartialJSON
			want := map[string]string{kindText: "text_delta", kindThinking: "thinking_delta", kindTool: "input_json_delta"}
			good = good && open == e.Index && e.Delta.Type == want[kind] && e.Delta.Text+e.Delta.Thinking+e.Delta.PartialJSON != ""
		case "content_block_stop":
			good = good && open == e.Index
			open = -1
		case "message_delta":
			good = good && open < 0 && e.Delta.StopReason != ""
		case "message_stop":
			over = true
		default:
			good = false
		}
		if !good {
			return events, fmt.Errorf("out of order: %s", text)
		}
	}
	return events, nil
}

// whole translates a stream that ends in order, in pieces of the given sizes, which are used again and again.
func whole(p []byte, sizes ...int) ([]byte, *Stream) {
	var s Stream
	s.Begin(Answer{ID: "req_1", Model: "big"})
	var out []byte
	for i := 0; len(p) > 0; i++ {
		n := min(max(1, sizes[i%len(sizes)]), len(p))
		piece := bytes.Clone(p[:n]) // what the stream keeps must not be ours
		out = s.Feed(out, piece)
		clear(piece)
		p = p[n:]
	}
	return s.End(out), &s
}

// samples are the streams of the golden file.
func samples(t testing.TB) (all []string) {
	t.Helper()
	body, err := os.ReadFile("testdata/golden/stream")
	if err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(string(body), "\n\n") {
		_, text, ok := strings.Cut(part, "stream")
		input, _, _ := strings.Cut(text, "\n----")
		if !ok {
			continue
		}
		var b strings.Builder
		for line := range strings.Lines(input) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, ":") {
				b.WriteString(line + "\n\n")
			} else if line != "" && line != "-" && line != "hide" {
				b.WriteString("data: " + line + "\n\n")
			}
		}
		all = append(all, b.String())
	}
	if len(all) < 10 {
		t.Fatalf("%d streams in the golden file", len(all))
	}
	return all
}

func TestStreamIsTheSameUnderEverySplit(t *testing.T) {
	all := samples(t)
	for _, text := range all {
		want, _ := whole([]byte(text), len(text))
		if _, err := checked(want); err != nil {
			t.Fatal(err)
		}
		for at := 1; at < len(text); at++ {
			if got, _ := whole([]byte(text), at, len(text)); !bytes.Equal(got, want) {
				t.Fatalf("split at %d of %q:\n%s\nnot\n%s", at, text, got, want)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom(all).Draw(t, "stream")
		text = strings.ReplaceAll(text, "\n", rapid.SampledFrom([]string{"\n", "\r\n", "\r"}).Draw(t, "line end"))
		want, _ := whole([]byte(text), len(text))
		if got, _ := whole([]byte(text), rapid.SliceOfN(rapid.IntRange(1, 40), 1, 8).Draw(t, "sizes")...); !bytes.Equal(got, want) {
			t.Fatalf("%s\nnot\n%s", got, want)
		}
	})
}

// toolInputs are the arguments of each call, put together as a client does.
func toolInputs(events []sseEvent) map[string]string {
	out, open := map[string]string{}, ""
	for _, e := range events {
		switch e.Type {
		case "content_block_start":
			if open = e.ContentBlock.ID; e.ContentBlock.Type == kindTool {
				out[open] = ""
			}
		case "content_block_delta":
			if e.Delta.Type == "input_json_delta" {
				out[open] += e.Delta.PartialJSON
			}
		}
	}
	return out
}

// TestCase_GW_18_CallsAreNeverGlued plays interleaved calls in every order of their fragments.
func TestCase_GW_18_CallsAreNeverGlued(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		calls := []string{`{"city":"Paris \"}\"","n":[1,{}]}`, `{"zone":"CET"}`, `{}`}
		form := rapid.IntRange(0, 2).Draw(t, "form") // ids without index; index 0 and ids; right index, ids at first only
		at := make([]int, len(calls))
		var b strings.Builder
		for open := len(calls); open > 0; {
			i := rapid.IntRange(0, len(calls)-1).Draw(t, "call")
			if at[i] > len(calls[i]) {
				continue
			}
			n := 0
			c := map[string]any{}
			f := map[string]any{}
			if at[i] == 0 {
				f["name"] = fmt.Sprint("f", i)
				at[i] = 1
			} else {
				n = rapid.IntRange(1, len(calls[i])).Draw(t, "bytes")
				from := at[i] - 1
				to := min(from+n, len(calls[i]))
				f["arguments"] = calls[i][from:to]
				if at[i] = to + 1; to == len(calls[i]) {
					open--
				}
			}
			c["function"] = f
			if form != 2 || f["name"] != nil {
				c["id"] = fmt.Sprint("call_", i)
			}
			if form > 0 {
				c["index"] = []int{0, i}[form-1]
			}
			data, _ := json.Marshal(map[string]any{"choices": []any{map[string]any{"delta": map[string]any{"tool_calls": []any{c}}}}})
			fmt.Fprintf(&b, "data: %s\n\n", data)
		}
		b.WriteString("data: [DONE]\n\n")
		out, s := whole([]byte(b.String()), 1<<20)
		events, err := checked(out)
		if err != nil || s.Fault {
			t.Fatalf("%v\n%s", err, out)
		}
		got := toolInputs(events)
		for i, want := range calls {
			if id := fmt.Sprint("call_", i); len(got) != len(calls) || got[id] != want {
				t.Fatalf("%s: %q, want %q (%d calls)", id, got[id], want, len(got))
			}
		}
	})
}

func TestStreamHoldsNoMoreThanItsLimit(t *testing.T) {
	big := strings.Repeat("x", 64<<10)
	var b strings.Builder
	b.WriteString(`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{"}}]}}]}` + "\n\n")
	for range 20 {
		b.WriteString(`data: {"choices":[{"delta":{"tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":"{\"` + big + `"}}]}}]}` + "\n\n")
	}
	out, s := whole([]byte(b.String()), 4096)
	if _, err := checked(out); err != nil || !s.Fault || s.held > MaxHeldBytes || !strings.Contains(string(out), "too large") {
		t.Fatalf("%v, %d held, fault %v", err, s.held, s.Fault)
	}
}

func TestStreamBoundsCalls(t *testing.T) {
	var b strings.Builder
	for i := range MaxCalls + 1 {
		fmt.Fprintf(&b, `data: {"choices":[{"delta":{"tool_calls":[{"index":%d,"id":"c%d","function":{"name":"g","arguments":"{}"}}]}}]}`+"\n\n", i, i)
	}
	out, s := whole([]byte(b.String()), 4096)
	if _, err := checked(out); err != nil || !s.Fault || s.calls != MaxCalls {
		t.Fatalf("%v, %d calls, fault %v", err, s.calls, s.Fault)
	}
}

// TestStreamAllocatesNothing holds that a chunk costs no allocation once its block is open.
func TestStreamAllocatesNothing(t *testing.T) {
	if raceOn {
		t.Skip("the race detector allocates")
	}
	var s Stream
	a := Answer{ID: "req_1", Model: "big"}
	chunk := []byte(`data: {"id":"c1","choices":[{"index":0,"delta":{"content":"hel\"lo"}}]}` + "\n\n")
	out := make([]byte, 0, 4096)
	s.Begin(a)
	out = s.Feed(out[:0], chunk)
	if n := testing.AllocsPerRun(200, func() { out = s.Feed(out[:0], chunk) }); n > 0 {
		t.Errorf("%v allocations a chunk", n)
	}
}
