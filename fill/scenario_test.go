package fill

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/datadriven"

	"sluice/nodes"
	"sluice/nodes/registry"
)

// TestScenarios plays the worlds of testdata/scenarios. Commands:
//
//	nodes count= gpus= island= memory=     tenant name= guarantee= limit= weight=
//	model name= gpus= active= resident= sleep min= max=
//	job name= tenant= min= max= multiple= rank= active= resident= priority= signal
//	need model= n=       want job= to=       mark node= drain|cordon
//	fence gpu=           plan (without agents)     settle     run ms= step=
//	floor, waiting, actions (of the last plan)
//
// Memory is in GiB.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		w := newWorld(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.t = t
			return w.command(d)
		})
	})
}

func intArg(d *datadriven.TestData, name string, fallback int) int {
	v := fallback
	d.MaybeScanArgs(scanT{}, name, &v)
	return v
}

func textArg(d *datadriven.TestData, name string) string {
	v := ""
	d.MaybeScanArgs(scanT{}, name, &v)
	return v
}

// scanT fails scenarios with a wrong argument.
type scanT struct{ testing.TB }

func (scanT) Helper()                           {}
func (scanT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (w *world) command(d *datadriven.TestData) string {
	switch d.Cmd {
	case "nodes":
		w.addNodes(intArg(d, "count", 1), intArg(d, "gpus", 8), intArg(d, "island", 8), int64(intArg(d, "memory", 80)), intArg(d, "rack", 100))
	case "tenant":
		w.apply(registry.Command{PutTenant: &registry.TenantSpec{Name: textArg(d, "name"), GuaranteeGPUs: intArg(d, "guarantee", 0),
			LimitGPUs: intArg(d, "limit", 0), Weight: float64(intArg(d, "weight", 1))}})
	case "model":
		sleep := nodes.SleepNone
		if d.HasArg("sleep") {
			sleep = nodes.SleepVLLM
		}
		w.addModel(registry.ModelSpec{Name: textArg(d, "name"), GPUsPerReplica: intArg(d, "gpus", 1), Sleep: sleep,
			Command: []string{fmt.Sprint("v", intArg(d, "version", 1))}, ActiveBytes: int64(intArg(d, "active", 0)) * giB,
			ResidentBytes: int64(intArg(d, "resident", 0)) * giB, MinReplicas: intArg(d, "min", 0), MaxReplicas: intArg(d, "max", 0)})
	case "job":
		protocol := "v1"
		if d.HasArg("signal") {
			protocol = "none"
		}
		w.addJob(registry.JobSpec{Name: textArg(d, "name"), Tenant: textArg(d, "tenant"), MinWorld: intArg(d, "min", 1), MaxWorld: intArg(d, "max", 0),
			WorldMultiple: intArg(d, "multiple", 1), GPUsPerRank: intArg(d, "rank", 1), Protocol: protocol, Priority: intArg(d, "priority", 0),
			ActiveBytes: int64(intArg(d, "active", 0)) * giB, ResidentBytes: int64(intArg(d, "resident", 0)) * giB})
	case "need":
		w.need(textArg(d, "model"), intArg(d, "n", 0))
	case "want":
		w.apply(registry.Command{JobWant: &registry.JobWant{Job: textArg(d, "job"), Want: textArg(d, "to")}})
	case "mark":
		w.apply(registry.Command{NodeMark: &registry.NodeMark{Node: textArg(d, "node"), Draining: d.HasArg("drain"), Cordoned: d.HasArg("cordon")}})
	case "fence":
		w.apply(registry.Command{GPUMark: &registry.GPUMark{UUID: textArg(d, "gpu"), Reason: "bad"}})
	case "delete":
		w.apply(registry.Command{DeleteModel: &registry.ByName{Name: textArg(d, "model")}})
	case "pass":
		w.nowMs += int64(intArg(d, "ms", 0))
	default:
		return w.look(d)
	}
	return ""
}

func (w *world) look(d *datadriven.TestData) string {
	switch d.Cmd {
	case "plan":
		p := w.step()
		return p.words()
	case "settle":
		w.settle()
	case "run":
		w.run(int64(intArg(d, "ms", 1000)), int64(intArg(d, "step", 1000)))
	case "floor":
		return w.holders()
	case "waiting":
		return w.plan.waitingWords()
	case "actions":
		s := ""
		for _, a := range w.plan.Actions {
			s += fmt.Sprintf("%s %s %s %d GPUs, %d GPU-s: %s\n", a.Kind, a.Object, a.Rung, a.GPUs, a.PriceGPUMs/1000, a.Reason)
		}
		return s
	default:
		w.t.Fatalf("no such command: %s", d.Cmd)
	}
	return ""
}
