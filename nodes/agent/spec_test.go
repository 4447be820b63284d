package agent

import (
	"errors"
	"testing"

	"sluice/nodes"
)

// A torchrun stands for ranks that the gang has.
func TestTorchrunRanksAreOfTheGang(t *testing.T) {
	for _, c := range []struct {
		rank, local, world int
		ok                 bool
	}{{0, 1, 1, true}, {2, 3, 5, true}, {2, 4, 5, false}, {0, 0, 1, false}, {5, 1, 5, false}} {
		s := &nodes.HolderSpec{ID: "j.g1.r0", Kind: nodes.KindRank, Owner: "j", Generation: 1, Command: []string{"x"},
			Rank: &nodes.RankSpec{Job: "j", Launcher: nodes.LaunchTorchrun, Rank: c.rank, LocalWorldSize: c.local, WorldSize: c.world}}
		err := checkSpec(nodes.Order{Holder: s.ID, Generation: 1, Spec: s})
		if (err == nil) != c.ok || (err != nil && !errors.Is(err, ErrBadOrder)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
