package agent

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice/nodes"
)

func TestExcessLogs(t *testing.T) {
	rank := func(job string, gen, r int, ms int64) keptLog {
		return keptLog{path: fmt.Sprintf("/d/logs/rank/%s/%s.g%d.r%d.log", job, job, gen, r), bytes: 10, ms: ms}
	}
	replica := func(n int, ms int64) keptLog {
		return keptLog{path: fmt.Sprintf("/d/logs/replica/chat/chat-%d.log", n), bytes: 10, ms: ms}
	}
	names := func(files []string) (out []string) {
		for _, f := range files {
			out = append(out, filepath.Base(f))
		}
		slices.Sort(out)
		return out
	}
	older := rank("a", 4, 0, 90)
	older.path += ".1"
	big := rank("big", 1, 0, 200)
	big.bytes = maxKeptBytes
	for _, c := range []struct {
		name  string
		files []keptLog
		over  []string
	}{
		{"nothing", nil, nil},
		{"three generations, all their ranks, both halves", []keptLog{rank("a", 1, 0, 10), rank("a", 1, 1, 11), rank("a", 2, 0, 20), rank("a", 3, 0, 30), rank("a", 3, 1, 31), rank("a", 4, 0, 91), older},
			[]string{"a.g1.r0.log", "a.g1.r1.log"}},
		{"each owner has its own", []keptLog{rank("a", 1, 0, 1), rank("b", 1, 0, 2), replica(1, 3), replica(2, 4), replica(3, 5), replica(4, 6)}, []string{"chat-1.log"}},
		{"a model named like a rank", []keptLog{{path: "/d/logs/replica/x.g1/x.g1-1.log", ms: 4}, {path: "/d/logs/replica/x.g1/x.g1-2.log", ms: 3}, {path: "/d/logs/replica/x.g1/x.g1-3.log", ms: 2}, {path: "/d/logs/replica/x.g1/x.g1-4.log", ms: 1}},
			[]string{"x.g1-4.log"}},
		{"bytes: the newest stays whatever its size", []keptLog{big, rank("a", 1, 0, 10)}, []string{"a.g1.r0.log"}},
	} {
		if got := names(excess(c.files)); !slices.Equal(got, c.over) {
			t.Errorf("%s: %v, want %v", c.name, got, c.over)
		}
	}
	var many []keptLog
	for i := range maxKeptLogs + 7 {
		many = append(many, rank(fmt.Sprintf("j%d", i), 1, 0, int64(i)))
	}
	if got := excess(many); len(got) != 7 {
		t.Errorf("%d files over the limit of files", len(got))
	}
}

// The log of a holder that crashed is read after it was forgotten, and after a
// restart of the agent.
func TestLogOutlivesItsHolder(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	for gen := range int64(keptEnds + 1) {
		spec := s.job(fmt.Sprintf("job.g%d.r0", gen+1), nil, "chatty")
		spec.Owner, spec.Generation = "job", gen+1
		s.begin(nodes.OrderStart, spec)
		s.await(spec.ID, nodes.StateGone)
		s.do(nodes.OrderForget, spec)
	}
	read := func(id string) (int, string) {
		t.Helper()
		resp, err := http.Get("http://" + s.lastHello().Node.AgentAddr + "/v1/holders/" + id + "/log?tailBytes=100&follow=true")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(raw)
	}
	dir := filepath.Join(s.args.Data, "logs", "rank", "job")
	eventually(t, "the oldest generation's log is removed", func() bool {
		_, err := os.Stat(filepath.Join(dir, "job.g1.r0.log"))
		return os.IsNotExist(err)
	})
	for _, restarted := range []bool{false, true} {
		if restarted {
			s.stop()
			s.start()
		}
		for gen := 2; gen <= keptEnds+1; gen++ {
			if code, text := read(fmt.Sprintf("job.g%d.r0", gen)); code != http.StatusOK || len(text) != 100 || !strings.HasSuffix(text, "last line\n") {
				t.Errorf("generation %d, restarted %v: %d %q", gen, restarted, code, text)
			}
		}
		if code, _ := read("job.g1.r0"); code != http.StatusNotFound {
			t.Errorf("the oldest: %d", code)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
