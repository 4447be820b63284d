package stat

import (
	"encoding/json"
	"math"
	"testing"
)

func TestOf(t *testing.T) {
	for _, c := range []struct {
		runs []float64
		want Figure
	}{
		{[]float64{3}, Figure{3, 3, 3, 1}},
		{[]float64{3, 1, 2}, Figure{2, 1, 3, 3}},
		{[]float64{4, 1, math.NaN(), 2, 3}, Figure{2.5, 1, 4, 4}},
	} {
		if got := Of(c.runs); got != c.want {
			t.Errorf("Of(%v) = %v, want %v", c.runs, got, c.want)
		}
	}
	if b, err := json.Marshal(Of(nil)); err != nil || string(b) != "null" {
		t.Errorf("no runs: %s, %v", b, err)
	}
}

func TestRatioIsTakenRunByRun(t *testing.T) {
	if got, want := Ratio([]float64{10, 40, 30}, []float64{10, 20, 10}), (Figure{2, 1, 3, 3}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := Ratio([]float64{10, 20, 30}, []float64{10}), (Figure{2, 2, 2, 1}); got != want {
		t.Errorf("unlike numbers of runs: %v, want %v", got, want)
	}
	if got := Ratio([]float64{1}, []float64{0}); got.Runs != 0 {
		t.Errorf("to nothing: %v", got)
	}
	if got := Ratio(nil, nil); got.Runs != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

func TestQuantile(t *testing.T) {
	v := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.2: 1, 0.5: 3, 0.99: 5, 1: 5} {
		if got := Quantile(v, q); got != want {
			t.Errorf("Quantile(%v) = %v, want %v", q, got, want)
		}
	}
	if !math.IsNaN(Quantile(nil, 0.5)) {
		t.Error("a quantile of nothing")
	}
}
