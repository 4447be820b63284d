package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"

	"sluice/gateway/admin"
	"sluice/nodes/registry"
	"sluice/slo"
)

// floorOf makes a status of nodes × gpus with every kind of thing on it.
func floorOf(nodes, gpus int) admin.Status {
	s := admin.Status{NowMs: 100_000, Version: "v1"}
	states := registry.BookStates()
	for n := range nodes {
		id := fmt.Sprintf("n%d", n+1)
		s.Nodes = append(s.Nodes, admin.NodeStatus{ID: id, State: "ready", GPUs: gpus})
		for g := range gpus {
			st := admin.GPUStatus{UUID: fmt.Sprintf("GPU-%d-%d", n, g), Index: g, Node: id, Island: g / 4, State: states[g%len(states)].String()}
			if g%2 == 1 {
				st.Owner = "chat"
				st.Residents = []registry.Resident{{Holder: "x", Bytes: 1}}
			}
			s.GPUs = append(s.GPUs, st)
		}
	}
	loss := 0.5
	saved := int64(90)
	h := slo.Headroom{Model: "chat", ArrivalRps: 3, DemandRps: 4, CapacityRps: 5, HeadroomRps: 1, NeedReplicas: 2, QueueDepth: 7,
		Objectives: []slo.Attainment{{Objective: slo.Objective{Metric: slo.TTFT, Quantile: 0.9, ThresholdMs: 2000}, ObservedMs: 2500, Met: false},
			{Objective: slo.Objective{Metric: slo.ITL, Quantile: 0.5, ThresholdMs: 100}, ObservedMs: 20, Met: true}}}
	s.Models = []admin.ModelStatus{{Name: "chat", Ready: 2, Coming: 1, Headroom: &h}, {Name: "new"}, {Name: "far", External: true}}
	s.Jobs = []admin.JobStatus{
		{Name: "bert", Phase: "running", World: 2, Step: 100, Loss: &loss, SavedStep: &saved, LostSteps: 3, Spec: registry.JobSpec{MinWorld: 1, MaxWorld: 4}, RankPhase: "train"},
		{Name: "gpt", Phase: "pending", Spec: registry.JobSpec{MinWorld: 8, MaxWorld: 8}, Waiting: &admin.Waiting{Object: "gpt", Cause: "shortage", Text: "8 GPUs are not free"}}}
	s.Books = admin.BooksStatus{CapacitySeconds: 100, GPUSeconds: map[string]float64{"serving": 40, "trainingKept": 50, "idle": 10}}
	for i := range 30 {
		s.Events = append(s.Events, admin.Recorded{Seq: int64(i), Event: registry.Event{AtMs: 99_000, Kind: "job", Object: "bert", From: "running", To: "stopping", Rung: registry.RungYield, Reason: "for chat"}})
	}
	return s
}

// The picture fits every screen, and the same status gives the same text.
func TestRenderFits(t *testing.T) {
	for _, size := range [][4]int{{2, 8, 80, 24}, {2, 8, 160, 50}, {1, 1, 60, 12}, {40, 8, 100, 30}, {1250, 8, 120, 40}, {0, 0, 80, 24}, {2, 8, 20, 5}, {3, 16, 70, 24}, {2, 8, 0, 0}} {
		s := floorOf(size[0], size[1])
		text := renderStatus(s, size[2], size[3])
		lines := strings.Split(text, "\n")
		if len(lines) > max(1, size[3]) {
			t.Errorf("%v: %d lines", size, len(lines))
		}
		for _, l := range lines {
			if w := ansi.StringWidth(l); w > size[2]+1 {
				t.Errorf("%v: a line of %d cells: %q", size, w, ansi.Strip(l))
			}
		}
		if text != renderStatus(s, size[2], size[3]) {
			t.Errorf("%v: not the same twice", size)
		}
	}
}

func TestRenderShows(t *testing.T) {
	text := ansi.Strip(renderStatus(floorOf(2, 8), 140, 40))
	for _, want := range []string{"sluice v1", "2 nodes", "16 GPUs", "n1", "chat+1", "fenced", "2+1/2", "4.0/5.0", "p90 ttft 2.5s of 2.0s", "no request yet",
		"bert", "2/1-4", "0.5000", "shortage: 8 GPUs are not free", "serving 40%", "of 100 GPU-s", "LAST DECISIONS", "job bert running → stopping (yield): for chat"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	s := floorOf(2, 8)
	if text = ansi.Strip(renderStatus(s, 100, 40)); !strings.Contains(text, "2.5s of 2.0s") || !strings.Contains(text, "QUEUE") || !strings.Contains(text, "of 100 GPU-s") {
		t.Errorf("100 columns cut too much:\n%s", text)
	}
	s.Models[0].Headroom.CapacityRps, s.Models[0].Headroom.HeadroomRps = 0, -4
	if text = ansi.Strip(renderStatus(s, 140, 40)); !strings.Contains(text, "4.0/?") || strings.Contains(text, "-4.0") {
		t.Errorf("a capacity not learned yet alarms:\n%s", text)
	}
	s = floorOf(0, 0)
	s.Models, s.Jobs, s.Books.CapacitySeconds = nil, nil, 0
	text = ansi.Strip(renderStatus(s, 100, 24))
	for _, want := range []string{"sluice model apply", "sluice job submit", "nothing yet"} {
		if !strings.Contains(text, want) {
			t.Errorf("an empty floor does not say %q:\n%s", want, text)
		}
	}
}

// Text from outside moves no cursor and makes no line.
func TestCase_SEC_10_HostileText(t *testing.T) {
	s := floorOf(1, 2)
	const bad = "x\x1b]0;owned\x07\x1b[2J\nforged line\r\u2028"
	s.Nodes[0].ID, s.GPUs[0].Node, s.GPUs[1].Node = bad, bad, bad
	s.GPUs[1].Owner = bad
	s.Models[0].Name = bad
	s.Models[1].Waiting = &admin.Waiting{Text: bad}
	s.Jobs[0].Name, s.Jobs[0].RankPhase, s.Jobs[0].Phase = bad, bad, bad
	s.Events[len(s.Events)-1].Reason = bad
	text := renderStatus(s, 120, 40)
	if strings.Contains(text, "\x1b]") || strings.Contains(text, "\x1b[2J") || strings.Contains(text, "\x07") || strings.Contains(text, "\r") || strings.Contains(text, "\nforged") {
		t.Errorf("%q", text)
	}
	for _, l := range statusLines(&s) {
		if strings.ContainsAny(clean(l, false), "\x1b\n\r\x07") {
			t.Errorf("%q", l)
		}
	}
}

func TestEventText(t *testing.T) {
	for want, e := range map[string]registry.Event{
		"manifest bert step 300 of 4 ranks: whole":                   {Kind: "manifest", Object: "bert", Steps: 300, World: 4, Reason: "whole"},
		"replica chat-1 waiting → starting 1 GPU in 1.5s":            {Kind: "replica", Object: "chat-1", From: "waiting", To: "starting", GPUs: []string{"a"}, TookMs: 1500},
		"reclaim bert running → yield (yield) 2 GPUs: chat needs it": {Kind: "reclaim", Object: "bert", From: "running", To: "yield", Rung: registry.RungYield, GPUs: []string{"a", "b"}, Reason: "chat needs it"},
	} {
		if got := eventText(&e); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestAgo(t *testing.T) {
	for ms, want := range map[int64]string{0: "0ms", 850: "850ms", 1500: "1.5s", 12_345: "12s", 200_000: "3m20s", 3_700_000: "1h01m"} {
		if got := ago(ms); got != want {
			t.Errorf("%d: %s, want %s", ms, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0B", 512: "512B", 24 << 30: "24GiB", 3 << 29: "1.5GiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
