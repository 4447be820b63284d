package floor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sluice/nodes/rank"
	"sluice/nodes/registry"
)

// A job is led through yield, shrink, grow and pause by its owner's wishes and
// a model's demand, and loses no step; then a rank is killed, and what is lost
// is booked. At the end the ledger agrees with the ranks' own counters.
func TestOrdersLoseNothing(t *testing.T) {
	s := newSite(t)
	s.serve()
	s.agent("n1", 4)
	s.must("PUT", "/v1/models/chat", s.chat(1), nil)
	s.ready(1)
	s.must("POST", "/v1/jobs", s.tune(1, 3, 1, "--save-every", "25"), nil)
	j := s.orders(registry.RungYield, registry.RungShrink, registry.RungGrow, registry.RungUser)

	s.must("POST", "/v1/jobs/tune/resume", nil, nil)
	j = s.running(1, j.saved())
	_, p := s.rank(0)
	s.await("some work is not saved", func() error {
		unsaved := s.lastStep() - s.job("tune").saved()
		if unsaved < 3 || unsaved > 15 { // of the 25 between two saves
			return fmt.Errorf("%d steps", unsaved)
		}
		s.kill9(p.child)
		return nil
	})
	s.restarted(j.Generation)
	s.running(1, j.saved())
	s.pruned()
	s.must("POST", "/v1/jobs/tune/pause", nil, nil)
	j = s.paused()
	s.checkLedger(j)
	if j.LostSteps == 0 || j.Restarts != 1 {
		t.Errorf("a rank was killed: %d steps are lost, %d restarts", j.LostSteps, j.Restarts)
	}
	s.manifests("at the end")
	s.sound("at the end")
}

// So is a job that can keep no memory beside an engine: it never yields.
func TestOrdersToAJobThatCannotYield(t *testing.T) {
	s := newSite(t)
	s.serve()
	s.agent("n1", 4)
	s.must("PUT", "/v1/models/chat", s.chat(1), nil)
	s.ready(1)
	spec := s.tune(1, 3, 1, "--save-every", "25")
	spec.ActiveBytes, spec.ResidentBytes = 140<<30, 140<<30
	spec.Command = append(spec.Command, "--active-memory", "140GiB", "--resident-memory", "140GiB")
	s.must("POST", "/v1/jobs", spec, nil)
	s.orders(registry.RungShrink, registry.RungGrow, registry.RungPause, registry.RungUser)
}

// orders leads the job of at most three ranks through everything that orders
// can do, to a pause, and checks that no step was lost.
func (s *site) orders(rungs ...registry.Rung) *jobStatus {
	s.t.Helper()
	s.running(3, 0)
	s.demand(2) // one GPU of its three is wanted
	s.running(2, s.lastStep())
	s.demand(1) // and comes back
	s.running(3, s.lastStep())
	s.demand(4) // all are wanted
	s.await("the job gives way", func() error {
		if j := s.job("tune"); j.Phase != "paused" && j.Phase != "yielded" {
			return fmt.Errorf("it is %s", j.Phase)
		}
		return nil
	})
	s.demand(1)
	s.running(1, s.lastStep())
	s.must("POST", "/v1/jobs/tune/pause", nil, nil)
	j := s.paused()
	s.sound("after orders")
	s.checkLedger(j)
	if j.LostSteps != 0 || j.Restarts != 0 {
		s.t.Errorf("nothing was killed, and %d steps are lost, %d restarts", j.LostSteps, j.Restarts)
	}
	seen := s.rungs()
	s.t.Logf("orders: %v", seen)
	for _, want := range rungs {
		if seen[want] == 0 {
			s.t.Errorf("no %s happened", want)
		}
	}
	return j
}

// demand makes a model want so many replicas, and waits until they serve.
func (s *site) demand(replicas int) {
	s.t.Helper()
	s.must("PUT", "/v1/models/chat", s.chat(replicas), nil)
	s.ready(replicas)
}

// rungs counts the stops of gangs that the events tell of.
func (s *site) rungs() map[registry.Rung]int {
	s.t.Helper()
	raw, err := s.raw("GET", "/v1/events?since=0", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[registry.Rung]int{}
	for line := range bytes.Lines(raw) {
		var e registry.Event
		if err := json.Unmarshal(line, &e); err != nil {
			s.t.Fatal(err)
		}
		if e.Kind == "reclaim" && e.Object == "tune" {
			out[e.Rung]++
		}
	}
	return out
}

// pruned waits until, while the job runs, nothing is left of its checkpoints
// but those that are kept and those that are not yet complete.
func (s *site) pruned() {
	s.t.Helper()
	root := filepath.Join(s.dir, "server", "checkpoints", "tune")
	s.await("old checkpoints are removed", func() error {
		j := s.job("tune")
		var kept []string
		for _, raw := range j.Manifests {
			var m rank.Manifest
			if err := json.Unmarshal(raw, &m); err != nil {
				return err
			}
			kept = append(kept, filepath.Dir(m.Shards[0].File))
		}
		found, err := filepath.Glob(filepath.Join(root, "g*", "step-*"))
		if err != nil {
			return err
		}
		for _, dir := range found {
			var gen, step int64
			if _, err := fmt.Sscanf(dir[len(root):], "/g%d/step-%d", &gen, &step); err != nil {
				return err
			}
			if !slices.Contains(kept, dir) && (gen != j.Generation || step <= j.saved()) {
				return fmt.Errorf("%s is there, kept are %v", dir, kept)
			}
		}
		for _, dir := range kept {
			if _, err := os.Stat(dir); err != nil && s.job("tune").saved() == j.saved() {
				return errors.New("a kept checkpoint is gone: " + dir)
			}
		}
		return nil
	})
}
