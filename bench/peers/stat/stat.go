// Package stat is the arithmetic of the comparison: medians, spread and quantiles of a few runs.
//
//	m := stat.Of(runs)          // m.Median, m.Min, m.Max
//	p99 := stat.Quantile(us, 0.99)
//
// Slices are sorted in place, so the caller must not need their order any more; empty ones give NaN, which JSON does not
// know: see Figure.MarshalJSON. It decides nothing about what is good; that is the table's.
package stat

import (
	"encoding/json"
	"math"
	"slices"
)

// Figure is one measure over several runs. The zero value is of no runs.
type Figure struct {
	Median, Min, Max float64
	Runs             int
}

// Of sorts the runs' values and returns their median and spread, all NaN without runs.
func Of(runs []float64) Figure {
	runs = slices.DeleteFunc(slices.Clone(runs), math.IsNaN)
	if len(runs) == 0 {
		return Figure{math.NaN(), math.NaN(), math.NaN(), 0}
	}
	slices.Sort(runs)
	n := len(runs)
	return Figure{(runs[(n-1)/2] + runs[n/2]) / 2, runs[0], runs[n-1], n}
}

// Ratio is the figure of a's values to b's, run by run: what slows a machine in one run slows both. With different
// numbers of runs only the medians can be compared.
func Ratio(a, b []float64) Figure {
	if len(a) != len(b) {
		return Of([]float64{Of(a).Median / Of(b).Median})
	}
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return Of(slices.DeleteFunc(out, func(v float64) bool { return math.IsInf(v, 0) }))
}

// MarshalJSON writes null for a figure without runs.
func (f Figure) MarshalJSON() ([]byte, error) {
	if f.Runs == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(map[string]any{"median": f.Median, "min": f.Min, "max": f.Max, "runs": f.Runs})
}

// Quantile sorts v and returns its q-quantile, 0 to 1: the smallest value that at least q of them do not exceed. NaN
// without values.
func Quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	slices.Sort(v)
	i := int(math.Ceil(q*float64(len(v)))) - 1
	return v[min(max(i, 0), len(v)-1)]
}
