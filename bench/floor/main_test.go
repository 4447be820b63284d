package floor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"go.uber.org/goleak"
)

// program is the built binary; empty where it cannot be used.
var program string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if runtime.GOOS == "linux" {
		dir, err := os.MkdirTemp("", "sluice-floor-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "sluice")
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// build makes the program, once, when the first test needs it.
func build(t *testing.T) string {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("a floor of real processes takes a minute: not with -short")
	case program == "":
		t.Skip("a floor needs Linux: pids, cgroups and /proc")
	}
	if _, err := os.Stat(program); err == nil {
		return program
	}
	cmd := exec.Command("go", "build", "-o", program, "sluice/cmd/sluice")
	cmd.Env = append(os.Environ(), "CGO_CFLAGS=-Wno-deprecated-declarations")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	return program
}
