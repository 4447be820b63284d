package fill

import (
	"testing"

	"sluice/nodes/registry"
)

// crashes ends a's generation as a lost rank does.
func (w *world) crashes(job string) {
	j := w.st.Jobs[job]
	w.apply(registry.Command{JobEnding: &registry.JobEnding{Job: job, Seq: j.Seq, After: registry.JobPaused, Rung: registry.RungFailed, Restart: true}})
	w.settle()
}

// A planner that began before its agents came back may restart gangs as freely
// as one that found them there.
func TestReturnsAfterALateFloor(t *testing.T) {
	w := newWorld(t)
	w.run(1000, 500) // nobody is there
	w.addNodes(1, 4, 4, 80, 1)
	w.addJob(gang("a", 4, 4))
	w.run(1000, 500)
	w.phase("a", registry.JobRunning)
	w.crashes("a")
	w.run(1000, 500)
	w.phase("a", registry.JobRunning)
}

// GPUs that go and come again bring no credit of their own.
func TestReturnsAreNotEarnedByFlapping(t *testing.T) {
	w := newWorld(t)
	w.addNodes(1, 4, 4, 80, 1)
	w.addJob(gang("a", 4, 4))
	w.run(1000, 500)
	before := w.p.fleet.creditGPUMs
	for range 3 {
		w.p.fleet.creditGPUMs = 0
		w.apply(registry.Command{NodeLost: &registry.NodeLost{Node: "n00", LastSeenMs: w.nowMs}})
		w.step()
		n := w.st.Nodes["n00"].Node
		w.apply(registry.Command{NodeSeen: &n})
		w.step()
	}
	if got := w.p.fleet.creditGPUMs; got > before/10 {
		t.Errorf("credit %g of %g GPU-ms", got, before)
	}
}

// What its owner stopped starts again when its owner says so, however often the
// planner has moved it.
func TestOwnersResumeIsNoSwitch(t *testing.T) {
	w := newWorld(t)
	w.addNodes(1, 4, 4, 80, 1)
	w.addJob(gang("a", 4, 4))
	w.run(1000, 500)
	for range 3 {
		w.p.jobs["a"].creditMs, w.p.fleet.creditGPUMs = 0, 0
		w.apply(registry.Command{JobWant: &registry.JobWant{Job: "a", Want: "paused"}})
		w.run(1000, 500)
		w.phase("a", registry.JobPaused)
		w.apply(registry.Command{JobWant: &registry.JobWant{Job: "a"}})
		w.run(1000, 500)
		w.phase("a", registry.JobRunning)
	}
	w.p.jobs["a"].creditMs, w.p.fleet.creditGPUMs = 0, 0
	w.crashes("a")
	w.run(1000, 500)
	w.phase("a", registry.JobPaused) // that one is
}
