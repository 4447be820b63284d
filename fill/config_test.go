package fill

import (
	"errors"
	"testing"

	"sluice/nodes/registry"
)

func TestConfig(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatal(err)
	}
	fast := Default().Scale(16)
	if err := fast.Validate(); err != nil {
		t.Fatal(err)
	}
	if fast.StartMs != 2813 || fast.PlanEveryMs != 100 || fast.StopTimeoutMs != 30_000 || Default().Scale(0) != Default() || Default().Scale(1e9).WakeMs != 1 {
		t.Fatalf("%+v", fast)
	}
	for name, spoil := range map[string]func(*Config){
		"zero":   func(c *Config) { *c = Config{} },
		"below":  func(c *Config) { c.GrowAfterMs = -1 },
		"share":  func(c *Config) { c.SwitchShare = 1.5 },
		"burst":  func(c *Config) { c.SwitchBurst = 0 },
		"slack":  func(c *Config) { c.ShareSlack = -0.1 },
		"yields": func(c *Config) { c.YieldMs = 0 },
	} {
		c := Default()
		if spoil(&c); !errors.Is(c.Validate(), ErrConfig) {
			t.Errorf("%s passes", name)
		}
	}
}

// Durations follow the facts' own times, however often plans are made.
func TestLearnsDurations(t *testing.T) {
	w := newWorld(t)
	w.addNodes(1, 2, 2, 80, 1)
	w.addJob(gang("a", 2, 2))
	w.step()
	for _, p := range []registry.JobPhase{registry.JobStarting, registry.JobRunning} {
		w.nowMs += 4000
		j := w.st.Jobs["a"]
		w.apply(registry.Command{JobPhase: &registry.PhaseChange{Name: "a", Seq: j.Seq, To: string(p)}})
		w.step()
		w.step()
	}
	m := w.p.jobs["a"]
	if got := w.p.restartMs(m); got != (25_000+8000)/2 || m.restart.seen != 1 {
		t.Fatalf("restart %d ms, seen %d", got, m.restart.seen)
	}
	if got := w.p.restartMs(&jobMemo{}); got != (25_000+8000)/2 {
		t.Fatalf("another job's restart is taken for %d ms", got)
	}
	// A planner that missed phases takes no wrong time for a restart.
	w.addModel(registry.ModelSpec{Name: "chat", ActiveBytes: giB})
	w.nowMs += 500_000
	w.run(2000, 1000)
	if m.restart.seen != 1 {
		t.Fatalf("seen %d", m.restart.seen)
	}
}

// Returns are capped, reclaims are not.
func TestSwitchCap(t *testing.T) {
	w := newWorld(t)
	w.p.cfg.DownAfterMs, w.p.cfg.DrainMs, w.p.cfg.StartMs = 0, 1, 1 // nothing else damps
	w.addNodes(1, 1, 1, 80, 1)
	w.addModel(registry.ModelSpec{Name: "chat"})
	w.addJob(gang("a", 1, 1))
	w.run(1000, 1000)
	began := w.nowMs
	for range 200 {
		w.need("chat", 1)
		w.run(2000, 1000)
		if r := w.counts()["chat"]; r != 1 {
			t.Fatalf("a reclaim was held back: %v\n%s", w.counts(), w.holders())
		}
		w.need("chat", 0)
		w.run(4000, 1000)
	}
	elapsed := w.nowMs - began
	// Restarts cost what was learned, at least a guess's half at first.
	spent := int64(w.switches["place a"]) * w.p.restartMs(w.p.jobs["a"])
	if most := int64(float64(elapsed)*w.p.cfg.SwitchShare) + 5*w.p.cfg.RestartMs; spent > most || w.switches["place a"] < 3 {
		t.Fatalf("%d returns cost %d ms of %d ms", w.switches["place a"], spent, elapsed)
	}
}
