package floor

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice/nodes/registry"
)

// serveAgainLimit is within what a request is answered again, counted from the
// start of the server's process.
const serveAgainLimit = 2 * time.Second

// One after the other, and under load, everything is killed with kill -9.
func TestKillEverything(t *testing.T) {
	s := newSite(t)
	s.serve()
	s.agent("n1", 4)
	s.agent("n2", 4)
	s.must("PUT", "/v1/models/chat", s.chat(2), nil)
	s.ready(2)
	// Saving takes long, so that a kill hits a save.
	s.must("POST", "/v1/jobs", s.tune(2, 4, 2, "--save-every", "12", "--save-ms", "400"), nil)
	s.running(2, 0)
	s.manifests("at the start")
	l := startLoad(s)
	l.progress(s, streams)

	for _, c := range []struct {
		what string
		kill func(*site, *load)
	}{
		{"a replica", killReplica},
		{"a rank", func(s *site, _ *load) { s.killRank(1) }},
		{"rank 0 in mid-checkpoint", killSaving},
		{"a shim", killShim},
		{"an agent", killAgent},
		{"the server", killServer},
	} {
		before := s.manifests("before " + c.what + " was killed")
		begin := time.Now()
		c.kill(s, l)
		s.ready(2)
		s.connected(2, begin)
		j := s.running(2, before)
		took := time.Since(begin)
		if after := s.manifests("after " + c.what + " was killed"); after < before {
			t.Errorf("%s: the current checkpoint went back from step %d to %d", c.what, before, after)
		}
		l.progress(s, streams)
		all, failed := l.judge(c.what, nil)
		s.sound(c.what)
		t.Logf("%s: all is back after %v, generation %d; %d more requests, %d failed", c.what, took.Round(time.Millisecond), j.Generation, all, failed)
	}
	l.end()
	s.must("POST", "/v1/jobs/tune/pause", nil, nil)
	s.checkLedger(s.paused())
}

// killReplica kills the engine on which a stream runs: only such streams fail.
func killReplica(s *site, l *load) {
	s.t.Helper()
	victim := s.model("chat").Replicas[0]
	texts := textsOf(s.t, victim.Addr)
	l.judge("before a replica is killed", nil)
	pid := s.holders(victim.Node)[victim.ID].child
	s.await("a stream runs on the replica", func() error {
		if l.openOn(texts) == 0 {
			return errors.New("none yet")
		}
		s.kill9(pid) // at once, so that it still runs
		return nil
	})
	s.await("its end is seen", func() error {
		for _, r := range s.model("chat").Replicas {
			if r.ID == victim.ID && r.Phase == "ready" {
				return errors.New("it counts as ready")
			}
		}
		return nil
	})
	s.ready(2)
	l.progress(s, streams)
	all, failed := l.judge("a replica", texts)
	if failed == 0 || failed > streams {
		s.t.Errorf("%d streams were cut; want 1 to %d, those that ran on the replica", failed, streams)
	}
	s.t.Logf("a replica: %d of %d requests had begun on it and were cut", failed, all)
}

// rank finds the processes of a rank of the present generation.
func (s *site) rank(i int) (string, holderPids) {
	s.t.Helper()
	var id string
	var p holderPids
	s.await("the rank's processes", func() error {
		ok := false
		id = registry.RankHolder("tune", s.job("tune").Generation, i)
		if p, ok = s.allHolders()[id]; !ok {
			return fmt.Errorf("%s is not there", id)
		}
		return nil
	})
	return id, p
}

// restarted waits until a later generation runs.
func (s *site) restarted(after int64) {
	s.t.Helper()
	s.await("the next generation runs", func() error {
		if j := s.job("tune"); j.Generation <= after || j.Phase != "running" {
			return fmt.Errorf("generation %d is %s (%s)", j.Generation, j.Phase, j.Reason)
		}
		return nil
	})
}

func (s *site) killRank(i int) {
	s.t.Helper()
	gen := s.job("tune").Generation
	_, p := s.rank(i)
	s.kill9(p.child)
	s.restarted(gen)
}

// killSaving kills rank 0 while its shard is half written.
func killSaving(s *site, _ *load) {
	s.t.Helper()
	j := s.job("tune")
	_, p := s.rank(0)
	pattern := filepath.Join(s.dir, "server", "checkpoints", "tune", fmt.Sprintf("g%d", j.Generation), "step-*", "shard-0-of-*.tmp")
	var torn string
	s.await("rank 0 writes a checkpoint", func() error {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			return fmt.Errorf("no %s, %v", pattern, err)
		}
		torn = found[0]
		s.kill9(p.child)
		return nil
	})
	if _, err := os.Stat(torn); err != nil {
		s.t.Logf("the save was over before the kill: %v", err)
	}
	s.restarted(j.Generation)
}

// killShim kills the shim of a rank: its holder ends with it.
func killShim(s *site, _ *load) {
	s.t.Helper()
	gen := s.job("tune").Generation
	_, p := s.rank(1)
	s.kill9(p.shim)
	s.restarted(gen)
	if p.child.Alive() {
		s.t.Error("the rank outlives its shim")
	}
}

// untouched runs do, and checks that every holder is the same process before
// and after, and that the ranks step on until then.
func (s *site) untouched(what string, do func()) {
	s.t.Helper()
	before, gen := s.allHolders(), s.job("tune").Generation
	do()
	if after := s.allHolders(); !maps.Equal(before, after) {
		s.t.Errorf("%s: holders were touched:\n%v\n%v", what, slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
	}
	if j := s.job("tune"); j.Generation != gen {
		s.t.Errorf("%s: the job was restarted (%s)", what, j.Reason)
	}
}

// stepsOn waits until the ranks have written down more steps by themselves.
func (s *site) stepsOn() {
	s.t.Helper()
	const more = 3
	from := s.lastStep()
	s.await("the ranks step on", func() error {
		if n := s.lastStep(); n < from+more {
			return fmt.Errorf("at step %d, want %d more than %d", n, more, from)
		}
		return nil
	})
}

func killAgent(s *site, l *load) {
	s.t.Helper()
	_, p := s.rank(0)
	node := ""
	for n := range s.nodes {
		for _, h := range s.holders(n) {
			if h == p {
				node = n
			}
		}
	}
	s.untouched("an agent", func() {
		s.signal(node, syscall.SIGKILL)
		s.stepsOn()
		l.progress(s, 1)
		begin := time.Now()
		s.agent(node, 4)
		s.connected(2, begin)
		s.stepsOn()
	})
}

func killServer(s *site, l *load) {
	s.t.Helper()
	s.untouched("the server", func() {
		l.judge("before the server was killed", nil)
		l.expectFailures(true)
		s.signal("server", syscall.SIGKILL)
		s.stepsOn()
		begin := time.Now()
		s.serve()
		took := s.answersAgain(begin)
		l.expectFailures(false)
		s.t.Logf("the server: a request is answered %v after its start", took.Round(time.Millisecond))
		if took > serveAgainLimit {
			s.t.Errorf("a request is answered only %v after the server's start, want %v", took, serveAgainLimit)
		}
		s.connected(2, begin)
		s.stepsOn()
	})
}

// answersAgain sends one request, again and again, until it is answered.
func (s *site) answersAgain(begin time.Time) time.Duration {
	s.t.Helper()
	client := &http.Client{Timeout: serveAgainLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	s.await("a request is answered", func() error {
		res, err := client.Post("http://"+s.dataAddr+"/v1/chat/completions", "application/json", bodyOf("hello", 1, false))
		if err != nil {
			return err
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", res.StatusCode)
		}
		return nil
	})
	return time.Since(begin)
}

// paused waits until the job holds nothing, and returns it.
func (s *site) paused() *jobStatus {
	s.t.Helper()
	var j *jobStatus
	s.await("the job is paused", func() error {
		if j = s.job("tune"); j.Phase != "paused" {
			return fmt.Errorf("it is %s (%s)", j.Phase, strings.TrimSpace(j.Reason))
		}
		return nil
	})
	return j
}
