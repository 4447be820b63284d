package perf

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance*want {
		t.Errorf("%s is %.2f ms, want %.2f within %.0f %%", what, got, want, tolerance*100)
	}
}

func TestMeasuredPointsComeBack(t *testing.T) {
	for _, c := range []struct {
		model, gpu string
		tp, tokens int
		wantMs     float64
	}{
		{"llama2-70b", "a100-80gb", 2, 512, 196.86},
		{"llama2-70b", "h100-80gb", 4, 8192, 953.58},
		{"bloom", "h100", 8, 4096, 688.70},
		{"bloom-176b", "a100-80gb", 8, 32768, 11251.83},
	} {
		got, err := PrefillMs(c.model, c.gpu, c.tp, c.tokens)
		if err != nil {
			t.Fatal(err)
		}
		near(t, "prefill", got, c.wantMs, 0.001)
	}
	for _, c := range []struct {
		gpu       string
		tp, batch int
		wantMs    float64
	}{{"a100", 2, 1, 54.86}, {"a100", 2, 32, 72.19}, {"h100", 4, 64, 52.36}} {
		got, err := DecodeMs("llama2", c.gpu, c.tp, c.batch, refContext)
		if err != nil {
			t.Fatal(err)
		}
		near(t, "decode", got, c.wantMs, 0.01)
	}
}

// The rows of the run that did not fit show a batch of 64 faster than one of 32.
func TestRunThatDidNotFitIsLeftOut(t *testing.T) {
	p, err := Lookup("llama2-70b", "a100-80gb", 2)
	if err != nil {
		t.Fatal(err)
	}
	if p.DecodeMs(64, 512) <= p.DecodeMs(32, 512) || p.PrefillMs(32768) <= p.PrefillMs(16384) {
		t.Errorf("decode 64: %.1f, 32: %.1f; prefill 32768: %.1f, 16384: %.1f",
			p.DecodeMs(64, 512), p.DecodeMs(32, 512), p.PrefillMs(32768), p.PrefillMs(16384))
	}
}

// Prefill of a batch by total tokens against the batches that were measured.
func TestBatchPrefillScalesByTotalTokens(t *testing.T) {
	p, err := Lookup("llama2-70b", "a100-80gb", 2)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "4 x 512", p.PrefillMs(2048), 845.37, 0.3)
	near(t, "16 x 512", p.PrefillMs(8192), 3238.85, 0.3)
}

func TestUnknownSetUpIsNamed(t *testing.T) {
	_, err := Lookup("gpt", "tpu", 3)
	if !errors.Is(err, ErrUnknown) {
		t.Fatal(err)
	}
	keys, err := Keys()
	if err != nil || len(keys) != 12 {
		t.Fatalf("%d set-ups, %v", len(keys), err)
	}
}

func TestTimesNeverFall(t *testing.T) {
	keys, err := Keys()
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.SampledFrom(keys).Draw(t, "key")
		p, err := Lookup(k.Model, k.GPU, k.TP)
		if err != nil {
			t.Fatal(err)
		}
		tokens, more := rapid.IntRange(1, 100_000).Draw(t, "tokens"), rapid.IntRange(0, 5000).Draw(t, "more")
		batch, ctx := rapid.IntRange(1, 300).Draw(t, "batch"), rapid.IntRange(1, 40_000).Draw(t, "context")
		if p.PrefillMs(tokens+more) < p.PrefillMs(tokens)-1e-9 {
			t.Fatalf("%s: prefill falls after %d tokens", k, tokens)
		}
		if p.DecodeMs(batch+1, ctx) < p.DecodeMs(batch, ctx)-1e-9 || p.DecodeMs(batch, ctx+more) < p.DecodeMs(batch, ctx)-1e-9 {
			t.Fatalf("%s: decode falls after batch %d, context %d", k, batch, ctx)
		}
		if p.PrefillMs(tokens) <= 0 || p.DecodeMs(batch, ctx) <= 0 {
			t.Fatalf("%s: no time at all", k)
		}
	})
}

func TestPoolingAveragesViolators(t *testing.T) {
	c := newCurve([]point{{3, 4}, {1, 5}, {2, 3}, {3, 4}, {4, 10}})
	for i, want := range []float64{4, 4, 4, 10} {
		if c[i].y != want {
			t.Fatalf("curve %v", c)
		}
	}
	if c.at(0) != 4 || c.at(3.5) != 7 || c.at(5) != 16 {
		t.Fatalf("at: %v %v %v", c.at(0), c.at(3.5), c.at(5))
	}
}

func TestNothingTakesNoTime(t *testing.T) {
	p, _ := Lookup("llama2", "a100", 4)
	if p.PrefillMs(0) != 0 || p.DecodeMs(0, 100) != 0 || p.DecodeMs(1, 0) <= 0 {
		t.Error("zero tokens or sequences take time")
	}
}

func BenchmarkDecodeMs(b *testing.B) {
	p, _ := Lookup("llama2", "a100", 4)
	b.ReportAllocs()
	for b.Loop() {
		p.DecodeMs(17, 900)
	}
}
