package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"sluice/gateway/sock"
	"sluice/gateway/wire"
)

// Waits of a listener that cannot take a connection for want of something that comes back, as descriptors do.
const (
	acceptPauseMin = 5 * time.Millisecond
	acceptPauseMax = time.Second
)

// refuseLimit is how long the telling of a refusal may take. It fits into the empty buffer of a new connection.
const refuseLimit = 100 * time.Millisecond

// listener wraps what it accepts. Only its Close ends it: whatever else fails is waited out, so that nobody can end the
// server by opening connections.
type listener struct {
	net.Listener
	srv    *Server
	closed chan struct{}
	ending sync.Once
}

func (s *Server) listen(ln net.Listener) *listener {
	return &listener{Listener: ln, srv: s, closed: make(chan struct{})}
}

// Close ends the listener.
func (l *listener) Close() error {
	l.ending.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// Accept returns the next connection that there is room for.
func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.next()
		if err != nil {
			return nil, err
		}
		c := &clientConn{Conn: sock.Wrap(nc), set: &l.srv.conns, watch: l.srv.watch, gone: make(chan struct{}), peer: "local"}
		if !l.srv.conns.add(c) {
			l.refuse(nc)
			continue
		}
		if tcp, ok := nc.(*net.TCPConn); ok {
			_ = tcp.SetNoDelay(true) // Go's default, stated: tokens must not wait for each other
			if addr, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
				c.peer = addr.IP.String()
			}
		}
		c.watched, _ = l.srv.watch.Add(nc, c) // one that cannot be watched is noticed when it is written to
		return c, nil
	}
}

// next accepts, and waits out what passes. The first failure of a row is told.
func (l *listener) next() (net.Conn, error) {
	for pause := time.Duration(0); ; { // ends: with the listener, if with nothing else
		nc, err := l.Listener.Accept()
		if err == nil || !passes(err) {
			return nc, err
		}
		if pause == 0 {
			l.srv.deps.Log.Warn("no client can connect for now; raise the limit on open files, or send clients elsewhere", "error", err)
		}
		pause = min(max(2*pause, acceptPauseMin), acceptPauseMax)
		select {
		case <-time.After(pause):
		case <-l.closed:
		}
	}
}

// passes knows the failures to accept that end by themselves.
func passes(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EPERM, syscall.EPROTO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// refuse answers a connection that there is no room for, before anything of it is read.
func (l *listener) refuse(nc net.Conn) {
	l.srv.books.refused.Inc()
	body := wire.AppendError(nil, wire.Error{Message: "The gateway has as many connections as it takes.", Type: wire.TypeOverloaded, Code: "too_many_connections"})
	_ = nc.SetWriteDeadline(time.Now().Add(refuseLimit))
	_, _ = io.WriteString(nc, fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	nc.Close()
}
