package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"sluice/nodes/registry"
)

// printReport writes the report as JSON or as tables.
func printReport(w io.Writer, form string, r *demoReport) error {
	if form == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	fmt.Fprintf(t, "\nRequests\t%d in %.0f s, %.2f cores used by everything\n", r.Requests, r.WallS, r.CPUCores)
	for _, k := range slices.Sorted(maps.Keys(r.Outcomes)) {
		fmt.Fprintf(t, "  %s\t%d\n", k, r.Outcomes[k])
	}
	fmt.Fprintf(t, "\nObjectives (trace time)\tobserved\tthreshold\twithin\tp50\tp99\t\n")
	for i, o := range r.Objectives {
		l := r.Latencies[i]
		fmt.Fprintf(t, "  %s %s p%.0f\t%.0f ms\t%.0f ms\t%.2f %%\t%.0f ms\t%.0f ms\t%s\n", o.Model, o.Metric, o.Quantile*100, o.ObservedMs, o.ThresholdMs,
			o.Fraction*100, l.P50Ms, l.P99Ms, metWord(o.Met))
	}
	fmt.Fprintf(t, "\nBursts that took GPUs back\tminute\trequests\twithin\t\n")
	for _, b := range r.Bursts {
		fmt.Fprintf(t, "  %s\t%.1f\t%d\t%.2f %%\t%s\n", b.Model, b.AtMinute, b.Requests, b.Fraction*100, metWord(b.Served))
	}
	fmt.Fprintf(t, "\nReclaims (warm-up: below minute 0)\tminute\trung\tGPUs\tdecision to release\n")
	for _, x := range r.Reclaims {
		fmt.Fprintf(t, "  %s\t%.1f\t%s\t%d\t%d ms\n", x.Job, x.AtMinute, x.Rung, x.GPUs, x.DecisionToReleaseMs)
	}
	fmt.Fprintf(t, "\nReturns to training\t%d\n\nSwitches of all kinds\ttimes\n", r.Returns)
	for _, k := range slices.Sorted(maps.Keys(r.Switches)) {
		fmt.Fprintf(t, "  %s\t%d\n", k, r.Switches[k])
	}
	fmt.Fprintf(t, "\nJobs\tsteps done\tsteps lost\n")
	for _, k := range slices.Sorted(maps.Keys(r.Steps)) {
		fmt.Fprintf(t, "  %s\t%d\t%d\n", k, r.Steps[k], r.StepsLost[k])
	}
	fmt.Fprintf(t, "\nBooks\tGPU-seconds\n")
	for _, b := range registry.BookStates() {
		fmt.Fprintf(t, "  %s\t%.3f\n", b, r.Books.GPUSeconds[b.String()])
	}
	fmt.Fprintf(t, "  capacity\t%.3f\n  balance\t%.3f\n", r.Books.Capacity, r.Books.Balance)
	fmt.Fprintf(t, "\nHarvest\t%.3f: %.0f GPU-s of training kept, of %.0f that the trace did not need\n", r.Harvest, r.KeptGPUS, r.IdleGPUS)
	fmt.Fprintf(t, "Invariants broken\t%d\n", len(r.InvariantsBroken))
	for _, s := range r.InvariantsBroken {
		fmt.Fprintf(t, "  %s\n", s)
	}
	return t.Flush()
}

func metWord(met bool) string {
	if met {
		return "met"
	}
	return "MISSED"
}
