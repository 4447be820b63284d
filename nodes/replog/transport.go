package replog

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
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
	ln, err := net.Listen("tcp", cfg.Bind)
	if err != nil {
		return nil, nil, fmt.Errorf("replog: opening the log port: %w", err)
	}
	advertise := cfg.Advertise
	if advertise == "" {
		advertise = ln.Addr().String()
	}
	s := &stream{Listener: ln, advertise: peerAddr(advertise), tls: cfg.TLS}
	if cfg.TLS != nil {
		if len(cfg.TLS.Certificates) == 0 && cfg.TLS.GetCertificate == nil {
			ln.Close()
			return nil, nil, errNoTLS
		}
		s.Listener = tls.NewListener(ln, cfg.TLS)
	}
	t := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: s, MaxPool: maxPeerConns, Timeout: peerTimeout, Logger: hlog,
	})
	return t, t.Close, nil
}

// stream is raft's stream layer over TCP, with TLS both ways when configured.
type stream struct {
	net.Listener
	advertise peerAddr
	tls       *tls.Config
}

func (s *stream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	d := &net.Dialer{Timeout: timeout}
	if s.tls == nil {
		return d.Dial("tcp", string(address))
	}
	return tls.DialWithDialer(d, "tcp", string(address), s.tls)
}

// Addr is what raft tells others to dial.
func (s *stream) Addr() net.Addr { return s.advertise }

type peerAddr string

func (peerAddr) Network() string  { return "tcp" }
func (a peerAddr) String() string { return string(a) }
