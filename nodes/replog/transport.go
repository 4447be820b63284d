package replog

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// peerTimeout bounds a dial and each write to a peer.
const peerTimeout = 5 * time.Second

var errNoTLS = errors.New("replog: TLS is set without a certificate: see trust.PeerTLS")

func openTransport(cfg Config, hlog hclog.Logger) (raft.Transport, func() error, error) {
	if cfg.Bind == "" {
		_, t := raft.NewInmemTransport(localAddr)
		return t, t.Close, nil
	}
	s, err := listen(cfg)
	if err != nil {
		return nil, nil, err
	}
	t := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: s, MaxPool: maxPeerConns, Timeout: peerTimeout, Logger: hlog,
	})
	return t, t.Close, nil
}

// listen opens the log port.
func listen(cfg Config) (*stream, error) {
	ln, err := net.Listen("tcp", cfg.Bind)
	if err != nil {
		return nil, fmt.Errorf("replog: opening the log port: %w", err)
	}
	advertise := cfg.Advertise
	if advertise == "" {
		advertise = ln.Addr().String()
	}
	s := &stream{Listener: ln, advertise: peerAddr(advertise), tls: cfg.TLS, open: map[*tracked]struct{}{}}
	if cfg.TLS != nil {
		if len(cfg.TLS.Certificates) == 0 && cfg.TLS.GetCertificate == nil {
			ln.Close()
			return nil, errNoTLS
		}
		s.Listener = tls.NewListener(ln, cfg.TLS)
	}
	return s, nil
}

// stream is raft's stream layer over TCP, with TLS both ways when configured.
// It knows its connections and ends them all when it closes: raft's transport
// closes neither those it accepted nor those it dialled, and their goroutines
// would live on for as long as the peers do.
type stream struct {
	net.Listener
	advertise peerAddr
	tls       *tls.Config

	mu   sync.Mutex
	open map[*tracked]struct{} // guarded by mu; nil once closed
}

// tracked is a connection that its stream can end.
type tracked struct {
	net.Conn
	of *stream
}

// Close ends the connection and forgets it. Safe to call twice.
func (c *tracked) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// track takes conn in; after Close it is ended at once instead.
func (s *stream) track(conn net.Conn) (net.Conn, error) {
	c := &tracked{conn, s}
	s.mu.Lock()
	closed := s.open == nil
	if !closed {
		s.open[c] = struct{}{}
	}
	s.mu.Unlock()
	if closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	return c, nil
}

func (s *stream) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return s.track(conn)
}

// Close ends the listener and every connection.
func (s *stream) Close() error {
	err := s.Listener.Close()
	s.mu.Lock()
	conns := s.open
	s.open = nil
	s.mu.Unlock()
	for c := range conns {
		c.Conn.Close() // its user sees the end, and calls Close as well
	}
	return err
}

func (s *stream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	d := &net.Dialer{Timeout: timeout}
	var conn net.Conn
	var err error
	if s.tls == nil {
		conn, err = d.Dial("tcp", string(address))
	} else {
		conn, err = tls.DialWithDialer(d, "tcp", string(address), s.tls)
	}
	if err != nil {
		return nil, err
	}
	return s.track(conn)
}

// Addr is what raft tells others to dial.
func (s *stream) Addr() net.Addr { return s.advertise }

type peerAddr string

func (peerAddr) Network() string  { return "tcp" }
func (a peerAddr) String() string { return string(a) }
