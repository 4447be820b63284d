package proc

import (
	"os"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	Enter()
	os.Exit(m.Run())
}

// anyCore is a core that this process may use.
func anyCore(t *testing.T) int {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for core := range 1024 {
		if set.IsSet(core) {
			return core
		}
	}
	t.Fatal("no core below 1024")
	return 0
}

func TestStartPinsAndStopEnds(t *testing.T) {
	runtime.LockOSThread() // its end would be the program's
	core := anyCore(t)
	p, err := Start(Command{Name: "sleep", Args: []string{"600"}, Core: core, Log: t.TempDir() + "/log"})
	if err != nil {
		t.Fatal(err)
	}
	if pids := p.PIDs(); !slices.Equal(pids, []int{p.PID()}) {
		t.Errorf("processes %v, want %d", pids, p.PID())
	}
	if _, err := p.CPU(); err != nil {
		t.Error(err)
	}
	if rss, err := p.RSS(); err != nil || rss <= 0 {
		t.Errorf("%d bytes, %v", rss, err)
	}
	p.Stop()
	if _, err := p.CPU(); err == nil || p.Ended() == nil {
		t.Error("a program that was stopped counts as running")
	}
	if pids := p.PIDs(); len(pids) > 0 {
		t.Errorf("%v are left", pids)
	}
}

func TestStartNamesWhatIsMissing(t *testing.T) {
	if _, err := Start(Command{Name: "no-such-program-here", Log: t.TempDir() + "/log"}); err == nil {
		t.Error("started")
	}
}
