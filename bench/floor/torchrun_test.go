package floor

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"sluice/nodes"
	"sluice/nodes/registry"
)

// debianPython is the interpreter of the package python3-torch, whose torchrun
// lies beside it.
const debianPython = "/usr/bin/python3"

// A PyTorch job under torchrun, two ranks on one node and one on another, is
// paused, resumed and loses a worker: the orders cost no step, and a node's
// ranks are one holder.
func TestTorchrunLosesNothing(t *testing.T) {
	if err := exec.Command(debianPython, "-c", "import torch").Run(); err != nil || exec.Command("/usr/bin/torchrun", "--help").Run() != nil {
		t.Skip("PyTorch is missing: apt-get install python3-torch")
	}
	s := newSite(t)
	work := filepath.Join(s.dir, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"../../examples/train_torch.py", "../../nodes/rank/sluice.py"} {
		raw, err := os.ReadFile(f)
		if err == nil {
			err = os.WriteFile(filepath.Join(work, filepath.Base(f)), raw, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.serveAt(1) // Python takes its time; at a higher speed each restart looks dear
	s.agent("n1", 2)
	s.agent("n2", 1)
	s.must("POST", "/v1/jobs", registry.JobSpec{Name: "tune", MinWorld: 3, MaxWorld: 3, Launcher: nodes.LaunchTorchrun, Workdir: work,
		MaxRestarts: 50, StartTimeoutMs: settleLimit.Milliseconds(), Command: []string{debianPython, "train_torch.py"},
		Env: map[string]string{"STEPS": "1000000", "SAVE_EVERY": "50", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}}, nil)

	j := s.running(3, 60)
	want := []string{"tune.g" + strconv.FormatInt(j.Generation, 10) + ".r0", "tune.g" + strconv.FormatInt(j.Generation, 10) + ".r2"}
	if got := slices.Sorted(maps.Keys(s.allHolders())); !slices.Equal(got, want) {
		t.Errorf("holders %v, want %v", got, want)
	}
	s.must("POST", "/v1/jobs/tune/pause", nil, nil)
	j = s.paused()
	if e := j.Ledger[0]; j.LostSteps != 0 || e.LastStep != e.SavedStep || e.World != 3 {
		t.Errorf("a pause lost steps: %+v", e)
	}
	s.sound("paused")
	s.must("POST", "/v1/jobs/tune/resume", nil, nil)
	j = s.running(3, j.saved()+10)

	_, p := s.rank(0) // torchrun itself; its workers are orphans then, and end with its cgroup
	s.kill9(p.child)
	s.restarted(j.Generation)
	s.must("POST", "/v1/jobs/tune/pause", nil, nil)
	j = s.paused()
	for i := 1; i < len(j.Ledger); i++ {
		if j.Ledger[i].FirstStep != j.Ledger[i-1].SavedStep+1 {
			t.Errorf("generation %d goes on from step %d, saved was %d", j.Ledger[i].Generation, j.Ledger[i].FirstStep, j.Ledger[i-1].SavedStep)
		}
	}
	if j.Restarts != 1 {
		t.Errorf("%d restarts, one torchrun was killed", j.Restarts)
	}
	s.sound("at the end")
}
