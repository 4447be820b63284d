package fill

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"sluice/nodes"
	"sluice/nodes/registry"
)

// drawn is a random world, and the same with other names for its nodes.
type drawn struct {
	nodes, gpus, island int
	models              []registry.ModelSpec
	jobs                []registry.JobSpec
	limit, guarantee    int
}

func draw(t *rapid.T) drawn {
	d := drawn{nodes: rapid.IntRange(1, 4).Draw(t, "nodes"), gpus: rapid.SampledFrom([]int{2, 4, 8}).Draw(t, "gpus"),
		limit: rapid.IntRange(0, 6).Draw(t, "limit"), guarantee: rapid.IntRange(0, 4).Draw(t, "guarantee")}
	d.island = rapid.SampledFrom([]int{2, d.gpus}).Draw(t, "island")
	for i := range rapid.IntRange(1, 3).Draw(t, "models") {
		m := registry.ModelSpec{Name: fmt.Sprintf("m%d", i), GPUsPerReplica: rapid.SampledFrom([]int{1, 1, 2, 4}).Draw(t, "size")}
		if rapid.Bool().Draw(t, "sleeps") {
			m.Sleep, m.ActiveBytes, m.ResidentBytes = nodes.SleepVLLM, 40*giB, 4*giB
		}
		d.models = append(d.models, m)
	}
	for i := range rapid.IntRange(1, 6).Draw(t, "jobs") {
		j := registry.JobSpec{Name: fmt.Sprintf("j%d", i), MinWorld: rapid.IntRange(1, 6).Draw(t, "min"), Protocol: "v1",
			WorldMultiple: rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "multiple"), Tenant: rapid.SampledFrom([]string{"default", "red"}).Draw(t, "tenant"),
			Priority: rapid.IntRange(0, 2).Draw(t, "priority"), GPUsPerRank: rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "rank")}
		j.MaxWorld = j.MinWorld + rapid.IntRange(0, 6).Draw(t, "more")
		if rapid.Bool().Draw(t, "declares") {
			j.ActiveBytes, j.ResidentBytes = 30*giB, 30*giB
		}
		if rapid.IntRange(0, 4).Draw(t, "protocol") == 0 {
			j.Protocol = "none"
		}
		d.jobs = append(d.jobs, j)
	}
	return d
}

func (d *drawn) build(t testing.TB, name func(i int) string) *world {
	w := newWorld(t)
	for i := range d.nodes {
		n := nodes.Node{ID: name(i), Rack: "r", Block: "b"}
		for g := range d.gpus {
			n.GPUs = append(n.GPUs, nodes.GPU{UUID: fmt.Sprintf("%s-g%d", n.ID, g), MemoryBytes: 80 * giB, Island: g / d.island})
		}
		w.apply(registry.Command{NodeSeen: &n})
	}
	w.apply(registry.Command{PutTenant: &registry.TenantSpec{Name: "red", LimitGPUs: d.limit, GuaranteeGPUs: d.guarantee, Weight: 2}})
	for _, m := range d.models {
		w.addModel(m)
	}
	for _, j := range d.jobs {
		w.addJob(j)
	}
	return w
}

// rapidTB gives a rapid.T where a testing.TB is asked for.
type rapidTB struct {
	testing.TB
	t *rapid.T
}

func (r rapidTB) Helper()                           {}
func (r rapidTB) Fatalf(format string, args ...any) { r.t.Fatalf(format, args...) }
func (r rapidTB) Fatal(args ...any)                 { r.t.Fatal(args...) }

// TestFloorHolds plays random needs on random worlds and checks, at each plan,
// what must always hold.
func TestFloorHolds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := draw(rt)
		w := d.build(rapidTB{t, rt}, func(i int) string { return fmt.Sprintf("n%d", i) })
		for range rapid.IntRange(3, 12).Draw(rt, "rounds") {
			for _, m := range d.models {
				w.need(m.Name, rapid.IntRange(0, 5).Draw(rt, "need"))
			}
			if rapid.IntRange(0, 6).Draw(rt, "mark") == 0 {
				id := fmt.Sprintf("n%d", rapid.IntRange(0, d.nodes-1).Draw(rt, "node"))
				w.apply(registry.Command{NodeMark: &registry.NodeMark{Node: id, Draining: rapid.Bool().Draw(rt, "drain")}})
			}
			w.nowMs += rapid.Int64Range(100, 100_000).Draw(rt, "gap")
			w.step()
			w.checkPlan(&d)
			if rapid.Bool().Draw(rt, "agents act") {
				w.settle()
				w.check()
			}
		}
	})
}

// checkPlan asserts that evictions have a taker, that victims are needed, and
// that limits hold.
func (w *world) checkPlan(d *drawn) {
	w.t.Helper()
	for _, c := range w.plan.Commands {
		if c.Reclaim != nil {
			w.checkReclaim(c.Reclaim)
		}
		if c.JobPlace != nil && !w.st.Jobs[c.JobPlace.Job].Spec.World(len(c.JobPlace.Ranks)) {
			w.t.Fatalf("illegal world: %s", w.plan.words())
		}
	}
	held := 0
	placed := false
	for _, j := range w.st.Jobs {
		if j.Spec.Tenant == "red" {
			held += len(j.Ranks) * max(1, j.Spec.GPUsPerRank)
		}
	}
	for _, c := range w.plan.Commands {
		placed = placed || c.JobPlace != nil && w.st.Jobs[c.JobPlace.Job].Spec.Tenant == "red"
	}
	if placed && d.limit > 0 && held > d.limit {
		w.t.Fatalf("red holds %d of %d after a placement:\n%s", held, d.limit, w.plan.words())
	}
	seen := map[string]bool{}
	for _, x := range w.plan.Waiting {
		if x.Text == "" || x.Cause == "" {
			w.t.Fatalf("unexplained: %+v", x)
		}
		seen[x.Object] = true
	}
	for name, j := range w.st.Jobs {
		if !j.Phase.Ended() && (j.Phase == registry.JobPending || j.Phase == registry.JobPaused) && !seen[name] {
			w.t.Fatalf("%s (%s) waits without a cause\n%s", name, j.Phase, w.plan.words())
		}
	}
}

func (w *world) checkReclaim(r *registry.Reclaim) {
	w.t.Helper()
	taken := map[string]bool{}
	for _, t := range r.Takes {
		for _, g := range t.GPUs {
			if taken[g] {
				w.t.Fatalf("%s is taken twice", g)
			}
			taken[g] = true
		}
	}
	for _, v := range r.Victims {
		if v.Replica != "" {
			continue
		}
		used := 0
		for _, rk := range w.st.Jobs[v.Job].Ranks {
			for _, g := range rk.GPUs {
				if taken[g] {
					used++
				}
			}
		}
		if used == 0 {
			w.t.Fatalf("%s is stopped in vain: %s", v.Job, w.plan.words())
		}
	}
}

// TestRenamingChangesNoCount: the names of nodes decide nothing but ties.
func TestRenamingChangesNoCount(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := draw(rt)
		a := d.build(rapidTB{t, rt}, func(i int) string { return fmt.Sprintf("n%d", i) })
		b := d.build(rapidTB{t, rt}, func(i int) string { return fmt.Sprintf("x%d", 9-i) })
		for range 4 {
			for _, m := range d.models {
				n := rapid.IntRange(0, 4).Draw(rt, "need")
				a.need(m.Name, n)
				b.need(m.Name, n)
			}
			a.run(3000, 1000)
			b.run(3000, 1000)
			if x, y := a.counts(), b.counts(); !maps.Equal(x, y) {
				rt.Fatalf("%v\n%v\n%s\n%s", x, y, a.holders(), b.holders())
			}
		}
	})
}

func (w *world) counts() map[string]int {
	c := map[string]int{}
	for _, r := range w.st.Replicas {
		if coming(r.Phase) {
			c[r.Model]++
		}
	}
	for name, j := range w.st.Jobs {
		c[name+" "+string(j.Phase)] = len(j.Ranks)
	}
	return c
}

// TestMoreHeadroomNeverFewerFillGPUs: when inference needs less, training holds
// no less. (Elastic gangs of single GPUs: whole gangs may fit worse by chance.)
func TestMoreHeadroomNeverFewerFillGPUs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		gpus, jobs := rapid.IntRange(2, 8).Draw(rt, "gpus"), rapid.IntRange(1, 4).Draw(rt, "jobs")
		play := func(need int) int {
			w := newWorld(rapidTB{t, rt})
			w.addNodes(2, gpus, gpus, 80, 2)
			w.addModel(registry.ModelSpec{Name: "chat"})
			for i := range jobs {
				w.addJob(registry.JobSpec{Name: fmt.Sprintf("j%d", i), MinWorld: 1, MaxWorld: 16, Protocol: "v1"})
			}
			w.need("chat", need)
			w.run(400_000, 8000)
			held := 0
			for _, j := range w.st.Jobs {
				held += len(j.Ranks)
			}
			return held
		}
		less := rapid.IntRange(0, gpus).Draw(rt, "less")
		more := less + rapid.IntRange(1, gpus).Draw(rt, "more")
		if x, y := play(less), play(more); x < y {
			rt.Fatalf("training holds %d GPUs when %d serve and %d when %d serve", x, less, y, more)
		}
	})
}

// TestVictimsAgainstBruteForce compares the chosen placements with the best of
// all, on worlds small enough to try everything.
func TestVictimsAgainstBruteForce(t *testing.T) {
	worlds, same, sum, worst := 0, 0, 0.0, 1.0
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.SampledFrom([]int{1, 1, 2}).Draw(rt, "size")
		w := newWorld(rapidTB{t, rt})
		w.addNodes(2, 4, 4, 80, 2)
		w.addModel(registry.ModelSpec{Name: "chat", GPUsPerReplica: size, ActiveBytes: 40 * giB})
		for i := range rapid.IntRange(2, 6).Draw(rt, "jobs") {
			j := registry.JobSpec{Name: fmt.Sprintf("j%d", i), MinWorld: rapid.IntRange(1, 3).Draw(rt, "min"), Protocol: "v1"}
			j.MaxWorld = j.MinWorld + rapid.IntRange(0, 2).Draw(rt, "more")
			if rapid.Bool().Draw(rt, "yields") {
				j.ActiveBytes, j.ResidentBytes = 30*giB, 30*giB
			}
			w.addJob(j)
		}
		w.run(2000, 1000)
		w.need("chat", rapid.IntRange(1, 3).Draw(rt, "need"))
		c := w.chooserFor("chat")
		c.fill(c.n.missing)
		c.improve()
		got, count := c.total(), len(c.takes)
		for len(c.takes) > 0 {
			c.undo(len(c.takes) - 1)
		}
		best, ok := c.brute(count, 0)
		if count > 0 && !ok {
			rt.Fatalf("brute force places none of %d", count)
		}
		if count == 0 {
			return
		}
		worlds++
		if got.tier != best.tier || got.priority != best.priority || got.late != best.late {
			rt.Fatalf("got %+v, best %+v", got, best)
		}
		ratio := got.cost / best.cost
		sum += ratio
		worst = max(worst, ratio)
		if ratio < 1.000001 {
			same++
		}
		if ratio > 1.5 {
			rt.Fatalf("price %.0f, best %.0f\n%s", got.cost, best.cost, w.holders())
		}
	})
	t.Logf("%d worlds: optimal in %d, mean ratio %.4f, worst %.3f", worlds, same, sum/float64(max(1, worlds)), worst)
}

func (w *world) chooserFor(model string) *chooser {
	ps := &pass{Planner: w.p, f: &w.p.floor, view: &View{State: w.st, Headroom: w.headroom}, st: w.st, nowMs: w.nowMs, moved: map[string]bool{}}
	w.p.floor.build(ps.view)
	w.p.learn(ps.view, w.nowMs)
	ps.rankPriorities()
	ps.wanted()
	at := slices.IndexFunc(ps.needs, func(n *need) bool { return n.name == model })
	return ps.newChooser(ps.needs[at])
}

// brute tries every way to place left more replicas, in order of their lowest GPU.
func (c *chooser) brute(left int, from int32) (best key, found bool) {
	if left == 0 {
		return c.total(), true
	}
	f := c.ps.f
	usable := func(i int32) bool {
		g := &f.gpus[i]
		return !g.claimed && (g.free() || g.job >= 0 && c.mayTake(g.job)) && c.fits(g)
	}
	try := func(gpus []int32) {
		free := 0
		for i := f.islands[f.gpus[gpus[0]].island].lo; i < f.islands[f.gpus[gpus[0]].island].hi; i++ {
			if f.gpus[i].free() {
				free++
			}
		}
		c.jobs = c.jobs[:0]
		for _, i := range gpus {
			if f.gpus[i].job >= 0 {
				c.note(f.gpus[i].job)
			}
		}
		k := c.price(gpus, 0, c.startMs())
		c.choose(option{key: k, gpus: gpus, beginCost: float64(c.startMs()) * float64(len(gpus))})
		if k, ok := c.brute(left-1, gpus[0]+1); ok && (!found || k.compare(best) < 0) {
			best, found = k, true
		}
		c.undo(len(c.takes) - 1)
	}
	for i := from; i < int32(len(f.gpus)); i++ {
		if !usable(i) {
			continue
		}
		if c.n.size == 1 {
			try([]int32{i})
			continue
		}
		for k := i + 1; k < f.islands[f.gpus[i].island].hi; k++ {
			if usable(k) {
				try([]int32{i, k})
			}
		}
	}
	return best, found
}

// TestFloorComesToRest: with a steady need the plans end; nothing goes round in
// circles.
func TestFloorComesToRest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := draw(rt)
		w := d.build(rapidTB{t, rt}, func(i int) string { return fmt.Sprintf("n%d", i) })
		for range rapid.IntRange(1, 3).Draw(rt, "changes") {
			for _, m := range d.models {
				w.need(m.Name, rapid.IntRange(0, 5).Draw(rt, "need"))
			}
			w.run(20_000, 1000)
		}
		w.run(3_000_000, 40_000)
		for range 40 {
			w.nowMs += 30_000
			if p := w.step(); len(p.Commands) > 0 {
				rt.Fatalf("still planning after %d s:\n%s%s%s", w.nowMs/1000, p.words(), p.waitingWords(), w.holders())
			}
			w.settle()
		}
	})
}
