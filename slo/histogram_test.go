package slo

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestHistogramError(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var h, left, right Histogram
	values := make([]float64, 20_000)
	for i := range values {
		values[i] = math.Exp(4 + 2*rng.NormFloat64())
		h.Observe(values[i])
		if i%2 == 0 {
			left.Observe(values[i])
		} else {
			right.Observe(values[i])
		}
	}
	left.Merge(&right)
	if left.counts != h.counts || left.total != h.total {
		t.Error("two halves merged differ from the whole")
	}
	slices.Sort(values)
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 0.999} {
		want := values[int(math.Ceil(q*float64(len(values))))-1]
		if got := h.Quantile(q); math.Abs(got/want-1) > 0.026 {
			t.Errorf("q%v: %v, exact %v", q, got, want)
		}
		if f := h.FractionBelow(want); math.Abs(f-q) > 0.01 {
			t.Errorf("fraction at or below %v: %v, want %v", want, f, q)
		}
	}
}

func TestHistogramEdges(t *testing.T) {
	var h Histogram
	if h.Quantile(0.9) != 0 || h.FractionBelow(1) != 1 || h.MeanMs() != 0 {
		t.Error("an empty histogram has no quantile, and nothing broke a bound")
	}
	for _, ms := range []float64{0, -1, math.NaN(), math.Inf(1), 1e9, 0.05} {
		h.Observe(ms)
	}
	if h.Count() != 6 || h.counts[0] != 4 || h.counts[histogramBuckets-1] != 2 {
		t.Errorf("%d counted, %d below, %d above", h.Count(), h.counts[0], h.counts[histogramBuckets-1])
	}
	if got := bucketOf(HistogramMaxMs); got != histogramBuckets-1 {
		t.Errorf("the maximum lies in bucket %d of %d", got, histogramBuckets)
	}
}

func TestNamesRoundTrip(t *testing.T) {
	for _, c := range Classes() {
		if got, err := ParseClass(c.String()); err != nil || got != c {
			t.Errorf("%v: %v, %v", c, got, err)
		}
	}
	seen := map[string]bool{}
	for _, o := range Outcomes() {
		if got, err := ParseOutcome(o.String()); err != nil || got != o || seen[o.String()] {
			t.Errorf("%v: %v, %v", o, got, err)
		}
		seen[o.String()] = true
	}
	for _, bad := range []func() error{
		func() error { _, err := ParseClass("urgent"); return err },
		func() error { _, err := ParseOutcome(""); return err },
		func() error { _, err := ParseMetric("p99"); return err },
		func() error { _, err := Class(9).MarshalText(); return err },
		func() error { _, err := Outcome(99).MarshalText(); return err },
	} {
		if err := bad(); !errors.Is(err, ErrUnknownName) {
			t.Errorf("want ErrUnknownName, got %v", err)
		}
	}
	var o Objective
	if err := json.Unmarshal([]byte(`{"metric":"itl","quantile":0.95,"thresholdMs":80}`), &o); err != nil ||
		o != (Objective{ITL, 0.95, 80}) || o.Validate() != nil || o.String() != "p95 itl <= 80ms" {
		t.Errorf("%v, %v", o, err)
	}
	for _, bad := range []Objective{{}, {TTFT, 1, 5}, {TTFT, 0.9, 0}, {Metric(7), 0.9, 5}, {TTFT, math.NaN(), 5}} {
		if err := bad.Validate(); !errors.Is(err, ErrObjective) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestWindowSlidesAndMerges(t *testing.T) {
	make2 := func() *Window {
		w, err := NewWindow(100, 10)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	a, b, both := make2(), make2(), make2()
	for ms := int64(0); ms < 5000; ms += 10 {
		s := Sample{TTFTMs: float64(ms%7) + 1, E2EMs: 10, InputTokens: 3, OutputTokens: 2}
		if ms%50 == 0 {
			s = Sample{Outcome: Timeout}
		}
		for _, w := range []*Window{both, map[bool]*Window{true: a, false: b}[ms%20 == 0]} {
			w.Arrived(ms)
			w.Finished(&s, ms)
		}
	}
	if err := a.Merge(b); err != nil {
		t.Fatal(err)
	}
	var got, want Totals
	a.Snapshot(4999, 10, &got)
	both.Snapshot(4999, 10, &want)
	if got != want {
		t.Error("two shards merged differ from one window")
	}
	if got.Arrivals != 100 || got.Finished != 100 || got.Failed() != 20 || got.SpanMs != 1000 || got.InputTokens != 240 {
		t.Errorf("the last second: %d arrivals, %d finished, %d failed over %d ms", got.Arrivals, got.Finished, got.Failed(), got.SpanMs)
	}
	o := Objective{TTFT, 0.9, 1000}
	if f := got.Fraction(o); math.Abs(f-0.8) > 1e-9 || math.Abs(got.Burn(o)-2) > 1e-9 {
		t.Errorf("fraction %v, burn %v; failures are outside", f, got.Burn(o))
	}
	a.Snapshot(4999, 2, &got)
	if got.Arrivals != 20 {
		t.Errorf("two slots hold %d", got.Arrivals)
	}
	a.Snapshot(60_000, 10, &got)
	if got.Arrivals != 0 {
		t.Errorf("%d arrivals a minute later", got.Arrivals)
	}
	a.Arrived(100) // long gone
	a.Snapshot(4999, 10, &got)
	if got.Arrivals != 100 {
		t.Errorf("a late one was counted into %d", got.Arrivals)
	}
	other, err := NewWindow(50, 10)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Merge(other); !errors.Is(err, ErrConfig) {
		t.Errorf("merging other slots: %v", err)
	}
}

func TestConfig(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	for _, speed := range []float64{1, 8, 16, 5000, 0} {
		if err := Default().Scale(speed).Validate(); err != nil {
			t.Errorf("speed %v: %v", speed, err)
		}
	}
	if got := Default().Scale(10); got.SlotMs != 500 || got.ClearMs != 1000 || got.Slots != Default().Slots {
		t.Errorf("%+v", got)
	}
	for i, change := range []func(*Config){
		func(c *Config) { c.SlotMs = 0 }, func(c *Config) { c.Slots = 1 }, func(c *Config) { c.FastSlots = c.Slots },
		func(c *Config) { c.StepMs = 0 }, func(c *Config) { c.Steps = 3 }, func(c *Config) { c.HalfLifeMs = 1 },
		func(c *Config) { c.Quantile = 1 }, func(c *Config) { c.ClearMs = 0 }, func(c *Config) { c.BurnFast = 0 },
	} {
		c := Default()
		change(&c)
		if err := c.Validate(); !errors.Is(err, ErrConfig) {
			t.Errorf("change %d passed: %v", i, err)
		}
	}
}
