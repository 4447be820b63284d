package nvml

import (
	"testing"

	"pgregory.net/rapid"
)

// Two GPUs share an island if and only if a path of links joins them: compared
// with a plain search.
func TestIslandsAreReachability(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "n")
		gpus := make([]island, n)
		for i := range gpus {
			gpus[i] = island{uuid: string(rune('A' + i)), pci: string(rune('a' + i))}
		}
		edge := map[[2]int]bool{}
		for range rapid.IntRange(0, 10).Draw(t, "links") {
			i, j := rapid.IntRange(0, n-1).Draw(t, "i"), rapid.IntRange(0, n-1).Draw(t, "j")
			gpus[i].links = append(gpus[i].links, gpus[j].pci)
			edge[[2]int{i, j}], edge[[2]int{j, i}] = true, true
		}
		got := islands(gpus)
		for i := range n {
			reached := map[int]bool{i: true}
			for range n {
				for e := range edge {
					reached[e[1]] = reached[e[1]] || reached[e[0]]
				}
			}
			for j := range n {
				if same := got[gpus[i].uuid] == got[gpus[j].uuid]; same != reached[j] {
					t.Fatalf("%d and %d: same island %v, joined %v", i, j, same, reached[j])
				}
			}
		}
		if got["A"] != 0 {
			t.Fatal("the first GPU is not in island 0")
		}
	})
}
