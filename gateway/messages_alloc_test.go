package gateway

import (
	"strings"
	"testing"
)

// TestMessagesAllocations holds what a request to the Messages API allocates: a little to be translated, nothing to be
// passed on, and nothing for a chunk either way.
func TestMessagesAllocations(t *testing.T) {
	if raceOn {
		t.Skip("the race detector allocates")
	}
	reply := sseHead + chunk(strings.Repeat(delta("token"), 40)+finishEvent+usageEvent+doneEvent) + "0\r\n\r\n"
	short := sseHead + chunk(delta("token")+finishEvent+usageEvent+doneEvent) + "0\r\n\r\n"
	native := sseHead + chunk(strings.Join(nativeEvents, "")) + "0\r\n\r\n"
	request := post("/v1/messages", askStream, "anthropic-version: 2023-06-01", "anthropic-beta: a")
	measure := func(f *floor) float64 {
		f.srv.deps.Observer = noObserver{}
		x := &exchanger{t, f.raw(""), []byte(request), []byte("0\r\n\r\n"), make([]byte, 64<<10)}
		for range 50 {
			x.run()
		}
		return testing.AllocsPerRun(300, x.run)
	}
	long, brief := measure(open(t, nil, nil, steadyEngine(t, reply))), measure(open(t, nil, nil, steadyEngine(t, short)))
	if long > brief || brief > 14 {
		t.Errorf("%v allocations with 40 chunks, %v with one; at most 14", long, brief)
	}
	if n := measure(openNative(t, steadyEngine(t, native))); n > 0 {
		t.Errorf("%v allocations to pass a request on", n)
	}
	t.Logf("translated: %v allocations a request, 0 a chunk", brief)
}

func BenchmarkMessages20Events(b *testing.B) {
	answer := sseHead + chunk(strings.Repeat(delta("token"), 20)+finishEvent+usageEvent+doneEvent) + "0\r\n\r\n"
	f := openFor(b, nil, nil, steadyEngine(b, answer))
	f.srv.deps.Observer = noObserver{}
	x := &exchanger{b, f.raw(""), []byte(post("/v1/messages", askStream)), []byte("0\r\n\r\n"), make([]byte, 64<<10)}
	b.ReportAllocs()
	for b.Loop() {
		x.run()
	}
}
