package replog

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
)

// child is the process that is killed: eight callers commit commands, and each
// acknowledged one is printed.
func child(dir string) {
	round := os.Getenv("REPLOG_TEST_ROUND")
	m := newTally()
	l, err := Open(Config{Dir: dir, ID: "s1", SnapshotThreshold: 64, Logger: quiet()}, m)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	var out sync.Mutex
	for caller := range 8 {
		go func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%s/%d/%d", round, caller, i)
				if _, err := l.Apply(context.Background(), []byte(id)); err != nil {
					fmt.Println("error", err)
					os.Exit(1)
				}
				out.Lock()
				os.Stdout.WriteString("ok " + id + "\n")
				out.Unlock()
			}
		}()
	}
	for { // snapshots too are cut at any point
		if err := l.Snapshot(); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
}

func TestKilledAtAnyPointLosesNothingAcknowledged(t *testing.T) {
	dir := t.TempDir()
	acked := map[string]bool{}
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), "REPLOG_TEST_CHILD="+dir, fmt.Sprintf("REPLOG_TEST_ROUND=%d", round))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		killAfter := 20 + rand.IntN(400)
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			var id string
			if _, err := fmt.Sscanf(lines.Text(), "ok %s", &id); err != nil {
				t.Errorf("the child said %q", lines.Text())
				break
			}
			acked[id] = true
			if n == killAfter {
				cmd.Process.Kill()
			}
		}
		cmd.Wait()

		m := newTally()
		l := open(t, Config{Dir: dir, ID: "s1"}, m)
		for id := range acked {
			if m.count(id) != 1 {
				t.Fatalf("round %d: acknowledged %s is there %d times", round, id, m.count(id))
			}
		}
		l.Close()
	}
	t.Logf("%d acknowledged commands over %d kills", len(acked), rounds)
}
