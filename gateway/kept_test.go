package gateway

import (
	"bufio"
	"fmt"
	"strings"
	"testing"

	"sluice/router"
	"sluice/slo"
)

// keeper is an engine of the responses API that names itself in its ids.
func keeper(t *testing.T, name string) *engine {
	return startEngine(t, func(a *asked) {
		method, path, _ := strings.Cut(a.head, " ")
		path, _, _ = strings.Cut(path, " ")
		switch {
		case method == "POST" && path == "/v1/responses" && strings.Contains(a.body, `"stream":true`):
			stream(a, typed("response.created", `"response":{"id":"resp_`+name+`","status":"in_progress"}`),
				typed("response.output_text.delta", `"delta":"hi"`),
				typed("response.completed", `"response":{"id":"resp_`+name+`","usage":{"input_tokens":5,"output_tokens":2}}`))
		case method == "POST" && path == "/v1/responses":
			replyJSON(a, 200, `{"id":"resp_`+name+`","object":"response","output":[],"usage":{"input_tokens":5,"output_tokens":2}}`)
		case strings.Contains(path, "stream=true"):
			stream(a, typed("response.completed", `"response":{"id":"resp_`+name+`"}`))
		default:
			replyJSON(a, 200, fmt.Sprintf(`{"by":%q,"did":%q}`, name, method+" "+path))
		}
	})
}

func typed(name, members string) string {
	return "event: " + name + "\ndata: {\"type\":\"" + name + "\"," + members + "}\n\n"
}

func keptFloor(t *testing.T) (*floor, [2]*engine) {
	engines := [2]*engine{keeper(t, "a"), keeper(t, "b")}
	m := router.Model{Name: "m", Speaks: []string{"responses"}}
	for i, e := range engines {
		m.Replicas = append(m.Replicas, router.Replica{ID: fmt.Sprint("r", i), Addr: e.addr, MaxInFlight: 4, UpstreamModel: "real"})
	}
	return openModels(t, keyring{
		hashOf("sk-1"): {ID: "k1", Tenant: "one"}, hashOf("sk-2"): {ID: "k2", Tenant: "two"},
	}, nil, m, router.Model{Name: "plain", Replicas: []router.Replica{{ID: "p", Addr: engines[0].addr, MaxInFlight: 4}}}), engines
}

func (f *floor) about(method, path, key string) answer {
	f.t.Helper()
	return readAnswer(bufio.NewReader(f.raw(method + " " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nAuthorization: Bearer " + key + "\r\n\r\n")))
}

func TestResponsesAreFoundAgain(t *testing.T) {
	f, _ := keptFloor(t)
	const auth = "Authorization: Bearer sk-1"
	seen := map[string]bool{}
	asked := 0
	for ; len(seen) < 2; asked++ {
		body := `{"model":"m","input":"x","max_output_tokens":9}`
		if asked%2 == 1 {
			body = `{"model":"m","input":"x","stream":true}`
		}
		a := f.do("/v1/responses", body, auth)
		if a.status != 200 || strings.Contains(a.body, "[DONE]") {
			t.Fatalf("%d %s", a.status, a.body)
		}
		for _, name := range []string{"a", "b"} {
			if strings.Contains(a.body, "resp_"+name) {
				seen[name] = true
			}
		}
	}
	for _, s := range f.settled(asked) {
		if s.InputTokens != 5 || s.OutputTokens != 2 || s.Outcome != slo.OK {
			t.Errorf("%+v", s)
		}
	}
	for name := range seen {
		id := "/v1/responses/resp_" + name
		for _, c := range []struct{ method, path, did string }{
			{"GET", id, ""}, {"GET", id + "/input_items?limit=3", ""}, {"POST", id + "/cancel", ""}, {"DELETE", id, ""},
			{"GET", id + "?include[]=x", ""},
		} {
			if a := f.about(c.method, c.path, "sk-1"); a.status != 200 || a.body != fmt.Sprintf(`{"by":%q,"did":%q}`, name, c.method+" "+c.path) {
				t.Errorf("%s %s: %d %s", c.method, c.path, a.status, a.body)
			}
			if a := f.about(c.method, c.path, "sk-2"); a.status != 404 || a.code() != "response_not_found" {
				t.Errorf("%s %s by another tenant: %d %s", c.method, c.path, a.status, a.body)
			}
			if a := f.about(c.method, c.path, "sk-3"); a.status != 401 {
				t.Errorf("%s %s without a key: %d", c.method, c.path, a.status)
			}
		}
		if a := f.about("GET", id+"?stream=true", "sk-1"); a.status != 200 || !strings.Contains(a.body, "response.completed") {
			t.Errorf("stream: %d %s", a.status, a.body)
		}
		for range 4 { // what goes on from a response goes where it is kept
			a := f.do("/v1/responses", `{"model":"m","input":"x","previous_response_id":"resp_`+name+`"}`, auth)
			if !strings.Contains(a.body, "resp_"+name) {
				t.Errorf("after resp_%s: %s", name, a.body)
			}
		}
		a := f.do("/v1/responses", `{"model":"m","input":"x","previous_response_id":"resp_`+name+`"}`, "Authorization: Bearer sk-2")
		if a.status != 404 || a.code() != "response_not_found" {
			t.Errorf("another tenant went on: %d %s", a.status, a.body)
		}
		// One that nobody remembers may be another tenant's.
		a = f.do("/v1/responses", `{"model":"m","input":"x","previous_response_id":"resp_forgotten"}`, auth)
		if a.status != 404 || a.code() != "response_not_found" {
			t.Errorf("after a forgotten one: %d %s", a.status, a.body)
		}
	}
}

func TestResponsesRefused(t *testing.T) {
	f, engines := keptFloor(t)
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/v1/responses/resp_unknown", 404, "response_not_found"},
		{"PUT", "/v1/responses/resp_a", 405, "method_not_allowed"},
		{"GET", "/v1/responses/resp_a/cancel", 405, "method_not_allowed"},
		{"GET", "/v1/responses/resp_a/other", 404, "not_found"},
		{"GET", "/v1/responses/", 404, "not_found"},
		{"GET", "/v1/responses/a%2fb", 404, "not_found"},
	} {
		if a := f.about(c.method, c.path, "sk-1"); a.status != c.status || a.code() != c.code {
			t.Errorf("%s %s: %d %s", c.method, c.path, a.status, a.body)
		}
	}
	a := f.do("/v1/responses", `{"model":"plain","input":"x"}`, "Authorization: Bearer sk-1")
	if a.status != 404 || a.code() != "api_not_supported" || !strings.Contains(a.body, "speaks") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if n := engines[0].served.Load() + engines[1].served.Load(); n != 0 {
		t.Errorf("engines saw %d requests", n)
	}
}

// A stream of typed events that breaks off is no success, and is told in the same form.
func TestResponsesBrokenStream(t *testing.T) {
	for name, end := range map[string]string{"framed": "0\r\n\r\n", "cut": ""} {
		e := startEngine(t, func(a *asked) {
			a.write(sseHead + chunk(typed("response.created", `"response":{"id":"resp_x"}`)) + chunk(typed("response.output_text.delta", `"delta":"hi"`)) + end)
			a.conn.Close()
		})
		f := openModels(t, nil, nil, router.Model{Name: "m", Speaks: []string{"responses"},
			Replicas: []router.Replica{{ID: "r", Addr: e.addr, MaxInFlight: 4}}})
		a := f.do("/v1/responses", `{"model":"m","input":"x","stream":true}`)
		if !strings.Contains(a.body, "event: error\ndata: {\"type\":\"error\",") || !strings.Contains(a.body, `"error":{"message":`) || strings.Contains(a.body, "[DONE]") {
			t.Errorf("%s: %q", name, a.body)
		}
		if s := f.outcome(); s.Outcome != slo.UpstreamLost {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestKeptBookIsBounded(t *testing.T) {
	var b keptBook
	for i := range maxKept + 10 {
		b.note(fmt.Appendf(nil, "resp_%d", i), keptAt{tenant: "t", replica: fmt.Sprint(i)})
	}
	if len(b.at) != maxKept || len(b.ring) != maxKept {
		t.Fatalf("%d ids, %d in order", len(b.at), len(b.ring))
	}
	for i, want := range map[int]bool{0: false, 9: false, 10: true, maxKept + 9: true} {
		if at, known := b.find(fmt.Appendf(nil, "resp_%d", i), "t"); known != want || known && at.replica != fmt.Sprint(i) {
			t.Errorf("%d: %v %v", i, known, at)
		}
	}
	b.note([]byte("resp_20"), keptAt{tenant: "thief"})
	if _, known := b.find([]byte("resp_20"), "t"); !known {
		t.Error("a response changed its owner")
	}
}

func TestPlainEndpoints(t *testing.T) {
	e := startEngine(t, func(a *asked) {
		if strings.Contains(a.head, "tokenize") {
			replyJSON(a, 200, `{"count":3,"tokens":[1,2,3]}`)
			return
		}
		replyJSON(a, 200, `{"id":"r","results":[{"index":0,"relevance_score":0.9}],"usage":{"total_tokens":56}}`)
	})
	f := open(t, nil, nil, e)
	for _, path := range []string{"/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score", "/tokenize", "/detokenize"} {
		body := `{"model":"m","query":"x","documents":["a","b"],"stream":true}`
		if a := f.do(path, body); a.status != 200 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
		if head, got := e.last(); got != strings.Replace(body, `"m"`, `"real"`, 1) || !strings.HasPrefix(head, "POST "+path+" ") {
			t.Errorf("%s: %q %q", path, head, got)
		}
	}
	samples := f.settled(5) // what costs no tokens is no load to plan for
	for _, s := range samples {
		if s.InputTokens != 56 || s.OutputTokens != 0 {
			t.Errorf("%+v", s)
		}
	}
}
