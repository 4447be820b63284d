package replog

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
)

func freeAddr(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// leaderOf waits for one of the open logs to lead.
func leaderOf(t *testing.T, logs ...*Log) *Log {
	t.Helper()
	var lead *Log
	until(t, "a leader", func() bool {
		for _, l := range logs {
			if l.Leader() && l.Barrier(context.Background()) == nil {
				lead = l
				return true
			}
		}
		return false
	})
	return lead
}

func TestThreeVotersSurviveTheLossOfTheLeader(t *testing.T) {
	peers := make([]Peer, 3)
	for i := range peers {
		peers[i] = Peer{ID: fmt.Sprintf("s%d", i), Addr: freeAddr(t)}
	}
	logs := make([]*Log, 3)
	machines := make([]*tally, 3)
	for i, p := range peers {
		machines[i] = newTally()
		logs[i] = open(t, Config{Dir: t.TempDir(), ID: p.ID, Bind: p.Addr, Peers: peers}, machines[i])
	}
	ctx := context.Background()
	first := leaderOf(t, logs...)
	for i := range 20 {
		if _, err := first.Apply(ctx, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	var rest []*Log
	for _, l := range logs {
		if l != first {
			rest = append(rest, l)
			if _, err := l.Apply(ctx, []byte("x")); !errors.Is(err, ErrNotLeader) {
				t.Fatalf("a follower said %v", err)
			}
		}
	}
	term := first.Term()
	first.Close()
	second := leaderOf(t, rest...)
	if second.Term() <= term {
		t.Fatalf("term %d after %d", second.Term(), term)
	}
	if _, err := second.Apply(ctx, []byte("after")); err != nil {
		t.Fatal(err)
	}
	for i, l := range logs {
		if l != first {
			until(t, "all commands everywhere", func() bool { return machines[i].size() == 21 })
		}
	}

	follower := newTally()
	addr := freeAddr(t)
	open(t, Config{Dir: t.TempDir(), ID: "s9", Bind: addr, Join: true}, follower)
	if err := second.AddFollower("s9", addr); err != nil {
		t.Fatal(err)
	}
	until(t, "a follower catches up", func() bool { return follower.size() == 21 })
	if err := second.Remove("s9"); err != nil {
		t.Fatal(err)
	}
}
