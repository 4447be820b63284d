package trainer

import (
	"math"
	"testing"
)

// The gradient is that of the loss: compared with finite differences.
func TestGradientMatchesFiniteDifferences(t *testing.T) {
	cfg := Default()
	cfg.MicroBatchSamples, cfg.Hidden = 2, 5
	m := newModel(cfg)
	loss := func() float64 {
		sums := make([]int64, len(m.params)+1)
		if err := m.microBatch(3, 1, sums); err != nil {
			t.Fatal(err)
		}
		return float64(sums[len(sums)-1]) / fixedOne
	}
	sums := make([]int64, len(m.params)+1)
	if err := m.microBatch(3, 1, sums); err != nil {
		t.Fatal(err)
	}
	const h = 1e-4
	for i := range m.params {
		old := m.params[i]
		m.params[i] = old + h
		up := loss()
		m.params[i] = old - h
		down := loss()
		m.params[i] = old
		got, want := float64(sums[i])/fixedOne, (up-down)/(2*h)
		if math.Abs(got-want) > 1e-3*(1+math.Abs(want)) {
			t.Fatalf("parameter %d: gradient %g, by differences %g", i, got, want)
		}
	}
}

func TestDivergenceIsAnError(t *testing.T) {
	m := newModel(Default())
	m.params[0] = math.NaN()
	if err := m.microBatch(1, 0, make([]int64, len(m.params)+1)); err != ErrDiverged {
		t.Fatal(err)
	}
}

func TestMicroBatchAllocatesNothing(t *testing.T) {
	m := newModel(Default())
	sums := make([]int64, len(m.params)+1)
	if n := testing.AllocsPerRun(10, func() { m.microBatch(1, 0, sums); m.update(sums) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkMicroBatch(b *testing.B) {
	m := newModel(Default())
	sums := make([]int64, len(m.params)+1)
	for b.Loop() {
		m.microBatch(1, 0, sums)
	}
}
