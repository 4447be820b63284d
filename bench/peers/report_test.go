package main

import (
	"math"
	"testing"

	"sluice/bench/peers/stat"
)

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0.00", 1.234: "1.23", 12.34: "12.3", 123.4: "123", -123.4: "-123"} {
		if got := short(v); got != want {
			t.Errorf("short(%v) = %q, want %q", v, got, want)
		}
	}
	if short(math.NaN()) != "–" {
		t.Error("NaN")
	}
}

func TestCell(t *testing.T) {
	for want, runs := range map[string][]float64{"": nil, "2.00": {2}, "2.00 (1.00–3.00)": {3, 1, 2}} {
		if got := cell(stat.Of(runs)); got != want {
			t.Errorf("%v: %q, want %q", runs, got, want)
		}
	}
}
