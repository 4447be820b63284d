package rules

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// gpuMachine is a machine with GPUs as far as `.ci/gpu-check` can tell: the
// library of nodes/nvml's tests, and a script in the place of nvidia-smi.
type gpuMachine struct {
	t   *testing.T
	dir string
}

// newGPUMachine builds the program and the library.
func newGPUMachine(t *testing.T) *gpuMachine {
	t.Helper()
	if testing.Short() {
		t.Skip("building the program is left out in short mode")
	}
	if raceEnabled {
		t.Skip("the script runs the program built without the race detector; once is enough")
	}
	for _, tool := range []string{"gcc", "python3", "bash"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing", tool)
		}
	}
	m := &gpuMachine{t, t.TempDir()}
	m.run("gcc", "-O1", "-shared", "-fPIC", "-o", filepath.Join(m.dir, "libnvidia-ml.so.1"), filepath.Join(rootDir, "nodes/nvml/testdata/fake_nvml.c"))
	m.run("go", "build", "-o", filepath.Join(m.dir, "sluice"), rootDir+"/cmd/sluice")
	return m
}

func (m *gpuMachine) run(name string, args ...string) {
	m.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// write puts a file into the machine.
func (m *gpuMachine) write(name, body string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, name), []byte(body), 0o700); err != nil {
		m.t.Fatal(err)
	}
}

// check runs the script and returns what it said, and its error.
func (m *gpuMachine) check() (string, error) {
	cmd := exec.Command("bash", filepath.Join(rootDir, ".ci/gpu-check"), filepath.Join(m.dir, "sluice"))
	cmd.Env = append(os.Environ(),
		"PATH="+m.dir+":"+os.Getenv("PATH"), "LD_LIBRARY_PATH="+m.dir, "FAKE_NVML_STATE="+filepath.Join(m.dir, "state"), "TMPDIR="+m.dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func TestGPUCheckComparesInventories(t *testing.T) {
	m := newGPUMachine(t)
	const gib = 1 << 30
	m.write("state", fmt.Sprintf("gpu 0 GPU-aaaa %d 0 0\ngpu 1 GPU-bbbb %d 0 0\n", 80*gib, 80*gib))
	m.write("nvidia-smi", "#!/bin/sh\necho 'GPU-aaaa, 81920, Test GPU'\necho 'GPU-bbbb, 81920, Test GPU'\n")
	if out, err := m.check(); err != nil || !strings.Contains(out, "gpu-check passed") {
		t.Errorf("two GPUs alike: %v\n%s", err, out)
	}
	m.write("nvidia-smi", "#!/bin/sh\necho 'GPU-aaaa, 81920, Test GPU'\necho 'GPU-bbbb, 40960, Test GPU'\n")
	if out, err := m.check(); err == nil || !strings.Contains(out, "DIFFERS") {
		t.Errorf("a GPU with other memory passed: %v\n%s", err, out)
	}
	m.write("nvidia-smi", "#!/bin/sh\necho 'GPU-aaaa, 81920, Test GPU'\n")
	if out, err := m.check(); err == nil || !strings.Contains(out, "nvidia-smi does not") {
		t.Errorf("a GPU too much passed: %v\n%s", err, out)
	}
	m.write("nvidia-smi", "#!/bin/sh\necho 'no devices were found'\nexit 6\n")
	if out, err := m.check(); err != nil || !strings.Contains(out, "skipped: nvidia-smi finds no GPU") {
		t.Errorf("no GPU: %v\n%s", err, out)
	}
	left, err := filepath.Glob(filepath.Join(m.dir, "tmp.*"))
	if err != nil || len(left) > 0 {
		t.Errorf("the check left %q behind (%v)", left, err)
	}
}
