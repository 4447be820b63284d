package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice/nodes"
)

func makeDirs(t *testing.T, root string, names ...string) {
	t.Helper()
	for _, n := range names {
		if err := os.MkdirAll(filepath.Join(root, n), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, n, "shard"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// tree lists all directories below root, two deep.
func tree(t *testing.T, root string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if depth := strings.Count(rel, string(filepath.Separator)); d.IsDir() && rel != "." && depth < 2 {
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

// What no manifest can name again goes; all else, and what is not ours, stays.
func TestPruneRemovesOnlyOldSteps(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	makeDirs(t, outside, "step-1")
	makeDirs(t, root, "g1/step-00000009", // an earlier job of the same name
		"g2/step-00000010", "g2/step-00000020", "g2/step-00000030", // 20 is kept, 30 is torn and of an older generation
		"g3/notes", "g3/step-x", "g3/step-00000005", "g4/step-1",
		"g5/step-00000040", "g5/step-00000040-rank-1", "g5/step-00000050", "g5/step-00000060/deep", // 50 is current, 60 being written
		"g6/step-00000070", "other/step-1")
	for link, to := range map[string]string{"g0": outside, "g3/step-00000006": filepath.Join(outside, "step-1"), "g7": outside} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	p := pruning{jobDir: root, from: 2, generation: 5, keep: []string{"g2/step-00000020", "g5/step-00000050"}}
	removed, err := p.run()
	if err != nil || removed != 7 {
		t.Errorf("removed %d, %v; want 7", removed, err)
	}
	want := []string{"g1", "g1/step-00000009", "g2", "g2/step-00000020", "g3", "g3/notes", "g3/step-x",
		"g5", "g5/step-00000050", "g5/step-00000060", "g6", "g6/step-00000070", "other", "other/step-1"}
	if got := tree(t, root); !slices.Equal(got, want) {
		t.Errorf("left\n%v\nwant\n%v", got, want)
	}
	if _, err := os.Stat(filepath.Join(outside, "step-1", "shard")); err != nil {
		t.Errorf("a link led outside: %v", err)
	}
	if removed, err := p.run(); removed != 0 || err != nil {
		t.Errorf("a second time: %d, %v", removed, err)
	}
}

// A job may write flat files, and choose its numbers: what decides is what the
// kept manifests' own paths say.
func TestPruneGoesByTheJobsOwnNumbers(t *testing.T) {
	for _, c := range []struct {
		keep []string
		gone []string
	}{
		{[]string{"g4/step-3", "g4/step-5"}, []string{"g3/step-9-rank-0.pt", "g4/step-4-rank-0.pt", "g4/step-4-rank-1.pt"}},
		{[]string{"g3/step-9"}, nil}, // nothing of this generation is complete
		{nil, []string{"g3/step-9-rank-0.pt"}},
	} {
		p := pruning{generation: 4, keep: c.keep}
		var gone []string
		for _, path := range []string{"g3/step-9-rank-0.pt", "g4/step-3-rank-0.pt", "g4/step-4-rank-0.pt", "g4/step-4-rank-1.pt",
			"g4/step-5-rank-0.pt", "g4/step-6-rank-0.pt", "g4/best.pt", "g4/step-.pt"} {
			if p.old(path[:2], path[3:]) {
				gone = append(gone, path)
			}
		}
		if !slices.Equal(gone, c.gone) {
			t.Errorf("kept %v: gone are %v, want %v", c.keep, gone, c.gone)
		}
	}
}

// A running rank's agent prunes on an order and says so in a note.
func TestPruneOrder(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	gang := s.trainer("a", "G0")
	gang.Generation = 3
	job := filepath.Join(t.TempDir(), "j")
	gang.Rank.CheckpointDir = filepath.Join(job, "g3")
	makeDirs(t, job, "g1/step-00000001", "g2/step-00000002", "g3/step-00000003")
	s.begin(nodes.OrderStart, gang)
	s.await("a", nodes.StateRunning)
	order := nodes.Order{ID: "a:prune:3", Term: 1, Kind: nodes.OrderPrune, Holder: "a", Generation: 3, Step: 3, FromGeneration: 1,
		Keep: []string{"g2/step-00000002", "g3/step-00000003"}}
	s.send(order)
	if n := s.note("a", "pruned", ""); n.Step != 3 {
		t.Errorf("%+v", n)
	}
	if got := tree(t, job); slices.Contains(got, "g1") {
		t.Errorf("g1 is still there: %v", got)
	}
	for _, kept := range order.Keep {
		if _, err := os.Stat(filepath.Join(job, kept)); err != nil {
			t.Error(err)
		}
	}
}
