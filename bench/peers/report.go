package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"sluice/bench/peers/proc"
	"sluice/bench/peers/stat"
)

// Columns: the keys of the results, and how they are headed in their tables.
const (
	colPlainCPU  = "CPU µs a request"
	colPlainNet  = "CPU µs a request, idle subtracted"
	colPlainRate = "requests/s"
	colIdle      = "idle CPU ms/s"

	colReads      = "reads"
	colReadsVain  = "reads in vain"
	colWrites     = "writes"
	colPolls      = "epoll"
	colFutex      = "futex"
	colSleeps     = "nanosleep" // Go's monitor thread, which strace's slowness multiplies
	colOtherCalls = "other calls"

	colOne50  = "1 connection: added p50 µs"
	colOne99  = "1 connection: added p99 µs"
	colHalf50 = "half of saturation: added p50 µs"
	colHalf99 = "half of saturation: added p99 µs"
	colRate50 = "2,000/s: added p50 µs"
	colRate99 = "2,000/s: added p99 µs"
	colLong   = "CPU µs a 128 KB prompt"

	colTokens200   = "200 streams: CPU µs a token"
	colTokens1000  = "1,000 streams: CPU µs a token"
	colBurst       = "back to back: CPU µs a token"
	colTransit50   = "200 streams: transit p50 µs"
	colTransit99   = "200 streams: transit p99 µs"
	colTransit1000 = "1,000 streams: transit p50 µs"

	colOld50   = "HTTP/1.0 engine: transit p50 ms"
	colOldMax  = "HTTP/1.0 engine: transit at most ms"
	colOldHeld = "HTTP/1.0 engine: held back %"

	colRSS1000 = "RSS MB at 1,000 streams"
	colStreams = "streams held"
	colServed  = "of them with a token in 8 s %"
	colRSSMost = "RSS MB at that"

	colGoneQueued = "queue: departed requests that reached the engine"
	colRestart    = "requests failed in 5 restarts"
	colKill       = "requests failed when 1 of 2 engines was killed"
)

var (
	colGonePrefill = phase{"prefill: ms p50", "prefill: ms p99", "prefill: never"}
	colGoneStream  = phase{"streaming: ms p50", "streaming: ms p99", "streaming: never"}
	callColumns    = []string{colReads, colReadsVain, colWrites, colPolls, colFutex, colSleeps, colOtherCalls}
)

// phase is a table's columns of one phase that clients leave in.
type phase struct{ p50, p99, never string }

// page is one table of the report.
type page struct {
	title   string
	columns []string
}

var pages = []page{
	{"Plain requests, 1 KB in, 1 KB out, 64 connections", []string{colPlainCPU, colPlainNet, colPlainRate, colIdle, colLong}},
	{"Kernel calls a plain request (strace)", callColumns},
	{"Latency added to the direct way", []string{colOne50, colOne99, colHalf50, colHalf99, colRate50, colRate99}},
	{"Tokens", []string{colTokens200, colTokens1000, colBurst, colTransit50, colTransit99, colTransit1000}},
	{"Tokens of an engine that answers as HTTP/1.0 does", []string{colOld50, colOldMax, colOldHeld}},
	{"Memory, a token every 2 s a stream", []string{colRSS1000, colStreams, colServed, colRSSMost}},
	{"Departed clients: until the engine's connection is closed", []string{colGonePrefill.p50, colGonePrefill.p99, colGonePrefill.never,
		colGoneStream.p50, colGoneStream.p99, colGoneStream.never, colGoneQueued}},
	{"Engines that end", []string{colRestart, colKill}},
}

// withRatio are the columns that are compared with tuned nginx.
var withRatio = []string{colPlainCPU, colPlainNet, colPlainRate, colLong, colTokens200, colTokens1000, colBurst, colOne50, colRSS1000, colRSSMost}

// results are all values, by peer and column.
type results map[string]map[string][]float64

func (r results) of(name, column string) stat.Figure { return stat.Of(r[name][column]) }

// table renders a page in Markdown; empty without any value.
func (r results) table(p page, names []string, against string) string {
	var b strings.Builder
	columns := slices.DeleteFunc(slices.Clone(p.columns), func(c string) bool {
		return !slices.ContainsFunc(names, func(n string) bool { return r.of(n, c).Runs > 0 })
	})
	if len(columns) == 0 {
		return ""
	}
	fmt.Fprintf(&b, "%s\n\n| | %s |\n|---|%s\n", p.title, strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, n := range names {
		any, row := false, "| "+n
		for _, c := range columns {
			f := r.of(n, c)
			any = any || f.Runs > 0
			text := cell(f)
			if to := stat.Ratio(r[n][c], r[against][c]); slices.Contains(withRatio, c) && to.Runs > 0 {
				text += fmt.Sprintf(" ×%.2f", to.Median)
			}
			row += " | " + text
		}
		if any {
			b.WriteString(row + " |\n")
		}
	}
	return b.String()
}

// cell renders a figure: median and, with several runs, the spread.
func cell(f stat.Figure) string {
	switch {
	case f.Runs == 0:
		return ""
	case f.Runs == 1 || f.Min == f.Max:
		return short(f.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", short(f.Median), short(f.Min), short(f.Max))
}

// short renders three digits.
func short(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case a >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// callSums sorts counted calls into columns.
func callSums(calls proc.Calls) map[string]float64 {
	sums := map[string]float64{}
	for name, c := range calls {
		switch name {
		case "read", "recvfrom", "recvmsg", "readv":
			sums[colReads] += float64(c.Made - c.Failed)
			sums[colReadsVain] += float64(c.Failed)
		case "write", "writev", "sendto", "sendmsg":
			sums[colWrites] += float64(c.Made)
		case "epoll_wait", "epoll_pwait", "epoll_pwait2", "epoll_ctl":
			sums[colPolls] += float64(c.Made)
		case "futex":
			sums[colFutex] += float64(c.Made)
		case "nanosleep", "clock_nanosleep":
			sums[colSleeps] += float64(c.Made)
		default:
			sums[colOtherCalls] += float64(c.Made)
		}
	}
	return sums
}
