package gateway

import (
	"sync"
	"sync/atomic"

	"sluice/gateway/hangup"
	"sluice/gateway/relay"
	"sluice/gateway/sock"
)

// clientConn is a client's connection. The serving goroutine owns it; the watcher and Shutdown may say that it is over.
//
// Answers of engines are written on it directly, not through fasthttp: the head and framing are ours, each piece is one
// write, and the connection stays usable for the next request. fasthttp then writes its own, empty answer, which is
// swallowed. That is sound because every handler sets a write deadline, which makes fasthttp flush after each answer:
// nothing of an earlier answer can be waiting in its buffer, and its empty answer is one single write.
type clientConn struct {
	*sock.Conn
	id      uint64
	watched uint64 // by the listener's watcher
	peer    string // IP address
	set     *connSet
	watch   *hangup.Watcher
	gone    chan struct{} // closed when the client has left, or is cut
	busy    atomic.Bool   // a handler runs
	swallow bool          // owned by the serving goroutine

	mu    sync.Mutex
	over  bool               // guarded by mu
	tries [2]*relay.Exchange // guarded by mu: what to cancel
	cut   atomic.Bool        // over by our own decision, not the client's
}

// Write is fasthttp's way to the client.
func (c *clientConn) Write(p []byte) (int, error) {
	if c.swallow {
		c.swallow = false
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Close forgets the connection and closes it.
func (c *clientConn) Close() error {
	c.set.remove(c.id)
	c.watch.Remove(c.watched)
	return c.Conn.Close()
}

// Left implements hangup.Peer.
func (c *clientConn) Left() { c.leave(false) }

// leave says that nobody waits for an answer any more, or with cut that none will be given.
func (c *clientConn) leave(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.over = true
	c.cut.Store(cut)
	close(c.gone)
	for _, x := range c.tries {
		if x != nil {
			x.Cancel()
		}
	}
}

// attach makes x what leave cancels, in one of two places, until detach or until another takes the place. x may go back
// to a pool after that.
func (c *clientConn) attach(place int, x *relay.Exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tries[place] = x
	if c.over && x != nil {
		x.Cancel()
	}
}

func (c *clientConn) detach() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tries = [2]*relay.Exchange{}
}

// left reports that the client is gone, or was cut.
func (c *clientConn) left() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// connSet knows all client connections. Safe for concurrent use.
type connSet struct {
	max   int
	mu    sync.Mutex
	next  uint64                 // guarded by mu
	conns map[uint64]*clientConn // guarded by mu; at most max
}

// add reports false when there are too many.
func (s *connSet) add(c *clientConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= s.max {
		return false
	}
	s.next++
	c.id = s.next
	s.conns[c.id] = c
	return true
}

func (s *connSet) remove(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, id)
}

// all returns the connections there are now.
func (s *connSet) all() []*clientConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*clientConn, 0, len(s.conns))
	for _, c := range s.conns {
		out = append(out, c)
	}
	return out
}
