//go:build !linux

package hangup

import "net"

// Peer is told that the other end of its connection has closed.
type Peer interface{ Left() }

// Watcher watches nothing here.
type Watcher struct{}

// New returns a watcher without connections.
func New() (*Watcher, error) { return &Watcher{}, nil }

// Add reports that the connection cannot be watched.
func (*Watcher) Add(net.Conn, Peer) (id uint64, ok bool) { return 0, false }

// Remove does nothing.
func (*Watcher) Remove(uint64) {}

// Close does nothing.
func (*Watcher) Close() {}
