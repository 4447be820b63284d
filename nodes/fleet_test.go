package nodes

import "testing"

// A restarted agent does not know how far a rank was that died meanwhile.
func TestHelloKeepsHowFarRanksWere(t *testing.T) {
	f := NewFleet()
	hello := func(holders ...string) {
		h := &Hello{Node: Node{ID: "n"}}
		for _, id := range holders {
			h.Holders = append(h.Holders, HolderStatus{ID: id, Generation: 2})
		}
		f.Frame("n", &Frame{Hello: h}, 1)
	}
	hello("a", "b")
	for _, id := range []string{"a", "b"} {
		f.Frame("n", &Frame{Rank: &RankNote{Holder: id, Generation: 2, Rank: 1, Kind: "hello", Step: 5}}, 2)
		f.Frame("n", &Frame{Rank: &RankNote{Holder: id, Generation: 2, Rank: 1, Kind: "step", Begun: 9, Done: 8}}, 2)
	}
	hello("a")
	if r := f.Rank("n", "a", 1); r == nil || r.Done != 8 || r.Begun != 9 || r.From != 5 || r.Hello {
		t.Errorf("%+v; want done 8, begun 9, from 5, no hello", r)
	}
	if r := f.Rank("n", "b", 1); r != nil {
		t.Errorf("a holder that is not there any more: %+v", r)
	}
	f.Frame("n", &Frame{Rank: &RankNote{Holder: "a", Generation: 2, Rank: 1, Kind: "step", Begun: 7, Done: 7}}, 3)
	if r := f.Rank("n", "a", 1); r.Done != 8 {
		t.Errorf("done went back to %d", r.Done)
	}
}
