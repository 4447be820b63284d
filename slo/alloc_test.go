package slo

import "testing"

func TestSamplesAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("race detector allocates")
	}
	tracker, err := NewTracker(chat, Default())
	if err != nil {
		t.Fatal(err)
	}
	s := Sample{TTFTMs: 300, ITLMs: 30, E2EMs: 5000, InputTokens: 900, OutputTokens: 100}
	nowMs := int64(0)
	if n := testing.AllocsPerRun(1000, func() {
		nowMs += 37
		tracker.Arrived(nowMs)
		tracker.SetQueue(3)
		tracker.Finished(s, nowMs)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkSample(b *testing.B) {
	tracker, err := NewTracker(chat, Default())
	if err != nil {
		b.Fatal(err)
	}
	s := Sample{TTFTMs: 300, ITLMs: 30, E2EMs: 5000, InputTokens: 900, OutputTokens: 100}
	b.ReportAllocs()
	for i := int64(0); b.Loop(); i++ {
		tracker.Arrived(i)
		tracker.Finished(s, i)
	}
}

func BenchmarkHeadroom(b *testing.B) {
	tracker, err := NewTracker(chat, Default())
	if err != nil {
		b.Fatal(err)
	}
	s := Sample{TTFTMs: 300, ITLMs: 30, E2EMs: 5000, InputTokens: 900, OutputTokens: 100}
	nowMs := int64(0)
	for range 20_000 {
		nowMs += 50
		tracker.Arrived(nowMs)
		tracker.Finished(s, nowMs)
	}
	for b.Loop() {
		tracker.Headroom(nowMs, 5000, 4)
	}
}
