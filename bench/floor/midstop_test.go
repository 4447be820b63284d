package floor

import (
	"fmt"
	"syscall"
	"testing"
)

// A server or an agent that is killed while a gang stops loses no step: ranks
// stay as they were told, and the next one goes on where the stop was.
func TestKillInMidStop(t *testing.T) {
	s := newSite(t)
	s.serve()
	s.agent("n1", 2)
	s.agent("n2", 2)
	s.must("PUT", "/v1/models/chat", s.chat(1), nil)
	s.ready(1)
	// Steps and saves take long, so that a kill hits a stop in each of its phases.
	s.must("POST", "/v1/jobs", s.tune(3, 3, 1, "--micro-ms", "40", "--save-ms", "500", "--save-every", "0"), nil)
	last := s.running(3, 0).Step
	for _, c := range []struct {
		victims []string
		phase   string // of the stop
	}{
		{[]string{"server"}, "prepare"},
		{[]string{"server"}, "save"},
		{[]string{"n1"}, "prepare"},
		{[]string{"n2"}, "save"},
		{[]string{"n1", "server", "n2"}, "save"},
	} {
		what := fmt.Sprintf("%v in %s", c.victims, c.phase)
		s.must("POST", "/v1/jobs/tune/pause", nil, nil)
		s.await("the gang stops", func() error {
			switch j := s.job("tune"); {
			case j.Phase == "stopping" && (c.phase == "prepare" || j.RankPhase == "save"):
				return nil
			case j.Phase == "paused":
				t.Logf("%s: the stop was over before the kill", what)
				return nil
			default:
				return fmt.Errorf("it is %s, its ranks %s", j.Phase, j.RankPhase)
			}
		})
		for _, v := range c.victims {
			s.signal(v, syscall.SIGKILL)
		}
		for _, v := range c.victims {
			if v == "server" {
				s.serve()
			} else {
				s.agent(v, 2)
			}
		}
		s.await("the control socket", func() error { return s.call("GET", "/v1/status", nil, nil) })
		j := s.paused()
		s.checkLedger(j)
		s.sound(what)
		if j.LostSteps != 0 || j.Restarts != 0 || j.saved() <= last {
			t.Errorf("%s: %d steps are lost, %d restarts, step %d is saved; want 0, 0, beyond %d", what, j.LostSteps, j.Restarts, j.saved(), last)
		}
		last = j.saved()
		s.must("POST", "/v1/jobs/tune/resume", nil, nil)
		s.running(3, last)
	}
}
