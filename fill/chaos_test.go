package fill

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/slo"
)

// The chaos test runs the whole controller (Advance, Plan, Orders, the registry)
// against agents and ranks of its own in virtual time: orders and frames are
// delayed, streams break, ranks crash, fall silent or evaluate for long, nodes
// are lost, the controller restarts. After every command the registry's
// invariants hold; the devices themselves see never two active holders; no gang
// stops at two different steps; and when the faults end everything comes to
// rest within a bound. A failure prints its seed: SLUICE_SEED=n runs that one.

const (
	chaosFaultsMs = 60_000 // faults happen up to here
	chaosEndMs    = 400_000
	chaosStuckMs  = 150_000 // after the faults, nothing may be on its way longer than this
	chaosGiB      = 1 << 30
)

type chaosEvent struct {
	atMs int64
	seq  int
	do   func()
}

type chaosHeap []chaosEvent

func (h chaosHeap) Len() int { return len(h) }
func (h chaosHeap) Less(i, j int) bool {
	return h[i].atMs < h[j].atMs || (h[i].atMs == h[j].atMs && h[i].seq < h[j].seq)
}
func (h chaosHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *chaosHeap) Push(x any)   { *h = append(*h, x.(chaosEvent)) }
func (h *chaosHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

type chaos struct {
	t        *testing.T
	seed     uint64
	rng      *rand.Rand
	nowMs    int64
	seq      int
	queue    chaosHeap
	st       *registry.State
	fleet    *nodes.Fleet
	planner  *Planner
	term     uint64
	leaderMs int64
	sentMs   map[string]int64
	demand   map[string]int
	agents   map[string]*chaosAgent
	device   map[string]string // GPU → the holder that computes on it
	gangs    map[string]*chaosGang
	down     bool // the controller
	log      []string
	stops    map[string]int64 // stop id → the step its ranks stopped at
	restarts int
}

func newChaos(t *testing.T, seed uint64) *chaos {
	c := &chaos{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), nowMs: 1_000_000, st: registry.New(), fleet: nodes.NewFleet(),
		planner: NewPlanner(Default()), term: 1, sentMs: map[string]int64{}, demand: map[string]int{}, agents: map[string]*chaosAgent{},
		device: map[string]string{}, gangs: map[string]*chaosGang{}, stops: map[string]int64{}}
	c.leaderMs = c.nowMs
	return c
}

func (c *chaos) fatalf(format string, args ...any) {
	c.t.Helper()
	for _, l := range c.log[max(0, len(c.log)-60):] {
		c.t.Log(l)
	}
	c.t.Fatalf("SLUICE_SEED=%d at %d ms: %s", c.seed, c.nowMs-1_000_000, fmt.Sprintf(format, args...))
}

func (c *chaos) note(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf("%7d ", c.nowMs-1_000_000)+fmt.Sprintf(format, args...))
	if len(c.log) > 400 {
		c.log = slices.Delete(c.log, 0, 200)
	}
}

func (c *chaos) after(ms int64, do func()) {
	c.seq++
	heap.Push(&c.queue, chaosEvent{c.nowMs + max(0, ms), c.seq, do})
}

func (c *chaos) apply(cmd registry.Command) {
	if cmd.ID == "" {
		cmd.ID = strconv.Itoa(c.seq) + "." + strconv.FormatInt(c.st.Version, 10)
	}
	cmd.AtMs = c.nowMs
	ev, err := c.st.Apply(&cmd)
	if err != nil {
		c.note("refused: %v", err)
		return
	}
	for _, e := range ev {
		c.note("%s %s %s→%s %s %s", e.Kind, e.Object, e.From, e.To, e.Rung, e.Reason)
	}
	if bad := c.st.Check(); len(bad) > 0 {
		c.fatalf("broken: %s", strings.Join(bad, "; "))
	}
}

// round is the controller's, as fill/exec runs it.
func (c *chaos) round() {
	if c.down {
		return
	}
	for id, n := range c.st.Nodes {
		seen := c.fleet.Nodes[id]
		silent := (seen != nil && c.nowMs-seen.LastMs > 5_000) || (seen == nil && c.nowMs-c.leaderMs > 20_000)
		if !n.Lost && silent {
			c.apply(registry.Command{NodeLost: &registry.NodeLost{Node: id, LastSeenMs: n.LastSeenMs}})
		}
	}
	v := View{State: c.st, Fleet: c.fleet, Headroom: c.headroom(), LeaderSinceMs: c.leaderMs}
	for _, cmd := range Advance(v, c.nowMs) {
		c.apply(cmd)
	}
	for _, cmd := range c.planner.Plan(v, c.nowMs).Commands {
		c.apply(cmd)
	}
	for _, o := range Orders(v, c.term, c.nowMs, "/ckpt") {
		a := c.agents[o.Node]
		if !a.up || c.sentMs[o.Order.ID] > c.nowMs-3_000 {
			continue
		}
		c.sentMs[o.Order.ID] = c.nowMs
		ord, epoch := o.Order, a.epoch
		if ord.Kind == nodes.OrderForget {
			c.fleet.Nodes[o.Node].Forget(ord.Holder)
		}
		at := max(a.lastMs, c.nowMs+int64(c.rng.IntN(40)))
		a.lastMs = at
		c.after(at-c.nowMs, func() {
			if a.up && a.epoch == epoch {
				a.order(&ord)
			}
		})
	}
}

func (c *chaos) headroom() map[string]slo.Headroom {
	h := map[string]slo.Headroom{}
	for m, n := range c.demand {
		ready := 0
		for _, r := range c.st.Replicas {
			if r.Model == m && r.Phase == registry.ReplicaReady {
				ready++
			}
		}
		h[m] = slo.Headroom{Model: m, NeedReplicas: n, NeedNow: n, ReadyReplicas: ready, HorizonMs: 2_000, ArrivalRps: float64(n)}
	}
	return h
}

// stoppedAt holds that all ranks of one stop stop at one step.
func (c *chaos) stoppedAt(h *chaosHolder, step int64) {
	j := c.st.Jobs[h.spec.Owner]
	if j == nil || j.Stop == nil || j.Generation != h.spec.Generation {
		return
	}
	if have, ok := c.stops[j.Stop.ID]; ok && have != step {
		c.fatalf("stop %s: ranks stopped at %d and %d", j.Stop.ID, have, step)
	}
	c.stops[j.Stop.ID] = step
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// faults draws one fault now and then.
func (c *chaos) faults() {
	if c.nowMs-1_000_000 > chaosFaultsMs {
		return
	}
	a := c.agents[fmt.Sprintf("n%d", c.rng.IntN(len(c.agents)))]
	ids := sortedKeys(a.holders)
	switch k := c.rng.IntN(10); {
	case k < 3:
		for _, m := range []string{"chat", "code"} {
			c.demand[m] = c.rng.IntN(5)
		}
		c.note("demand %v", c.demand)
	case k == 3 && a.up:
		c.note("stream of %s breaks", a.node.ID)
		a.disconnect(int64(c.rng.IntN(4_000)))
	case k == 4 && len(ids) > 0:
		h := a.holders[ids[c.rng.IntN(len(ids))]]
		if h.status.State != nodes.StatePrepared {
			c.note("%s crashes", h.spec.ID)
			h.exit(137, "killed")
		}
	case k == 5 && len(ids) > 0:
		h := a.holders[ids[c.rng.IntN(len(ids))]]
		if h.spec.Kind == nodes.KindRank {
			c.note("%s falls silent", h.spec.ID)
			h.silent = true
		}
	case k == 6 && c.rng.IntN(4) == 0 && !a.lost:
		c.note("node %s is lost", a.node.ID)
		a.lost, a.up = true, false
		if s := c.fleet.Nodes[a.node.ID]; s != nil {
			s.Connected = false
		}
		c.after(int64(8_000+c.rng.IntN(20_000)), func() { a.lost = false; a.connect() })
	case k == 7 && !c.down:
		c.restartController()
	}
	c.after(int64(200+c.rng.IntN(2_500)), c.faults)
}

// restartController loses everything that is derived; facts come back from a snapshot.
func (c *chaos) restartController() {
	c.note("controller restarts")
	data, err := c.st.Snapshot()
	if err != nil {
		c.fatalf("snapshot: %v", err)
	}
	c.down = true
	for _, a := range c.agents {
		a.up = false
		c.after(int64(c.rng.IntN(3_000)), a.connect)
	}
	c.after(int64(c.rng.IntN(2_000)), func() {
		if c.st, err = registry.Restore(data); err != nil {
			c.fatalf("restore: %v", err)
		}
		c.restarts++
		c.down, c.term, c.leaderMs = false, c.term+1, c.nowMs
		c.fleet, c.planner, c.sentMs = nodes.NewFleet(), NewPlanner(Default()), map[string]int64{}
	})
}

func (c *chaos) setUp() {
	for i := range 2 {
		id := fmt.Sprintf("n%d", i)
		n := nodes.Node{ID: id, Host: "127.0.0.1"}
		for g := range 4 {
			n.GPUs = append(n.GPUs, nodes.GPU{UUID: fmt.Sprintf("%s-%d", id, g), Index: g, MemoryBytes: 160 * chaosGiB})
		}
		c.agents[id] = &chaosAgent{c: c, node: n, holders: map[string]*chaosHolder{}, answers: map[string]nodes.Answer{}}
		c.agents[id].connect()
	}
	for _, m := range []string{"chat", "code"} {
		spec := registry.ModelSpec{Name: m, Tenant: "default", Command: []string{"e", "{{port}}"}, GPUsPerReplica: 1, ActiveBytes: 100 * chaosGiB, ResidentBytes: 2 * chaosGiB,
			Sleep: nodes.SleepVLLM, MinReplicas: 1, MaxReplicas: 5}
		spec.Default()
		c.apply(registry.Command{PutModel: &spec})
	}
	for _, j := range []registry.JobSpec{
		{Name: "elastic", MinWorld: 2, MaxWorld: 8, WorldMultiple: 2, ResidentBytes: 20 * chaosGiB},
		{Name: "fixed", MinWorld: 2, MaxWorld: 2, ResidentBytes: 20 * chaosGiB},
		{Name: "signal", MinWorld: 1, MaxWorld: 1, Protocol: "none", GraceMs: 2_000},
	} {
		j.Tenant, j.Command, j.ActiveBytes, j.MaxRestarts = "default", []string{"t"}, 30*chaosGiB, 1_000
		j.Default()
		j.StartTimeoutMs = 15_000
		c.apply(registry.Command{SubmitJob: &j})
	}
	c.after(0, c.faults)
}

func (c *chaos) run() {
	c.setUp()
	next := c.nowMs
	settled := int64(0)
	for c.nowMs < 1_000_000+chaosEndMs {
		for len(c.queue) > 0 && c.queue[0].atMs <= next {
			e := heap.Pop(&c.queue).(chaosEvent)
			c.nowMs = max(c.nowMs, e.atMs)
			e.do()
		}
		c.nowMs = next
		c.round()
		next += 50
		if c.nowMs-1_000_000 > chaosFaultsMs+20_000 {
			if c.settled() {
				if settled++; settled > 100 {
					return
				}
			} else {
				settled = 0
			}
			if c.nowMs-1_000_000 > chaosFaultsMs+chaosStuckMs {
				c.fatalf("not at rest: %s", c.unsettled())
			}
		}
	}
}

func (c *chaos) settled() bool { return c.unsettled() == "" }

// unsettled says what is still on its way, or missing: with demand standing
// still, replicas come to be as needed and each job runs or waits for a GPU.
func (c *chaos) unsettled() string {
	for _, id := range sortedKeys(c.st.Replicas) {
		switch r := c.st.Replicas[id]; r.Phase {
		case registry.ReplicaReady, registry.ReplicaAsleep:
		default:
			return fmt.Sprintf("replica %s is %s (%s)", id, r.Phase, r.Reason)
		}
	}
	for _, name := range sortedKeys(c.st.Jobs) {
		switch j := c.st.Jobs[name]; j.Phase {
		case registry.JobRunning, registry.JobPaused, registry.JobYielded, registry.JobPending:
		case registry.JobFailed, registry.JobSucceeded, registry.JobCancelled:
			return fmt.Sprintf("job %s ended: %s (%s)", name, j.Phase, j.Reason)
		default:
			return fmt.Sprintf("job %s is %s (%s)", name, j.Phase, j.Reason)
		}
	}
	for m, n := range c.demand {
		ready := 0
		for _, r := range c.st.Replicas {
			if r.Model == m && r.Phase == registry.ReplicaReady {
				ready++
			}
		}
		if ready < max(1, n) {
			return fmt.Sprintf("model %s has %d replicas, needs %d", m, ready, n)
		}
	}
	return ""
}

// TestNoGangHangsUnderFaults is the controller under thousands of seeds; a
// short run takes some hundred.
func TestNoGangHangsUnderFaults(t *testing.T) {
	if s := os.Getenv("SLUICE_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		c := newChaos(t, seed)
		c.run()
		t.Logf("%d stops, %d controller restarts, %d commands", len(c.stops), c.restarts, c.st.Version)
		return
	}
	seeds := 150
	if n, err := strconv.Atoi(os.Getenv("SLUICE_SEEDS")); err == nil {
		seeds = n
	} else if testing.Short() {
		seeds = 30
	}
	stops, restarts, commands := 0, 0, int64(0)
	for seed := range seeds {
		c := newChaos(t, uint64(seed))
		c.run()
		stops, restarts, commands = stops+len(c.stops), restarts+c.restarts, commands+c.st.Version
	}
	t.Logf("%d seeds: %d agreed stops, %d controller restarts, %d commands", seeds, stops, restarts, commands)
}
