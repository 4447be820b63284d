package main

import (
	"fmt"
	"math"
	"strings"

	"sluice/bench/peers/stat"
)

// Names of the rows that goals are judged by: what package peer calls them, and the way without a gateway.
const (
	nameDirect      = "direct"
	nameSluice      = "sluice"
	nameNginx       = "nginx tuned"
	nameHAProxy     = "haproxy"
	nameCaddy       = "caddy"
	nameRefFastHTTP = "ref fasthttp"
)

// goal is one thing that sluice is to reach: a value of its own, and what it may be at most.
type goal struct {
	what  string
	value func(r results) float64
	limit func(r results) float64
	unit  string
}

// mine is sluice's median, other is another peer's, with something added.
func mine(column string) func(results) float64 {
	return func(r results) float64 { return r.of(nameSluice, column).Median }
}

func other(name, column string, plus float64) func(results) float64 {
	return func(r results) float64 { return r.of(name, column).Median + plus }
}

// times is sluice's value as a multiple of another peer's, taken round by round.
func times(name, column string) func(results) float64 {
	return func(r results) float64 { return stat.Ratio(r[nameSluice][column], r[name][column]).Median }
}

func fixed(v float64) func(results) float64 { return func(results) float64 { return v } }

// goalStreams is the number of streams that the memory goal speaks of.
const goalStreams = 20_000

// memoryAtGoal is the memory of the large run, scaled to the goal's number of streams where fewer were possible.
func memoryAtGoal(r results) float64 {
	small, most, n := r.of(nameSluice, colRSS1000).Median, r.of(nameSluice, colRSSMost).Median, r.of(nameSluice, colStreams).Median
	if n >= goalStreams {
		return most
	}
	return most + (most-small)/(n-1000)*(goalStreams-n)
}

var goals = []goal{
	{"CPU of a plain request, at most 1.25 of tuned nginx's", times(nameNginx, colPlainCPU), fixed(1.25), "times"},
	{"CPU of a plain request, at most a quarter of Caddy's", times(nameCaddy, colPlainCPU), fixed(0.25), "times"},
	{"two successful reads a request", mine(colReads), fixed(2.1), ""},
	{"two writes a request", mine(colWrites), fixed(2.1), ""},
	{"CPU of a token, 200 streams, at most 1.25 of tuned nginx's", times(nameNginx, colTokens200), fixed(1.25), "times"},
	{"CPU of a token, 1,000 streams, at most 1.25 of tuned nginx's", times(nameNginx, colTokens1000), fixed(1.25), "times"},
	{"CPU of a token back to back, at most 5 µs", mine(colBurst), fixed(5), "µs"},
	{"CPU of a token back to back, at most half of fasthttp's", times(nameRefFastHTTP, colBurst), fixed(0.5), "times"},
	{"transit p50 within 1 ms of direct", mine(colTransit50), other(nameDirect, colTransit50, 1000), "µs"},
	{"nothing held back, HTTP/1.0 engine", mine(colOldHeld), other(nameDirect, colOldHeld, 0.5), "%"},
	{"CPU of a 128 KB prompt, at most tuned nginx's", times(nameNginx, colLong), fixed(1), "times"},
	{"p50 added at one connection, at most 1.1 of tuned nginx's", times(nameNginx, colOne50), fixed(1.1), "times"},
	{"p50 added at half of saturation, at most HAProxy's", times(nameHAProxy, colHalf50), fixed(1), "times"},
	{"memory at 1,000 streams", mine(colRSS1000), fixed(60), "MB"},
	{"memory at 20,000 streams (scaled up where fewer are possible)", memoryAtGoal, fixed(1000), "MB"},
	{"streams not served", func(r results) float64 { return 100 - r.of(nameSluice, colServed).Median }, fixed(0), "%"},
	{"departed in prefill, p50", mine(colGonePrefill.p50), fixed(10), "ms"},
	{"departed in prefill, p99", mine(colGonePrefill.p99), fixed(50), "ms"},
	{"departed in prefill, never noticed", mine(colGonePrefill.never), fixed(0), ""},
	{"departed while streaming, p50", mine(colGoneStream.p50), fixed(10), "ms"},
	{"departed while streaming, p99", mine(colGoneStream.p99), fixed(50), "ms"},
	{"departed while streaming, never noticed", mine(colGoneStream.never), fixed(0), ""},
	{"departed in the queue, sent to the engine all the same", mine(colGoneQueued), fixed(0), ""},
	{"failed when an engine was restarted under idle connections", mine(colRestart), fixed(0), ""},
	{"failed when one of two engines was killed", mine(colKill), fixed(0), ""},
}

// judge renders the goals that this run can say something about.
func (r results) judge() string {
	var b strings.Builder
	for _, g := range goals {
		v, limit := g.value(r), g.limit(r)
		if math.IsNaN(v) || math.IsNaN(limit) {
			continue
		}
		verdict := "reached"
		if v > limit {
			verdict = "missed"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", g.what, strings.TrimSpace(short(v)+" "+g.unit), strings.TrimSpace(short(limit)+" "+g.unit), verdict)
	}
	if b.Len() == 0 {
		return ""
	}
	return "Goals of sluice\n\n| goal | sluice | at most | |\n|---|---|---|---|\n" + b.String()
}

// figures are the results as they are written to a file.
func (r results) figures() map[string]map[string]stat.Figure {
	out := map[string]map[string]stat.Figure{}
	for name, columns := range r {
		out[name] = map[string]stat.Figure{}
		for c, v := range columns {
			out[name][c] = stat.Of(v)
		}
	}
	return out
}
