package slo

import (
	"math"
	"testing"
)

func TestFitFindsTheLines(t *testing.T) {
	s := Fit(
		func(tokens int) float64 { return 20 + 0.1*float64(tokens) },
		func(batch int) float64 { return 30 + 0.5*float64(batch) }, 64)
	for name, pair := range map[string][2]float64{
		"prefill base": {s.PrefillBaseMs, 20}, "prefill slope": {s.PrefillMsPerToken, 0.1},
		"decode base": {s.DecodeBaseMs, 30}, "decode slope": {s.DecodeMsPerSeq, 0.5},
	} {
		if math.Abs(pair[0]-pair[1]) > 1e-6 {
			t.Errorf("%s: %v, want %v", name, pair[0], pair[1])
		}
	}
	s = s.WithTokens([]int{1000, 1000}, []int{100, 300})
	if s.InputTokens.Mean() != 1000 || math.Abs(s.OutputTokens.Mean()-200) > 20 || s.MaxBatch != 64 {
		t.Errorf("tokens %v in, %v out", s.InputTokens.Mean(), s.OutputTokens.Mean())
	}
	// What no measurement can be is held at what it may be: no time below zero.
	if odd := Fit(func(int) float64 { return 5 }, func(int) float64 { return 0 }, 1); odd.PrefillMsPerToken != 0 || odd.DecodeBaseMs != 0 {
		t.Errorf("constant prefill and no decode: %+v", odd)
	}
}
