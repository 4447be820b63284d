package fill

import (
	"fmt"
	"testing"

	"sluice/nodes"
	"sluice/nodes/registry"
)

// bigWorld is 1,000 nodes of 8 GPUs with 500 gangs (400 of 16 GPUs run, 100 of
// 32 wait for more than is free) and 8 models with 100 replicas each.
func bigWorld(b testing.TB) *world {
	w := newWorld(b)
	w.addNodes(1000, 8, 8, 80, 20)
	for i := range 8 {
		w.addModel(registry.ModelSpec{Name: fmt.Sprintf("m%d", i), ActiveBytes: 40 * giB, ResidentBytes: 4 * giB, Sleep: nodes.SleepVLLM})
		w.need(fmt.Sprintf("m%d", i), 100)
	}
	for range 3 {
		w.step()
		w.settle()
	}
	for i := range 400 {
		w.addJob(registry.JobSpec{Name: fmt.Sprintf("run%03d", i), MinWorld: 8, MaxWorld: 18, WorldMultiple: 2, Protocol: "v1",
			ActiveBytes: 30 * giB, ResidentBytes: 30 * giB, Tenant: "default"})
	}
	w.step()
	w.settle()
	w.nowMs += 1000
	for i := range 100 {
		w.addJob(registry.JobSpec{Name: fmt.Sprintf("wait%03d", i), MinWorld: 32, MaxWorld: 32, Protocol: "v1"})
	}
	for range 3 {
		w.step()
		w.settle()
	}
	w.connect()
	return w
}

// connect gives every node an agent that speaks of its ranks.
func (w *world) connect() {
	w.fleet = nodes.NewFleet()
	for id, n := range w.st.Nodes {
		w.fleet.Frame(id, &nodes.Frame{Hello: &nodes.Hello{Node: n.Node}}, w.nowMs)
	}
	for name, j := range w.st.Jobs {
		for _, r := range j.Ranks {
			w.fleet.Frame(r.Node, &nodes.Frame{Rank: &nodes.RankNote{Kind: "hello", Job: name, Generation: j.Generation, Rank: r.Rank,
				Holder: registry.RankHolder(name, j.Generation, r.Rank)}}, w.nowMs)
		}
	}
}

func (w *world) again(b *testing.B) {
	v := View{State: w.st, Fleet: w.fleet, Headroom: w.headroom}
	b.ReportAllocs()
	for b.Loop() {
		w.plan = w.p.Plan(v, w.nowMs)
	}
	b.ReportMetric(float64(len(w.plan.Commands)), "commands")
	b.ReportMetric(float64(len(w.takes())), "takes")
	b.ReportMetric(float64(len(w.victims())), "victims")
}

func BenchmarkPlan1000x8(b *testing.B) {
	b.Run("steady", func(b *testing.B) {
		bigWorld(b).again(b)
	})
	b.Run("20of1", func(b *testing.B) {
		w := bigWorld(b)
		w.need("m0", 120)
		w.again(b)
	})
	b.Run("20of8", func(b *testing.B) {
		w := bigWorld(b)
		for i := range 8 {
			w.need(fmt.Sprintf("m%d", i), 102+i%2)
		}
		w.again(b)
	})
}

// BenchmarkPlanCold places 500 gangs on an empty fleet, the largest plan there is.
func BenchmarkPlanCold(b *testing.B) {
	w := newWorld(b)
	w.addNodes(1000, 8, 8, 80, 20)
	for i := range 500 {
		w.addJob(registry.JobSpec{Name: fmt.Sprintf("run%03d", i), MinWorld: 8, MaxWorld: 16, WorldMultiple: 2, Protocol: "v1"})
	}
	w.again(b)
}
