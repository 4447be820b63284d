package router

import (
	"errors"
	"slices"
	"testing"
)

func TestResolve(t *testing.T) {
	replicas := append(list(2, 4, "7"), list(1, 4, "6")...)
	table, err := NewTable([]Model{
		{Name: "chat", Aliases: []string{"meta/Llama-3.1:8b", "chat:fast"}, Adapters: []string{"sql", "team/legal:v2", "6"}, Current: "8", Replicas: replicas},
		{Name: "plain", Replicas: []Replica{{ID: "p", Addr: "a:1", MaxInFlight: 1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		model, version, adapter string
		ok                      bool
	}{
		"chat":                            {"chat", "", "", true},
		"meta/Llama-3.1:8b":               {"chat", "", "", true},
		"chat:fast":                       {"chat", "", "", true},
		"chat:7":                          {"chat", "7", "", true},
		"chat:v7":                         {"chat", "7", "", true},
		"chat:8":                          {"chat", "8", "", true}, // current, without a replica yet
		"chat:6":                          {"chat", "", "6", true}, // an adapter of that name goes first
		"chat:v6":                         {"chat", "6", "", true},
		"meta/Llama-3.1:8b:7":             {"chat", "7", "", true},
		"sql":                             {"chat", "", "sql", true},
		"chat:sql":                        {"chat", "", "sql", true},
		"chat:fast:sql":                   {"chat", "", "sql", true},
		"meta/Llama-3.1:8b:team/legal:v2": {"chat", "", "team/legal:v2", true},
		"chat:team/legal:v2":              {"chat", "", "team/legal:v2", true},
		"team/legal:v2":                   {"chat", "", "team/legal:v2", true},
		"chat:5":                          {"chat", "", "", false},
		"chat:":                           {"chat", "", "", false},
		"chat:v":                          {"chat", "", "", false},
		"chat:fast:nothing":               {"chat", "", "", false},
		"plain:1":                         {"plain", "", "", false},
		"team/legal":                      {"", "", "", false},
		":chat":                           {"", "", "", false},
		"Chat":                            {"", "", "", false},
		"":                                {"", "", "", false},
	} {
		got, ok := table.Resolve([]byte(name))
		model := ""
		if got.Model != nil {
			model = got.Model.Name
		}
		if ok != want.ok || model != want.model || got.Version != want.version || got.Adapter != want.adapter {
			t.Errorf("%q: %v %q %q %q, want %v", name, ok, model, got.Version, got.Adapter, want)
		}
	}
	m, _ := table.Lookup("chat")
	if got := m.KnownVersions(); !slices.Equal(got, []string{"6", "7", "8"}) {
		t.Errorf("versions %v", got)
	}
	if _, ok := (*Table)(nil).Resolve([]byte("chat")); ok {
		t.Error("no table knows a model")
	}
}

func TestResolveAllocatesNothing(t *testing.T) {
	table, _ := model(t, Model{Adapters: []string{"a", "b"}, Replicas: list(1, 1, "3")})
	name := []byte("chat:v3")
	if n := testing.AllocsPerRun(100, func() { table.Resolve(name) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAdaptersAreUnique(t *testing.T) {
	for name, models := range map[string][]Model{
		"two models": {{Name: "a", Adapters: []string{"x"}}, {Name: "b", Adapters: []string{"x"}}},
		"twice":      {{Name: "a", Adapters: []string{"x", "x"}}},
		"no name":    {{Name: "a", Adapters: []string{""}}},
	} {
		if _, err := NewTable(models); !errors.Is(err, ErrTable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A request for one version never gets another, whatever the others' load.
func TestPickHoldsToTheVersion(t *testing.T) {
	_, m := model(t, Model{Replicas: append(list(3, 4, "1"), list(20, 4, "2")...)})
	req := Request{Version: "1"}
	state := make(loads, 23)
	for range 100 {
		slot, verdict := Pick(m, &req, &state, nil, 99)
		if verdict != Picked || m.Replicas[slot].Version != "1" {
			t.Fatalf("slot %d, verdict %d", slot, verdict)
		}
	}
	for i := range 3 {
		state[i].InFlight = 4
	}
	if slot, verdict := Pick(m, &req, &state, nil, 1); verdict != Full {
		t.Errorf("full: slot %d, verdict %d", slot, verdict)
	}
	for i := range 3 {
		state[i] = Load{Standing: Ejected}
	}
	if slot, verdict := Pick(m, &req, &state, nil, 1); verdict != Picked || slot > 2 {
		t.Errorf("ejected: slot %d, verdict %d", slot, verdict)
	}
	req = Request{Only: "25"}
	for range 100 {
		if slot, verdict := Pick(m, &req, &state, nil, 1); verdict != Picked || m.Replicas[slot].ID != "25" {
			t.Fatalf("only one: slot %d, verdict %d", slot, verdict)
		}
	}
	req = Request{Version: "3"}
	if slot, verdict := Pick(m, &req, &state, nil, 1); verdict != None {
		t.Errorf("no such version: slot %d, verdict %d", slot, verdict)
	}
}
