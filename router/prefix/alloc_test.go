package prefix

import "testing"

func TestZeroAlloc(t *testing.T) {
	if raceEnabled {
		t.Skip("race detector allocates")
	}
	x := New(4096, 0)
	prompt := make([]byte, 8192)
	var hashes [MaxBlocks]uint64
	var matches [MaxMatches]Match
	blocks := Hash(hashes[:0], 3, prompt, DefaultBlockBytes)
	x.Insert(1, blocks)
	x.Insert(2, blocks[:5])
	if n := testing.AllocsPerRun(100, func() {
		b := Hash(hashes[:0], 3, prompt, DefaultBlockBytes)
		if len(x.Match(matches[:0], b)) != 2 {
			t.Fatal("both replicas should match")
		}
		x.Insert(1, b) // all known: only renewed
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
