package router

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

type loads []Load

func (l *loads) Load(slot int) Load { return (*l)[slot] }

func model(t testing.TB, m Model) (*Table, *Model) {
	t.Helper()
	if m.Name == "" {
		m.Name = "chat"
	}
	table, err := NewTable([]Model{m})
	if err != nil {
		t.Fatal(err)
	}
	got, ok := table.Lookup(m.Name)
	if !ok {
		t.Fatal("not found")
	}
	return table, got
}

func list(n, maxInFlight int, version string) []Replica {
	out := make([]Replica, n)
	for i := range out {
		out[i] = Replica{ID: fmt.Sprintf("%s%d", version, i), Addr: "a:1", Version: version, MaxInFlight: maxInFlight}
	}
	return out
}

func TestPickVerdicts(t *testing.T) {
	ready, full := Load{}, Load{InFlight: 4}
	tests := []struct {
		name    string
		loads   loads
		exclude []string
		slot    int // -1: none
		verdict Verdict
	}{
		{"least work", loads{{WorkMs: 50, InFlight: 1}, {WorkMs: 40, InFlight: 1}, {WorkMs: 60, InFlight: 1}}, nil, 1, Picked},
		{"slow counts", loads{{WorkMs: 50, Speed: 1}, {WorkMs: 40, Speed: 4}, {WorkMs: 60, Speed: 1}}, nil, 0, Picked},
		{"full ones wait", loads{full, full, full}, nil, -1, Full},
		{"one has room", loads{full, full, ready}, nil, 2, Picked},
		{"excluded", loads{full, full, ready}, []string{"r2"}, -1, Full},
		{"all excluded", loads{ready, ready, ready}, []string{"r0", "r1", "r2"}, -1, None},
		{"out", loads{{Standing: Out}, {Standing: Out}, {Standing: Out}}, nil, -1, None},
		{"busy waits", loads{{Standing: Busy}, {Standing: Out}, {Standing: Ejected}}, nil, -1, Full},
		{"ejected when alone", loads{{Standing: Out}, {Standing: Ejected}, {Standing: Out}}, nil, 1, Picked},
		{"ejected not beside a full one", loads{full, {Standing: Ejected}, {Standing: Out}}, nil, -1, Full},
		{"ejected and full", loads{{Standing: Ejected, InFlight: 4}, {Standing: Out}, {Standing: Out}}, nil, -1, Full},
	}
	_, m := model(t, Model{Replicas: list(3, 4, "r")})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for rnd := range uint64(50) {
				slot, verdict := Pick(m, &Request{Exclude: tt.exclude}, &tt.loads, nil, rnd*0x9e3779b97f4a7c15)
				if slot != tt.slot || verdict != tt.verdict {
					t.Fatalf("slot %d, verdict %d; want %d, %d", slot, verdict, tt.slot, tt.verdict)
				}
			}
		})
	}
	_, empty := model(t, Model{})
	if slot, verdict := Pick(empty, &Request{}, &loads{}, nil, 1); slot != -1 || verdict != None {
		t.Errorf("without replicas: %d, %d", slot, verdict)
	}
}

func TestPickFollowsWeights(t *testing.T) {
	_, m := model(t, Model{
		Versions: []VersionWeight{{"v1", 90}, {"v2", 10}, {"v3", 0}},
		Replicas: append(append(list(2, 8, "v1"), list(2, 8, "v2")...), list(2, 8, "v3")...),
	})
	l := make(loads, 6)
	rng := rand.New(rand.NewPCG(3, 3))
	count := map[string]int{}
	for range 10_000 {
		slot, _ := Pick(m, &Request{}, &l, nil, rng.Uint64())
		count[m.Replicas[slot].Version]++
	}
	if count["v1"] < 8800 || count["v1"] > 9200 || count["v3"] != 0 {
		t.Errorf("weights 90:10:0 gave %v", count)
	}
	for i := range 4 {
		l[i].Standing = Out
	}
	if slot, verdict := Pick(m, &Request{}, &l, nil, 1); verdict != Picked || m.Replicas[slot].Version != "v3" {
		t.Errorf("any version is better than none: slot %d, verdict %d", slot, verdict)
	}
}

// Two choices keep the fullest of 1,000 replicas near the mean, and find a free one among full ones.
func TestPickAmongMany(t *testing.T) {
	_, m := model(t, Model{Replicas: list(1000, 64, "r")})
	l := make(loads, 1000)
	rng := rand.New(rand.NewPCG(5, 5))
	req := Request{PromptTokens: 100, MaxTokens: 100}
	for range 10_000 {
		slot, verdict := Pick(m, &req, &l, nil, rng.Uint64())
		if verdict != Picked {
			t.Fatal("room everywhere")
		}
		l[slot].InFlight++
		l[slot].WorkMs += req.Work()
	}
	most := 0
	for _, load := range l {
		most = max(most, load.InFlight)
	}
	if most > 14 {
		t.Errorf("the fullest has %d, the mean is 10", most)
	}
	for i := range l {
		l[i].InFlight = 64
	}
	l[777].InFlight = 63
	for range 20 {
		if slot, verdict := Pick(m, &req, &l, nil, rng.Uint64()); slot != 777 || verdict != Picked {
			t.Fatalf("slot %d, verdict %d; only 777 has room", slot, verdict)
		}
	}
}

func TestAffinityIsBoundedByWhatItSaves(t *testing.T) {
	_, m := model(t, Model{Replicas: list(2, 64, "r")})
	req := Request{PromptTokens: 4000, MaxTokens: 100}
	matches := []Match{{Slot: 1, Blocks: 62}}
	saves := req.saved(62)
	for _, tt := range []struct {
		ahead float64
		slot  int
	}{{0, 1}, {saves - 1, 1}, {saves + 1, 0}, {10 * saves, 0}} {
		l := loads{{}, {WorkMs: tt.ahead, InFlight: 1}}
		if slot, _ := Pick(m, &req, &l, matches, 9); slot != tt.slot {
			t.Errorf("%.0f ms ahead at the holder, %.0f saved: slot %d, want %d", tt.ahead, saves, slot, tt.slot)
		}
	}
	if all := req.saved(1 << 20); all > req.Work() {
		t.Errorf("saves %v of %v", all, req.Work())
	}
}

func TestNewTableRefuses(t *testing.T) {
	ok := list(1, 1, "r")
	bad := map[string][]Model{
		"name twice":      {{Name: "a"}, {Name: "b", Aliases: []string{"a"}}},
		"no name":         {{}},
		"replica twice":   {{Name: "a", Replicas: ok}, {Name: "b", Replicas: ok}},
		"no room":         {{Name: "a", Replicas: []Replica{{ID: "x", Addr: "y"}}}},
		"no address":      {{Name: "a", Replicas: []Replica{{ID: "x", MaxInFlight: 1}}}},
		"negative weight": {{Name: "a", Versions: []VersionWeight{{"v", -1}}}},
		"versions":        {{Name: "a", Versions: make([]VersionWeight, MaxVersions+1)}},
	}
	for name, models := range bad {
		if _, err := NewTable(models); !errors.Is(err, ErrTable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var none *Table
	if _, found := none.Lookup("a"); found || none.Slots() != 0 || none.Models() != nil {
		t.Error("a nil table knows something")
	}
	table, m := model(t, Model{Replicas: list(3, 2, "r")})
	if table.Slots() != 3 || m.Capacity() != 6 || table.Replica(2).ID != "r2" || table.Replica(2).UpstreamModel != "chat" {
		t.Errorf("slots %d, capacity %d, %+v", table.Slots(), m.Capacity(), table.Replica(2))
	}
}

func TestRetryAfter(t *testing.T) {
	tests := []struct {
		depth  int
		drain  float64
		now    int
		coming Coming
		want   int64
	}{
		{9, 10, 1, Coming{}, 1000},
		{0, 1000, 1, Coming{}, MinRetryAfterMs},
		{100, 0, 0, Coming{}, MaxRetryAfterMs},
		{100, 0, 0, Coming{EtaMs: 4000, Replicas: 1}, 4000},
		{99, 10, 1, Coming{EtaMs: 2000, Replicas: 1}, 6000}, // 20 gone at 2 s, then 80 at twice the rate
		{9, 10, 1, Coming{EtaMs: 5000, Replicas: 4}, 1000},  // empty before they come
	}
	for _, tt := range tests {
		if got := RetryAfterMs(tt.depth, tt.drain, tt.now, tt.coming); got != tt.want {
			t.Errorf("%+v: %d ms", tt, got)
		}
	}
	// A replica more on its way never lengthens the wait.
	for depth := 0; depth < 200; depth += 7 {
		last := int64(MaxRetryAfterMs) + 1
		for n := range 6 {
			got := RetryAfterMs(depth, 5, 2, Coming{EtaMs: 3000, Replicas: n})
			if got > last {
				t.Errorf("depth %d: %d coming give %d ms, one less %d ms", depth, n, got, last)
			}
			last = got
		}
	}
}

func TestPickIsFastAndAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("race detector allocates")
	}
	_, m := model(t, Model{Replicas: list(1000, 64, "r")})
	l := make(loads, 1000)
	req := Request{PromptTokens: 1000, MaxTokens: 100, Exclude: []string{"r5"}}
	matches := []Match{{7, 10}, {8, 3}}
	rnd := uint64(1)
	if n := testing.AllocsPerRun(200, func() {
		rnd += 0x9e3779b97f4a7c15
		Pick(m, &req, &l, matches, rnd)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
	const picks = 20_000
	best := time.Hour // the best of some rounds: the machine may be busy with other things
	for range 10 {
		began := time.Now()
		for range picks {
			rnd += 0x9e3779b97f4a7c15
			Pick(m, &req, &l, matches, rnd)
		}
		best = min(best, time.Since(began))
	}
	if perPick := best / picks; perPick > time.Microsecond {
		t.Errorf("%v a pick among 1,000 replicas, want under 1 us", perPick)
	}
}

func BenchmarkPick1000(b *testing.B) {
	_, m := model(b, Model{Replicas: list(1000, 64, "r")})
	l := make(loads, 1000)
	req := Request{PromptTokens: 1000, MaxTokens: 100}
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		Pick(m, &req, &l, nil, i)
	}
}

func BenchmarkPick16(b *testing.B) {
	_, m := model(b, Model{Replicas: list(16, 64, "r")})
	l := make(loads, 16)
	req := Request{PromptTokens: 1000, MaxTokens: 100}
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		Pick(m, &req, &l, nil, i)
	}
}
