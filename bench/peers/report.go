package main

import (
	"fmt"
	"math"

	"sluice/bench/peers/stat"
)

// Columns of the tables.
const (
	colIdle        = "idle ms/s"
	colPlainCPU    = "plain CPU µs"
	colPlainNet    = "plain CPU µs, idle subtracted"
	colPlainRate   = "plain requests/s"
	colTokens200   = "200 streams CPU µs/token"
	colTransit50   = "200 streams transit p50 µs"
	colTransit99   = "200 streams transit p99 µs"
	colTokens1000  = "1000 streams CPU µs/token"
	colTransit1000 = "1000 streams transit p50 µs"
	colBurst       = "back to back CPU µs/token"
	colRSS1000     = "RSS 1000 streams MB"
	colRSSMost     = "RSS most streams MB"
	colServed      = "most streams served %"
)

// columns in the order of the report, with whether less is better as a ratio to nginx.
var columns = []string{colPlainCPU, colPlainNet, colPlainRate, colIdle, colTokens200, colTransit50, colTransit99, colTokens1000,
	colTransit1000, colBurst, colRSS1000, colRSSMost, colServed}

// cell renders a figure: median and, with several runs, the spread.
func cell(f stat.Figure) string {
	switch {
	case f.Runs == 0:
		return ""
	case f.Runs == 1:
		return short(f.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", short(f.Median), short(f.Min), short(f.Max))
}

// short renders three digits.
func short(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
