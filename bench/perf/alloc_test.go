//go:build !race

package perf

import "testing"

func TestCurvesAllocateNothing(t *testing.T) {
	p, err := Lookup("llama2", "a100", 4)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { p.PrefillMs(777); p.DecodeMs(9, 3000) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
