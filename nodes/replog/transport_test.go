package replog

import (
	"net"
	"testing"

	"github.com/hashicorp/raft"
)

func TestClosingEndsEveryConnection(t *testing.T) {
	s, err := listen(Config{Bind: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	trans := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: s, MaxPool: maxPeerConns, Timeout: peerTimeout, Logger: newHclog(quiet(), false),
	})
	// A peer that stays connected and silent: its handler waits in a read.
	peer, err := net.Dial("tcp", string(trans.LocalAddr()))
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	until(t, "the connection is accepted", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.open) == 1
	})
	if err := trans.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := peer.Read(make([]byte, 1)); err == nil {
		t.Fatalf("the peer's connection lives on: %v", err)
	}
	// TestMain's leak check sees a handler that did not end.
	if _, err := s.Dial(trans.LocalAddr(), peerTimeout); err == nil {
		t.Fatal("dialled after closing")
	}
}
