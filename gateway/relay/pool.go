package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sluice/gateway/hangup"
	"sluice/gateway/sock"
)

// Client opens, keeps and hands out connections. It is safe for concurrent use. Close ends it.
type Client struct {
	cfg    Config
	dialer net.Dialer
	stats  counters
	watch  *hangup.Watcher
	stop   chan struct{}
	done   chan struct{}

	mu     sync.Mutex
	idle   map[string][]*conn // guarded by mu; most recently used last
	closed bool               // guarded by mu
}

// counters are the client's own books; see Stats.
type counters struct{ dials, reuses, stale, retries atomic.Uint64 }

// Stats counts since the start.
type Stats struct {
	Dials   uint64 // connections opened
	Reuses  uint64 // exchanges on a pooled connection
	Stale   uint64 // pooled connections found closed before use
	Retries uint64 // requests sent again because a pooled connection died before any answer
}

// New returns a client, or an error when the settings are out of range.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	watch, err := hangup.New()
	if err != nil {
		return nil, fmt.Errorf("relay: watch for departing engines: %w", err)
	}
	c := &Client{cfg: cfg, watch: watch, stop: make(chan struct{}), done: make(chan struct{}), idle: make(map[string][]*conn)}
	c.dialer = net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 30 * time.Second, Control: refuseForbidden}
	go c.sweep()
	return c, nil
}

// metadataAddr is a cloud's metadata service that is not link-local.
var metadataAddr = netip.MustParseAddr("fd00:ec2::254")

// refuseForbidden keeps requests from cloud metadata services and other places that are no engine, whatever name led
// there: it sees the address that is dialled. Specs are held to the same when they are written.
func refuseForbidden(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("not an IP address and port")
	}
	switch a := ap.Addr().Unmap().WithZone(""); {
	case a.IsLinkLocalUnicast(), a == metadataAddr:
		return fmt.Errorf("link-local addresses and metadata services are never engines")
	case a.IsUnspecified(), a.IsMulticast():
		return fmt.Errorf("unspecified and multicast addresses are never engines")
	}
	return nil
}

// Stats returns the counts.
func (c *Client) Stats() Stats {
	return Stats{Dials: c.stats.dials.Load(), Reuses: c.stats.reuses.Load(), Stale: c.stats.stale.Load(), Retries: c.stats.retries.Load()}
}

// Idle returns how many connections wait in the pool.
func (c *Client) Idle() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, list := range c.idle {
		n += len(list)
	}
	return n
}

// Close closes the idle connections and lets no new ones be opened or kept. Exchanges under way go on.
func (c *Client) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	idle := c.idle
	c.idle = nil
	c.mu.Unlock()
	close(c.stop)
	<-c.done
	for _, list := range idle {
		for _, k := range list {
			k.close()
		}
	}
	c.watch.Close()
}

// sweepEvery is how often idle connections are looked at, or more often when few are to be kept for long.
const sweepEvery = 2 * time.Second

// sweep closes connections that waited too long, or wait for an engine that no request will go to. It owns nothing; it
// ends with Close.
func (c *Client) sweep() {
	defer close(c.done)
	tick := time.NewTicker(min(max(c.cfg.KeepIdle/2, 10*time.Millisecond), sweepEvery))
	defer tick.Stop()
	for {
		select {
		case <-c.stop:
			return
		case now := <-tick.C:
			for _, k := range c.expired(now) {
				k.close()
			}
			for _, k := range c.stray() {
				k.close()
			}
		}
	}
}

// expired takes the overdue connections out of the pool. The oldest stand first.
func (c *Client) expired(now time.Time) (out []*conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr, list := range c.idle {
		n := 0
		for n < len(list) && now.Sub(list[n].since) >= c.cfg.KeepIdle {
			n++
		}
		out = append(out, list[:n]...)
		if n == len(list) {
			delete(c.idle, addr)
		} else if n > 0 {
			c.idle[addr] = append([]*conn(nil), list[n:]...)
		}
	}
	return out
}

// stray takes connections to addresses that no request will go to any more out of the pool.
func (c *Client) stray() (out []*conn) {
	if c.cfg.Addrs == nil || c.Idle() == 0 {
		return nil
	}
	known := map[string]bool{}
	for s := range c.cfg.Addrs {
		addr, _ := splitAddr(s)
		known[addr] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr, list := range c.idle {
		if !known[addr] {
			out = append(out, list...)
			delete(c.idle, addr)
		}
	}
	return out
}

// take returns a pooled connection, or nil. Whether it is still good shows when it is used.
func (c *Client) take(addr string) *conn {
	for { // ends: each turn takes one out
		c.mu.Lock()
		list := c.idle[addr]
		if len(list) == 0 {
			c.mu.Unlock()
			return nil
		}
		k := list[len(list)-1]
		list[len(list)-1] = nil
		c.idle[addr] = list[:len(list)-1]
		c.mu.Unlock()
		if time.Since(k.since) < c.cfg.KeepIdle {
			return k
		}
		c.stats.stale.Add(1)
		k.close()
	}
}

// give puts a connection back, or closes it when there is no room.
func (c *Client) give(k *conn) {
	k.since = time.Now()
	c.mu.Lock()
	list, known := c.idle[k.addr]
	if c.closed || len(list) >= c.cfg.MaxIdlePerAddr || (!known && len(c.idle) >= c.cfg.MaxAddrs) {
		c.mu.Unlock()
		k.close()
		return
	}
	c.idle[k.addr] = append(list, k)
	c.mu.Unlock()
}

// dial opens a connection. cancel ends the attempt.
func (c *Client) dial(ctx context.Context, addr string) (*conn, error) {
	c.stats.dials.Add(1)
	nc, err := c.dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if tcp, ok := nc.(*net.TCPConn); ok {
		_ = tcp.SetNoDelay(true) // Go's default, stated: a token must not wait for another
	}
	k := &conn{Conn: sock.Wrap(nc), addr: strings.Clone(addr)}
	k.prepare()
	if k.Direct() {
		k.watch = c.watch
		k.id, k.watched = c.watch.Add(nc, k)
	}
	return k, nil
}

// conn is a connection to an engine. It belongs to the pool or to one Exchange.
type conn struct {
	*sock.Conn
	addr  string
	since time.Time // when it went idle
	owner *Exchange // whose step is called when bytes are there; nil in the pool
	ready

	watch   *hangup.Watcher // nil for a connection without a descriptor
	id      uint64
	watched bool        // Left is called when the engine closes
	hung    atomic.Bool // it was: what is there is followed by the end
	woken   bool        // and the owner knows
}

// Left implements hangup.Peer. Whoever waits for bytes is woken by the deadline, and reads on to the end then. Without
// this a read that found less than it had room for would have to be followed by another, which finds nothing, since the
// poller does not tell an end that came with the bytes.
func (k *conn) Left() {
	if !k.hung.Swap(true) {
		_ = k.SetReadDeadline(time.Unix(1, 0)) // fails on a connection that is closed already
	}
}

// wake reports that a wait ended with err because the engine has closed, so that it is to be taken up again.
func (k *conn) wake(err error) bool {
	if k.woken || !k.hung.Load() || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	k.woken = true
	_ = k.SetReadDeadline(k.owner.deadline)
	return true
}

func (k *conn) close() {
	if k.watch != nil {
		k.watch.Remove(k.id)
	}
	_ = k.Conn.Close()
}
