//go:build cgo && linux

package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice/nodes/agent/cgroup"
)

// fakeNVML compiles the fake library of package nvml and points it at a state
// file, which write replaces.
func fakeNVML(t *testing.T) (lib string, write func(lines ...string)) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("needs gcc to compile the fake NVML library")
	}
	dir := t.TempDir()
	lib = filepath.Join(dir, "libnvidia-ml.so.1")
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", lib, "../nvml/testdata/fake_nvml.c").CombinedOutput()
	if err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	state := filepath.Join(dir, "state")
	t.Setenv("FAKE_NVML_STATE", state)
	return lib, func(lines ...string) {
		t.Helper()
		if err := os.WriteFile(state+".new", []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(state+".new", state); err != nil {
			t.Fatal(err)
		}
	}
}

// Real readings: inventory, a process that nobody placed, a loss, a fault, MIG.
func TestNVMLDevices(t *testing.T) {
	lib, write := fakeNVML(t)
	total, used := int64(80*gib), int64(2*gib)
	gpu := func(i int) string { return fmt.Sprintf("gpu %d GPU-%d %d %d 0", i, i, total, used) }
	mig := fmt.Sprintf("mig 2 0 MIG-a %d %d", 10*int64(gib), int64(gib))
	here := fmt.Sprintf("proc 0 %d %d", os.Getpid(), int64(gib))
	write(gpu(0), gpu(1), gpu(2), mig, here)
	d, err := OpenNVMLDevices(lib)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	gpus, err := d.GPUs()
	if err != nil || len(gpus) != 3 {
		t.Fatalf("%+v %v", gpus, err)
	}
	if gpus[0].UUID != "GPU-0" || gpus[0].MemoryBytes != total || gpus[2].UUID != "MIG-a" || gpus[2].MemoryBytes != 10*gib {
		t.Errorf("%+v", gpus)
	}
	if env := d.Env([]string{"GPU-1", "GPU-0"}); env["CUDA_VISIBLE_DEVICES"] != "GPU-1,GPU-0" {
		t.Errorf("%v", env)
	}
	o := &owner{cfg: Config{Devices: d}, tree: cgroup.Marks("nvml-test")}
	obs := o.observe(nil)
	if obs.devErr != nil {
		t.Fatal(obs.devErr)
	}
	want := fmt.Sprintf("pid %d (", os.Getpid())
	if f := foreign(*obs.device("GPU-0"), nil); len(f) != 1 || !strings.HasPrefix(f[0], want) {
		t.Errorf("foreign %q, want %s", f, want)
	}
	memory := map[string]int64{"GPU-0": total, "GPU-1": total}
	me := claim{id: "a", use: useActive, activeBytes: 70 * gib}
	for uuid, word := range map[string]string{"GPU-0": "nobody placed", "GPU-1": ""} {
		me.gpus = []string{uuid}
		if why := judgeFree(me, obs, nil, memory, true); (why == "") != (word == "") || !strings.Contains(why, word) {
			t.Errorf("%s: %q", uuid, why)
		}
	}
	write(gpu(0), gpu(1), gpu(2), mig, "lost 0", "xid 1 1 48")
	eventually(t, "the fault is seen", func() bool {
		obs = o.observe(nil)
		return obs.devErr == nil && obs.device("GPU-1").XID == 48
	})
	if bad := badReason(*obs.device("GPU-1")); !strings.Contains(bad, "XID 48") {
		t.Errorf("GPU-1: %q", bad)
	}
	if r := obs.device("GPU-0"); r == nil || !r.Lost || badReason(*r) == "" {
		t.Errorf("GPU-0: %+v", r)
	}
	if r := obs.device("MIG-a"); r == nil || badReason(*r) != "" {
		t.Errorf("MIG-a: %+v", r)
	}
}
