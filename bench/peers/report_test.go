package main

import (
	"math"
	"strings"
	"testing"

	"sluice/bench/peers/proc"
	"sluice/bench/peers/stat"
)

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1.234: "1.23", 12.34: "12.3", 123.4: "123", -123.4: "-123", 2: "2"} {
		if got := short(v); got != want {
			t.Errorf("short(%v) = %q, want %q", v, got, want)
		}
	}
	if short(math.NaN()) != "–" {
		t.Error("NaN")
	}
}

func TestCell(t *testing.T) {
	for want, runs := range map[string][]float64{"": nil, "2": {2}, "2 (1.50–3)": {3, 1.5, 2}, "5": {5, 5}} {
		if got := cell(stat.Of(runs)); got != want {
			t.Errorf("%v: %q, want %q", runs, got, want)
		}
	}
}

func TestCallSums(t *testing.T) {
	got := callSums(proc.Calls{"read": {Made: 30, Failed: 10}, "writev": {Made: 20}, "epoll_pwait": {Made: 3}, "epoll_ctl": {Made: 2}, "futex": {Made: 4}, "madvise": {Made: 1}})
	for col, want := range map[string]float64{colReads: 20, colReadsVain: 10, colWrites: 20, colPolls: 5, colFutex: 4, colOtherCalls: 1} {
		if got[col] != want {
			t.Errorf("%s: %v, want %v", col, got[col], want)
		}
	}
}

func TestTableLeavesOutWhatWasNotMeasured(t *testing.T) {
	r := results{nameSluice: {colPlainCPU: {30, 50, 40}}, nameNginx: {colPlainCPU: {20, 20, 20}}}
	got := r.table(pages[0], []string{nameDirect, nameSluice, nameNginx}, nameNginx)
	want := "| | " + colPlainCPU + " |\n|---|---|\n| sluice | 40 (30–50) ×2.00 |\n| nginx tuned | 20 ×1.00 |\n"
	if !strings.HasSuffix(got, want) {
		t.Errorf("%q, want the end %q", got, want)
	}
	if got := r.table(pages[1], []string{nameSluice}, nameNginx); got != "" {
		t.Errorf("a table of nothing: %q", got)
	}
}

func TestGoalsAreJudged(t *testing.T) {
	r := results{nameSluice: {colPlainCPU: {40}, colWrites: {2}, colRSS1000: {50}, colRSSMost: {410}, colStreams: {10_000}},
		nameNginx: {colPlainCPU: {30}}, nameCaddy: {colPlainCPU: {200}}}
	got := r.judge()
	for _, line := range []string{
		"tuned nginx's | 1.33 times | 1.25 times | missed |",
		"quarter of Caddy's | 0.20 times | 0.25 times | reached |",
		"two writes a request | 2 | 2.10 | reached |",
		"possible) | 810 MB | 1000 MB | reached |",
	} {
		if !strings.Contains(got, line) {
			t.Errorf("there is no %q in\n%s", line, got)
		}
	}
	if n := strings.Count(got, "\n"); n != 9 {
		t.Errorf("%d lines:\n%s", n, got)
	}
	if (results{}).judge() != "" {
		t.Error("goals without any figure")
	}
}
