package floor

import (
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"sluice/nodes/registry"
)

// up starts server and agent in one process, or starts them again.
func (s *site) up() {
	s.t.Helper()
	data := filepath.Join(s.dir, "up")
	s.socket = filepath.Join(data, "control.sock")
	s.nodes["n1"], s.sims["n1"] = filepath.Join(data, "node", "agent"), filepath.Join(data, "node", "simgpu")
	s.spawn("up", nil, "up", "--data", data, "--node", "n1", "--listen", s.dataAddr, "--gpus", "sim:4", "--speed", strconv.Itoa(speed), "--strict")
}

// What `sluice up` knows, and what runs below it, outlives its end.
func TestUpSurvivesRestarts(t *testing.T) {
	s := newSite(t)
	s.up()
	s.await("the control socket", func() error { return s.call("GET", "/v1/status", nil, nil) })
	s.must("PUT", "/v1/tenants/team", registry.TenantSpec{Name: "team", GuaranteeGPUs: 1}, nil)
	s.must("PUT", "/v1/models/chat", s.chat(1), nil)
	s.ready(1)
	s.must("POST", "/v1/jobs", s.tune(1, 2, 1, "--save-every", "25"), nil)
	s.running(2, 0)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		when := "after " + sig.String()
		saved := s.manifests("before " + sig.String())
		replica := s.model("chat").Replicas[0]
		s.untouched(when, func() {
			s.signal("up", sig)
			s.stepsOn()
			begin := time.Now()
			s.up()
			if took := s.answersAgain(begin); took > serveAgainLimit {
				t.Errorf("%s: a request is answered only after %v, want %v", when, took, serveAgainLimit)
			}
			s.connected(1, begin)
			s.running(2, s.lastStep())
		})
		if got := s.model("chat").Replicas; !slices.Equal(got, []replicaStatus{replica}) {
			t.Errorf("%s: replicas are %+v, were %+v", when, got, replica)
		}
		if now := s.manifests(when); now < saved {
			t.Errorf("%s: the current checkpoint went back from step %d to %d", when, saved, now)
		}
		s.must("GET", "/v1/tenants/team", nil, nil)
		s.sound(when)
	}
	s.must("POST", "/v1/jobs/tune/pause", nil, nil)
	j := s.paused()
	s.checkLedger(j)
	if j.LostSteps != 0 || j.Restarts != 0 || len(j.Ledger) != 1 {
		t.Errorf("%d steps are lost, %d restarts, %d generations; want 0, 0, 1", j.LostSteps, j.Restarts, len(j.Ledger))
	}
	if err := s.twice(); err != nil {
		t.Error(err)
	}
}

// twice says whether a second program runs on the same data: it must not.
func (s *site) twice() error {
	first := s.procs["up"]
	defer func() { s.procs["up"] = first }()
	s.up()
	second := s.procs["up"]
	select {
	case <-second.ended:
		return s.call("GET", "/v1/status", nil, nil) // the first still answers
	case <-time.After(settleLimit):
		_ = second.Process.Kill()
		<-second.ended
		return errors.New("a second program runs on the same data")
	}
}
