package agent

import (
	"testing"
	"time"

	"sluice/nodes"
)

// Reclaim is as fast as the agent's part of it: what is measured here is logged,
// and only an absurd figure fails, since the machine may be loaded.
func TestReleaseIsQuick(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	const absurd = 3 * time.Second
	took := func(what string, from time.Time) {
		d := time.Since(from)
		t.Logf("%s: %v", what, d)
		if d > absurd {
			t.Errorf("%s took %v", what, d)
		}
	}
	rep, gang := s.replica("r", "G0"), s.trainer("a", "G0")
	at := time.Now()
	s.begin(nodes.OrderStart, rep)
	s.await("r", nodes.StateReady)
	took("replica order to ready", at)
	at = time.Now()
	s.do(nodes.OrderSleep, rep)
	s.await("r", nodes.StateAsleep)
	took("sleep order to proof of quiet", at)
	at = time.Now()
	s.begin(nodes.OrderPrepare, gang)
	took("prepare to answer", at)
	at = time.Now()
	s.begin(nodes.OrderStart, gang)
	s.await("a", nodes.StateRunning)
	took("rank order to hello", at)
	for _, id := range []string{"s1", "s2", "s3"} {
		at = time.Now()
		s.stopAt("a", id, nodes.StopYield)
		s.await("a", nodes.StateYielded)
		took("yield, two phases, steps of 5 ms, to proof of quiet", at)
		at = time.Now()
		s.must(nodes.Order{Kind: nodes.OrderRankResume, Holder: "a", Generation: 1, StopID: id})
		s.await("a", nodes.StateRunning)
		took("resume", at)
	}
	at = time.Now()
	s.do(nodes.OrderKill, gang)
	s.await("a", nodes.StateGone)
	took("kill order to proof of gone", at)
	at = time.Now()
	s.do(nodes.OrderWake, rep)
	s.await("r", nodes.StateReady)
	took("wake order to ready", at)
}
