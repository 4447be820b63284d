package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestHeadScan(t *testing.T) {
	var h Head
	body := []byte(`{"messages":[{"role":"user","content":"a \"model\": {[ \\"}], "model" : "m1",
		"stream":true,"max_tokens":5,"max_completion_tokens":7,"n":2,"stream_options":{"x":1,"include_usage":false}}`)
	if err := h.Scan(body); err != nil {
		t.Fatal(err)
	}
	if string(h.Model) != "m1" || !h.Stream || h.MaxTokens != 7 || h.N != 2 || h.IncludeUsage {
		t.Fatalf("%+v", h)
	}
	if got := string(body[h.ModelSpan.Start:h.ModelSpan.End]); got != `"m1"` {
		t.Fatal(got)
	}
	if got := body[h.Prompt.Start:h.Prompt.End]; got[0] != '[' || got[len(got)-1] != ']' {
		t.Fatalf("%q", got)
	}
}

func TestHeadRefuses(t *testing.T) {
	deep := strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1)
	for _, body := range []string{
		``, ` `, `[]`, `"x"`, `{`, `{"model"`, `{"model":}`, `{"model":"m",}`, `{"model":"m"}x`, `{"model":"m"} {}`,
		`{"model":5}`, `{"model":"m","stream":"yes"}`, `{"model":"m","max_tokens":"9"}`, `{"model":"m","stream_options":5}`,
		`{"model":"m","a":[1,]}`, `{"model":"m","a":[1 2]}`, `{"model":"m","a":{"b"}}`, `{"model":"m","a":01}`,
		`{"model":"m","a":tru}`, `{"model":"m","a":NaN}`, `{"model":"m","a":[}}`, `{"a":` + deep + `}`, "{\"model\":\"m\"}\x00",
		`{"model":"` + strings.Repeat("x", MaxModelBytes+1) + `"}`, `{,"model":"m"}`, `{"a":{,}}`, `{"a":[,1]}`,
	} {
		var h Head
		err := h.Scan([]byte(body))
		var be *BodyError
		if !errors.As(err, &be) {
			t.Errorf("%.40s: accepted", body)
		}
	}
}

func TestCase_SEC_08_duplicate_keys(t *testing.T) {
	for _, body := range []string{
		`{"model":"small","messages":[],"model":"large"}`,
		`{"model":"small","mo\u0064el":"large"}`,
		`{"\u006d\u006F\u0064\u0065\u006c":"large","model":"small"}`,
		`{"model":"m","stream":false,"stream":true}`,
		`{"model":"m","max_tokens":1,"max_tokens":100000}`,
		`{"model":"m","max_completion_tokens":1,"max_completion_tokens":100000}`,
		`{"model":"m","stream_options":{},"stream_options":{"include_usage":true}}`,
		`{"model":"m","stream_options":{"include_usage":true,"include_usage":false}}`,
		`{"model":"m","n":1,"n":5}`,
	} {
		var h Head
		var be *BodyError
		if err := h.Scan([]byte(body)); !errors.As(err, &be) || be.Param == "" {
			t.Errorf("%s: %v", body, err)
		}
	}
	var h Head
	if err := h.Scan([]byte(`{"Model":"large","model":"small","messages":[{"a":1,"a":2}]}`)); err != nil || string(h.Model) != "small" {
		t.Fatal(err, string(h.Model))
	}
	if err := h.Scan([]byte(`{"model":"sm\u0061ll"}`)); err != nil || string(h.Model) != "small" {
		t.Fatal(err, string(h.Model))
	}
}

func TestCase_SEC_09_deep_json(t *testing.T) {
	for _, body := range []string{
		`{"model":"m","messages":` + strings.Repeat("[", 5_000_000),
		`{"model":"m","messages":` + strings.Repeat("[", 5_000_000) + strings.Repeat("]", 5_000_000) + "}",
		strings.Repeat(`{"a":`, 1_000_000),
	} {
		var h Head
		from := time.Now()
		if err := h.Scan([]byte(body)); err == nil {
			t.Error("accepted")
		}
		if d := time.Since(from); d > time.Second {
			t.Error(d)
		}
		ReadEvent(nil, []byte(body))
		var u UsageScanner
		u.Feed([]byte(body))
	}
	var h Head
	if err := h.Scan([]byte(`{"model":"m","tools":` + strings.Repeat(`{"p":[`, 25) + strings.Repeat(`]}`, 25) + `}`)); err != nil {
		t.Fatal(err)
	}
}

func join(parts [][]byte) []byte { return bytes.Join(parts, nil) }

func TestAppendEdits(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{`{"model":"a","x":1}`, `{"stream_options":{"include_usage":true},"model":"b-2","x":1}`},
		{`{ "x":1,"model":"a"}`, `{"stream_options":{"include_usage":true}, "x":1,"model":"b-2"}`},
		{`{"stream_options":null,"model":"a"}`, `{"stream_options":{"include_usage":true},"model":"b-2"}`},
		{`{"model":"a","stream_options":{}}`, `{"model":"b-2","stream_options":{"include_usage":true}}`},
		{`{"model":"a","stream_options":{"k":2}}`, `{"model":"b-2","stream_options":{"include_usage":true,"k":2}}`},
		{`{"model":"a","stream_options":{"include_usage":false,"k":2}}`, `{"model":"b-2","stream_options":{"include_usage":true,"k":2}}`},
		{`{"model":"a","stream_options":{"include_usage":true}}`, `{"model":"b-2","stream_options":{"include_usage":true}}`},
		{`{"stream_options":{"include_usage":null},"model":"\u0061"}`, `{"stream_options":{"include_usage":true},"model":"b-2"}`},
	} {
		var h Head
		if err := h.Scan([]byte(c.body)); err != nil {
			t.Fatal(c.body, err)
		}
		parts, _ := h.AppendEdits(nil, nil, []byte(c.body), Edits{Model: "b-2", IncludeUsage: true})
		if got := string(join(parts)); got != c.want || len(parts) > MaxParts {
			t.Errorf("%s\n got %s\nwant %s", c.body, got, c.want)
		}
		parts, _ = h.AppendEdits(nil, nil, []byte(c.body), Edits{})
		if string(join(parts)) != c.body {
			t.Errorf("no edits: %s", join(parts))
		}
	}
}

func TestCase_GW_27_only_the_model_changes(t *testing.T) {
	body := `{"model":"alias","messages":[],"seed":9007199254740993,"x_custom":{"id":12345678901234567890,"f":1e400,` +
		`"z":0.10000000000000000001},"metadata":{"k":"\u0000\ud83d\ude00"}}`
	var h Head
	if err := h.Scan([]byte(body)); err != nil {
		t.Fatal(err)
	}
	parts, _ := h.AppendEdits(nil, nil, []byte(body), Edits{Model: "real/name"})
	if got, want := string(join(parts)), strings.Replace(body, `"alias"`, `"real/name"`, 1); got != want {
		t.Fatal(got)
	}
}

func FuzzHead(f *testing.F) {
	f.Add([]byte(`{"model":"m","stream":true,"max_tokens":3,"messages":[{"content":"x\"y"}],"stream_options":{"include_usage":true}}`))
	f.Add([]byte(`{"mo\u0064el":"\ud83d\ude00","n":1e2,"a":[{},[],{"b":-0.5E+7}]}`))
	f.Add([]byte(`{"stream":null,"stream_options":null,"model":"x"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var h Head
		err := h.Scan(body)
		var ref map[string]json.RawMessage
		if json.Unmarshal(body, &ref) != nil || ref == nil {
			return // we are laxer about what is inside strings, and null is no object
		}
		if err != nil {
			var be *BodyError
			if !errors.As(err, &be) {
				t.Fatalf("%T", err)
			}
			if be.Param == "" && be.Reason != flawDepth.text() {
				t.Fatalf("refused valid JSON: %v", err)
			}
			return
		}
		var want struct {
			Model  *string `json:"model"`
			Stream *bool   `json:"stream"`
		}
		for k, v := range ref { // exact names only: Go's decoder ignores case
			switch k {
			case "model":
				if json.Unmarshal(v, &want.Model) != nil {
					t.Fatalf("model %s accepted", v)
				}
			case "stream":
				if json.Unmarshal(v, &want.Stream) != nil {
					t.Fatalf("stream %s accepted", v)
				}
			}
		}
		if want.Model != nil && *want.Model != string(h.Model) && !strings.ContainsRune(*want.Model, '\ufffd') {
			t.Fatalf("model %q, want %q", h.Model, *want.Model)
		}
		if (want.Stream != nil && *want.Stream) != h.Stream {
			t.Fatal("stream differs")
		}
		parts, _ := h.AppendEdits(nil, nil, body, Edits{Model: "other", IncludeUsage: true})
		checkEdited(t, join(parts), ref)
	})
}

func checkEdited(t *testing.T, edited []byte, ref map[string]json.RawMessage) {
	var got map[string]json.RawMessage
	if err := json.Unmarshal(edited, &got); err != nil {
		t.Fatalf("%s: %v", edited, err)
	}
	var h Head
	if err := h.Scan(edited); err != nil || !h.IncludeUsage {
		t.Fatalf("%s: %v", edited, err)
	}
	for k, v := range ref {
		if k != "model" && k != "stream_options" && !bytes.Equal(got[k], v) {
			t.Fatalf("%s changed", k)
		}
	}
}
