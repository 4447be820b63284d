package floor

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// seedEnv gives the seed of TestChaos, to see a failure again, as far as real
// processes repeat; without it each run takes a new one. actsEnv gives the
// number of acts, for a long run.
const (
	seedEnv = "SLUICE_FLOOR_SEED"
	actsEnv = "SLUICE_FLOOR_ACTS"
)

const (
	chaosActs    = 16
	chaosPauseMs = 900 // at most, between two acts: less than most changes take
)

func envNumber(t *testing.T, name string, none uint64) uint64 {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return none
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// Things are killed and asked for at random, many before the last has settled.
// What must hold holds meanwhile, and all comes back when it stops.
func TestChaos(t *testing.T) {
	seed, acts := envNumber(t, seedEnv, uint64(time.Now().UnixNano())), envNumber(t, actsEnv, chaosActs)
	t.Logf("%s=%d %s=%d", seedEnv, seed, actsEnv, acts)
	s := newSite(t)
	s.serve()
	s.agent("n1", 2)
	s.agent("n2", 2)
	s.must("PUT", "/v1/models/chat", s.chat(1), nil)
	s.ready(1)
	s.must("POST", "/v1/jobs", s.tune(1, 3, 1, "--save-every", "10", "--save-ms", "100"), nil)
	s.running(1, 0)
	c := &chaos{site: s, rnd: rand.New(rand.NewPCG(seed, 1))}
	for range acts {
		c.act()
		c.pause()
	}
	s.must("PUT", "/v1/models/chat", s.chat(1), nil)
	s.must("POST", "/v1/jobs/tune/resume", nil, nil)
	s.ready(1)
	s.running(1, s.job("tune").saved())
	s.sound("when all came back")
	s.manifests("when all came back")
	s.must("POST", "/v1/jobs/tune/pause", nil, nil)
	j := s.paused()
	t.Logf("%d generations, %d restarts, %d steps saved, %d lost", j.Generation, j.Restarts, j.saved(), j.LostSteps)
	s.compareLedger(j, false)
	s.sound("at the end")
}

// chaos does one thing after the other. It is its test's goroutine.
type chaos struct {
	*site
	rnd *rand.Rand
}

func (c *chaos) pause() {
	timer := time.NewTimer(time.Duration(c.rnd.IntN(chaosPauseMs)) * time.Millisecond)
	<-timer.C
}

func (c *chaos) act() {
	c.t.Helper()
	switch n := c.rnd.IntN(13); {
	case n < 3:
		c.holder("child", func(p holderPids) { c.kill9(p.child) })
	case n < 4:
		c.holder("shim", func(p holderPids) { c.kill9(p.shim) })
	case n < 6:
		node := fmt.Sprintf("n%d", 1+c.rnd.IntN(2))
		c.t.Logf("kill the agent of %s", node)
		c.signal(node, syscall.SIGKILL)
		if c.rnd.IntN(2) == 0 {
			c.pause()
		}
		c.agent(node, 2)
	case n < 8:
		c.t.Log("kill the server")
		c.signal("server", syscall.SIGKILL)
		if c.rnd.IntN(2) == 0 {
			c.pause()
		}
		c.serve()
		c.await("the server", func() error { return c.call("GET", "/v1/status", nil, nil) })
	case n < 11:
		replicas := 1 + c.rnd.IntN(3)
		c.t.Logf("want %d replicas", replicas)
		c.must("PUT", "/v1/models/chat", c.chat(replicas), nil)
	default:
		want := []string{"pause", "resume"}[n-11]
		c.t.Log(want)
		c.must("POST", "/v1/jobs/tune/"+want, nil, nil)
	}
}

// holder does something to a living holder, if there is one.
func (c *chaos) holder(what string, do func(holderPids)) {
	c.t.Helper()
	all := c.allHolders()
	ids := slices.Sorted(maps.Keys(all))
	if ranks := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !strings.HasPrefix(id, "tune.") }); len(ranks) > 0 && c.rnd.IntN(2) == 0 {
		ids = ranks
	}
	if len(ids) == 0 {
		return
	}
	id := ids[c.rnd.IntN(len(ids))]
	c.t.Logf("kill the %s of %s", what, id)
	do(all[id])
}
