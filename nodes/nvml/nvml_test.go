//go:build cgo && linux

package nvml

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const gib = int64(1) << 30

// gpus is the state of n healthy GPUs.
func gpus(n int) (lines []string) {
	for i := range n {
		lines = append(lines, fmt.Sprintf("gpu %d GPU-%d %d %d %d", i, i, 80*gib, int64(i)*gib, 10*i))
	}
	return lines
}

func with(lines []string, more ...string) []string { return append(slices.Clone(lines), more...) }

func uuids(inv Inventory, pick func(GPU) bool) string {
	var out []string
	for _, g := range inv.GPUs {
		if pick(g) {
			out = append(out, g.UUID)
		}
	}
	return strings.Join(out, " ")
}

func lost(g GPU) bool { return g.Lost }
func good(g GPU) bool { return !g.Lost && g.Err == "" && g.MemoryBytes != nil }

func show[T any](p *T) string {
	if p == nil {
		return "nil"
	}
	return fmt.Sprint(*p)
}

func TestReadsEverything(t *testing.T) {
	m := boot(t, build(t), with(gpus(2), "proc 1 4242 1024", "proc 1 4243 -1"))
	inv := m.read()
	if inv.Driver != "570.00.fake" || len(inv.Missing) != 0 || len(inv.GPUs) != 2 {
		t.Fatalf("%+v", inv)
	}
	g := inv.GPUs[1]
	got := fmt.Sprintf("%s %s %d %s %s %s %s %s %s %s %v", g.UUID, g.Name, g.Index, g.PCI, show(g.MemoryBytes),
		show(g.UsedBytes), show(g.ReservedBytes), show(g.UtilPercent), show(g.PowerMilliwatts), show(g.TemperatureC), g.Lost)
	if want := fmt.Sprintf("GPU-1 Fake GPU 1 00000000:02:00.0 %d %d 1000 10 300000 55 false", 80*gib, gib); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if len(g.Procs) != 2 || g.Procs[0].PID != 4242 || show(g.Procs[0].UsedBytes) != "1024" || g.Procs[1].UsedBytes != nil {
		t.Errorf("processes %+v", g.Procs)
	}
	if p := inv.GPUs[0].Procs; p == nil || len(p) != 0 {
		t.Errorf("no processes reads as %#v", p)
	}
}

func TestCase_ND_04_a_NoLibrary(t *testing.T) {
	for name, lib := range map[string]string{
		"named":      filepath.Join(t.TempDir(), "libnvidia-ml.so.1"),
		"the system": "",
	} {
		m := boot(t, lib, nil)
		if m.opened != "no library" && !(name == "the system" && m.opened == "") {
			t.Errorf("%s: %q", name, m.opened)
		}
	}
}

func TestCase_ND_04_b_OnlyFirstVersions(t *testing.T) {
	m := boot(t, build(t, "OLD"), with(gpus(1), "proc 0 7 100"))
	if m.opened != "" {
		t.Fatal(m.opened)
	}
	inv := m.read()
	g := inv.GPUs[0]
	if g.UUID != "GPU-0" || show(g.MemoryBytes) != fmt.Sprint(80*gib) || len(g.Procs) != 1 || g.Procs[0].PID != 7 || g.Err != "" {
		t.Errorf("%+v", g)
	}
	if g.UtilPercent != nil || g.PowerMilliwatts != nil || g.TemperatureC != nil || g.ReservedBytes != nil {
		t.Errorf("made up: %+v", g)
	}
	for _, want := range []string{"utilization", "power", "temperature", "MIG mode", "NVLink", "XID events", "shutdown"} {
		if !slices.Contains(inv.Missing, want) {
			t.Errorf("%q is not said to be missing: %v", want, inv.Missing)
		}
	}
	m.do("watch") // no events, no crash
	m.read()
}

func TestCase_ND_04_c_OnlyTheNumberedName(t *testing.T) {
	lib := build(t) // its folder holds libnvidia-ml.so.1 and nothing else
	m := boot(t, "", gpus(1), "LD_LIBRARY_PATH="+filepath.Dir(lib))
	if m.opened != "" || len(m.read().GPUs) != 1 {
		t.Fatalf("not found: %q", m.opened)
	}
}

func TestCase_ND_04_d_NoThirdVersionOfProcesses(t *testing.T) {
	m := boot(t, build(t, "NO_PROCS_V3", "NO_EVENTS"), with(gpus(1), "proc 0 7 100"))
	inv := m.read()
	if p := inv.GPUs[0].Procs; len(p) != 1 || p[0].PID != 7 {
		t.Errorf("processes %+v", p)
	}
	if !slices.Equal(inv.Missing, []string{"XID events"}) {
		t.Errorf("missing %v", inv.Missing)
	}
}

func TestLibraryWithoutInit(t *testing.T) {
	if m := boot(t, build(t, "NO_INIT"), gpus(1)); m.opened != "too old" {
		t.Errorf("%q", m.opened)
	}
}

func TestOpenErrors(t *testing.T) {
	lib := build(t)
	for want, state := range map[string][]string{
		"no driver":  nil,
		"permission": with(gpus(1), "init 4"),
		"init":       with(gpus(1), "init 999"),
	} {
		if m := boot(t, lib, state); m.opened != want {
			t.Errorf("%q instead of %q", m.opened, want)
		}
	}
}

func TestCase_ND_05(t *testing.T) {
	m := boot(t, build(t), with(gpus(4),
		"na 0 memory",
		"mig 1 0 MIG-a 10737418240 5", "mig 1 2 MIG-b 10737418240 6", "mig 1 3 MIG-c 21474836480 7",
		"na 2 power", "na 2 procs",
		"gpu 3 GPU-3 0 0 0",
	))
	inv := m.read()
	unified, mig, noPower, zero := inv.GPUs[0], inv.GPUs[1], inv.GPUs[2], inv.GPUs[3]
	system, ok := systemMemoryBytes()
	if !ok || !unified.Unified || show(unified.MemoryBytes) != fmt.Sprint(system) || unified.UsedBytes != nil {
		t.Errorf("unified memory: %s of %s, marked %v", show(unified.UsedBytes), show(unified.MemoryBytes), unified.Unified)
	}
	if !mig.MIG || mig.UtilPercent != nil || len(mig.Instances) != 3 {
		t.Fatalf("MIG: %+v", mig)
	}
	got := ""
	for _, in := range mig.Instances {
		got += fmt.Sprintf("%s %s %s %d, ", in.UUID, show(in.MemoryBytes), show(in.UsedBytes), in.GPUInstance)
	}
	if want := "MIG-a 10737418240 5 1, MIG-b 10737418240 6 3, MIG-c 21474836480 7 4, "; got != want {
		t.Errorf("instances %s", got)
	}
	if noPower.PowerMilliwatts != nil || noPower.Procs != nil || show(noPower.UtilPercent) != "20" || noPower.Err != "" {
		t.Errorf("power: %+v", noPower)
	}
	if zero.MemoryBytes != nil || zero.UsedBytes != nil || zero.Unified || show(zero.UtilPercent) != "0" {
		t.Errorf("total 0: %s of %s", show(zero.UsedBytes), show(zero.MemoryBytes))
	}
}

func TestCase_ND_06(t *testing.T) {
	lib := build(t)
	for name, after := range map[string][]string{
		"count 8":        {"lost 5"},
		"count 7":        {"lost 5", "hide 5"},
		"count 7, index": {"lost 5", "count 7"},
		"count fails":    {"lost 5", "counterr 999"},
	} {
		t.Run(name, func(t *testing.T) {
			m := boot(t, lib, gpus(8))
			if got := uuids(m.read(), good); strings.Count(got, "GPU-") != 8 {
				t.Fatal(got)
			}
			m.set(with(gpus(8), after...)...)
			check := func(when string) {
				t.Helper()
				inv := m.read()
				if uuids(inv, lost) != "GPU-5" || uuids(inv, good) != "GPU-0 GPU-1 GPU-2 GPU-3 GPU-4 GPU-6 GPU-7" {
					t.Fatalf("%s: lost %q, good %q", when, uuids(inv, lost), uuids(inv, good))
				}
				if (inv.CountErr != "") != (name == "count fails" && when == "lost") {
					t.Fatalf("%s: count error %q", when, inv.CountErr)
				}
			}
			check("lost")
			m.set(gpus(8)...)
			check("back on the bus: out for good") // until a word
			m.do("forget GPU-5")
			if inv := m.read(); uuids(inv, lost) != "" || strings.Count(uuids(inv, good), "GPU-") != 8 {
				t.Fatalf("after Forget: lost %q, good %q", uuids(inv, lost), uuids(inv, good))
			}
		})
	}
}

func TestCase_ND_06_AcrossARestart(t *testing.T) {
	lib := build(t)
	m := boot(t, lib, with(gpus(3), "lost 1"))
	inv := m.read()
	if len(inv.GPUs) != 3 || !inv.GPUs[1].Lost || inv.GPUs[1].UUID != "" || inv.GPUs[1].Island != -1 {
		t.Fatalf("without memory: %+v", inv.GPUs)
	}
	m = boot(t, lib, with(gpus(3), "lost 1"))
	m.do("remember GPU-0 GPU-1 GPU-2")
	if inv = m.read(); len(inv.GPUs) != 3 || uuids(inv, lost) != "GPU-1" || uuids(inv, good) != "GPU-0 GPU-2" {
		t.Fatalf("remembered: %+v", inv.GPUs)
	}
	m = boot(t, lib, with(gpus(3), "counterr 999"))
	m.do("remember GPU-0 GPU-1 GPU-2")
	if inv = m.read(); len(inv.GPUs) != 3 || uuids(inv, lost) != "" || uuids(inv, good) != "" || inv.CountErr == "" {
		t.Fatalf("nothing known of any: %+v", inv)
	}
	m.set(gpus(3)...)
	if inv = m.read(); uuids(inv, good) != "GPU-0 GPU-1 GPU-2" {
		t.Fatalf("listed again: %+v", inv.GPUs)
	}
}

func TestCase_ND_06_EventTellsTheLoss(t *testing.T) {
	m := boot(t, build(t), gpus(8))
	m.read()
	m.do("watch")
	m.set(with(gpus(8), "xid 1 2 13", "xid 2 5 79", "lost 5")...)
	first, second := m.do("event").Event, m.do("event").Event
	if first == nil || second == nil {
		t.Fatal("no event")
	}
	if *first != (XID{"GPU-2", 13}) || *second != (XID{"GPU-5", 79}) {
		t.Fatalf("%+v %+v", first, second)
	}
	m.set(gpus(8)...) // and even if it answered again
	inv := m.read()
	if uuids(inv, lost) != "GPU-5" || !strings.Contains(inv.GPUs[5].Err, "XID 79") {
		t.Fatalf("lost %q: %q", uuids(inv, lost), inv.GPUs[5].Err)
	}
}

func TestCase_ND_07(t *testing.T) {
	lib := build(t)
	running := boot(t, lib, gpus(2))
	if uuids(running.read(), good) != "GPU-0 GPU-1" {
		t.Fatal("not read")
	}
	running.set(with(gpus(2), "init 18")...) // upgraded underneath
	if uuids(running.read(), good) != "GPU-0 GPU-1" {
		t.Error("the running reader stopped")
	}
	if m := boot(t, lib, with(gpus(2), "init 18")); m.opened != "mismatch" {
		t.Errorf("a restarted one: %q", m.opened)
	}
	if !strings.Contains(ErrVersionMismatch.Error(), "reboot needed") {
		t.Error("the remedy is not named")
	}
}

func TestCase_ND_08(t *testing.T) {
	lib := build(t)
	before := boot(t, lib, []string{"gpu 0 GPU-small 100 0 0", "gpu 1 GPU-big 900 0 0"}).read()
	after := boot(t, lib, []string{"gpu 0 GPU-big 900 0 0", "gpu 1 GPU-small 100 0 0"}).read()
	memory := func(inv Inventory, uuid string) string {
		for _, g := range inv.GPUs {
			if g.UUID == uuid {
				return show(g.MemoryBytes)
			}
		}
		return "not there"
	}
	for uuid, want := range map[string]string{"GPU-small": "100", "GPU-big": "900"} {
		if a, b := memory(before, uuid), memory(after, uuid); a != want || b != want {
			t.Errorf("%s: %s before, %s after", uuid, a, b)
		}
	}
	if before.GPUs[0].UUID == after.GPUs[0].UUID {
		t.Error("the order did not change: the test is wrong")
	}
}

func TestIslandsOfAMachine(t *testing.T) {
	lib := build(t)
	for name, c := range map[string]struct {
		wires []string
		want  string
	}{
		"no wires":            {nil, "[0 1 2 3]"},
		"pairs":               {[]string{"link 0 0 2", "link 1 0 1", "link 2 0 4", "link 3 3 3"}, "[0 0 1 1]"},
		"chain":               {[]string{"link 0 0 2", "link 1 1 3", "link 2 5 4"}, "[0 0 0 0]"},
		"switch":              {[]string{"link 0 0 200", "link 1 0 200", "link 2 0 200", "link 3 0 200"}, "[0 0 0 0]"},
		"two switches":        {[]string{"link 0 0 200", "link 1 0 201", "link 2 0 200", "link 3 0 201"}, "[0 1 0 1]"},
		"PCIe switch":         {[]string{"topo 0 1 10", "topo 2 3 20", "topo 1 2 30"}, "[0 0 1 1]"},
		"NVLink before PCIe":  {[]string{"link 0 0 2", "link 1 0 1", "topo 1 2 10", "topo 2 3 10"}, "[0 0 1 1]"},
		"across host bridges": {[]string{"topo 0 1 30", "topo 1 2 40", "topo 2 3 50"}, "[0 1 2 3]"},
	} {
		m := boot(t, lib, with(gpus(4), c.wires...))
		numbers := func() string {
			var got []int
			for _, g := range m.read().GPUs {
				got = append(got, g.Island)
			}
			return fmt.Sprint(got)
		}
		if got := numbers(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		m.set(with(with(gpus(4), c.wires...), "lost 0")...)
		if got := numbers(); got != c.want {
			t.Errorf("%s, GPU 0 lost: %s, want %s", name, got, c.want)
		}
	}
}

func TestManyProcesses(t *testing.T) {
	state := gpus(1)
	for i := range 60 {
		state = append(state, fmt.Sprintf("proc 0 %d 1", 100+i))
	}
	if p := boot(t, build(t), state).read().GPUs[0].Procs; len(p) != 60 || p[59].PID != 159 {
		t.Errorf("%d processes", len(p))
	}
}
