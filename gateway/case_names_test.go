package gateway

import (
	"bufio"
	"strings"
	"testing"

	"sluice/router"
)

// namesFloor is a gateway with a model in two versions and two adapters, each version on its own engine.
func namesFloor(t *testing.T, keys Keys) (f *floor, old, current *engine) {
	reply := func(text string) func(a *asked) {
		return func(a *asked) { replyJSON(a, 200, `{"id":"x","choices":[],"from":"`+text+`"}`) }
	}
	old, current = startEngine(t, reply("old")), startEngine(t, reply("current"))
	f = openModels(t, keys, nil, router.Model{
		Name: "chat", Aliases: []string{"meta/Llama-3.1:8b"}, Adapters: []string{"sql", "team/legal"}, Current: "2",
		Replicas: []router.Replica{
			{ID: "r1", Addr: old.addr, Version: "1", MaxInFlight: 8, UpstreamModel: "llama"},
			{ID: "r2", Addr: current.addr, Version: "2", MaxInFlight: 8, UpstreamModel: "llama"},
		},
	}, router.Model{Name: "other"})
	return f, old, current
}

func TestNamesOfModels(t *testing.T) {
	f, _, _ := namesFloor(t, nil)
	for asked, want := range map[string]struct{ model, from string }{
		"chat:1":                       {"llama", "old"},
		"chat:v2":                      {"llama", "current"},
		"meta/Llama-3.1:8b:1":          {"llama", "old"},
		"sql":                          {"sql", ""},
		"chat:sql":                     {"sql", ""},
		"team/legal":                   {"team/legal", ""},
		"meta/Llama-3.1:8b:team/legal": {"team/legal", ""},
	} {
		for range 4 {
			a := f.do("/v1/chat/completions", `{"model":"`+asked+`","messages":[]}`)
			if a.status != 200 || want.from != "" && !strings.Contains(a.body, want.from) {
				t.Fatalf("%s: %d %s", asked, a.status, a.body)
			}
		}
	}
	a := f.do("/v1/chat/completions", `{"model":"chat:7","messages":[]}`)
	if a.status != 404 || a.code() != "model_not_found" || !strings.Contains(a.body, "Versions: 1, 2; adapters: sql, team/legal.") {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestAdapterIsTheEnginesModel(t *testing.T) {
	f, old, current := namesFloor(t, nil)
	f.do("/v1/chat/completions", `{"model":"chat:sql","messages":[]}`)
	e := old
	if current.served.Load() > 0 {
		e = current
	}
	if _, body := e.last(); body != `{"model":"sql","messages":[]}` {
		t.Errorf("the engine got %s", body)
	}
}

func TestKeysListNames(t *testing.T) {
	all := []string{"chat", "meta/Llama-3.1:8b", "chat:1", "chat:v1", "meta/Llama-3.1:8b:1", "sql", "chat:sql", "meta/Llama-3.1:8b:sql", "team/legal"}
	for listed, allowed := range map[string]string{
		"chat":              "chat meta/Llama-3.1:8b chat:1 chat:v1 meta/Llama-3.1:8b:1 sql chat:sql meta/Llama-3.1:8b:sql team/legal",
		"meta/Llama-3.1:8b": "meta/Llama-3.1:8b meta/Llama-3.1:8b:1 meta/Llama-3.1:8b:sql",
		"chat:1":            "chat:1 chat:v1 meta/Llama-3.1:8b:1",
		"sql":               "sql chat:sql meta/Llama-3.1:8b:sql",
		"chat:sql":          "sql chat:sql meta/Llama-3.1:8b:sql",
		"other":             "",
	} {
		f, _, _ := namesFloor(t, keyring{hashOf("sk-1"): {ID: "k", Tenant: "t", Models: []string{listed}}})
		for _, asked := range all {
			want := 403
			for _, ok := range strings.Fields(allowed) {
				if ok == asked {
					want = 200
				}
			}
			a := f.do("/v1/chat/completions", `{"model":"`+asked+`","messages":[]}`, "Authorization: Bearer sk-1")
			if a.status != want {
				t.Errorf("list %s, asked for %s: %d %s", listed, asked, a.status, a.body)
			}
		}
	}
}

func TestModelListHasAdapters(t *testing.T) {
	f, _, _ := namesFloor(t, keyring{
		hashOf("sk-all"): {ID: "a", Tenant: "t"}, hashOf("sk-sql"): {ID: "s", Tenant: "t", Models: []string{"chat:sql", "meta/Llama-3.1:8b"}},
	})
	get := func(path, key string) answer {
		return readAnswer(bufio.NewReader(f.raw("GET " + path + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key + "\r\n\r\n")))
	}
	all := get("/v1/models", "sk-all").body
	for _, want := range []string{`"id":"chat"`, `"id":"other"`, `"id":"sql"`, `"parent":"chat"`} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s in %s", want, all)
		}
	}
	some := get("/v1/models", "sk-sql").body
	if strings.Contains(some, `"id":"chat"`) || strings.Contains(some, "other") || strings.Contains(some, "legal") ||
		!strings.Contains(some, `"id":"sql"`) || !strings.Contains(some, `"id":"meta/Llama-3.1:8b"`) {
		t.Errorf("%s", some)
	}
	for path, want := range map[string]int{"/v1/models/team/legal": 200, "/v1/models/chat:2": 200, "/v1/models/chat:9": 404, "/v1/models/nothing": 404} {
		if a := get(path, "sk-all"); a.status != want || want == 200 && !strings.Contains(a.body, `"id":"`+strings.TrimPrefix(path, "/v1/models/")+`"`) {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}
