//go:build !race

package engine

import "testing"

func TestEventsAllocateNothing(t *testing.T) {
	a := answer{job: job{chat: true, choices: 1, finish: "stop"}, id: "chatcmpl-1", model: "sim"}
	buf := a.events(make([]byte, 0, 4096), 0, 1)
	n := 1
	if allocs := testing.AllocsPerRun(1000, func() { buf = a.events(buf[:0], n, n+1); n++ }); allocs != 0 {
		t.Errorf("%v allocations an event", allocs)
	}
}
