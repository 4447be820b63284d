package agent

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// The stream's place on the control port.
const (
	StreamPath     = "/v1/agents/stream"
	StreamProtocol = "sluice-agent/1"
)

// Dialer opens the stream to the leader. Dial returns when the other side has
// agreed to speak [sluice/nodes.Down] lines, and honours ctx until then.
type Dialer interface {
	Dial(ctx context.Context) (io.ReadWriteCloser, error)
}

// HTTPDialer dials control ports by HTTP/1.1 upgrade. The fields are set before
// first use; safe for concurrent use.
type HTTPDialer struct {
	// Addrs gives the addresses to try now, in order: host:port or unix:/path.
	Addrs func() []string
	// TLS is used for host:port addresses; nil is plain text.
	TLS *tls.Config
	// Bearer is the join token; empty sends none.
	Bearer string
	// TimeoutMs bounds the try of one address. 0 means 5000.
	TimeoutMs int64
}

// ErrRefused: the control port answered, but not with the stream.
var ErrRefused = errors.New("agent: control port refused the stream")

// Dial tries every address once and returns the first stream, or all errors.
func (d *HTTPDialer) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	addrs := d.Addrs()
	if len(addrs) == 0 {
		return nil, errors.New("agent: no control port is known yet; give --join, or wait for gossip")
	}
	var errs []error
	for _, addr := range addrs {
		conn, err := d.dialOne(ctx, addr)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, fmt.Errorf("dial %s: %w", addr, err))
	}
	return nil, errors.Join(errs...)
}

func (d *HTTPDialer) dialOne(ctx context.Context, addr string) (io.ReadWriteCloser, error) {
	timeout := time.Duration(d.TimeoutMs) * time.Millisecond
	if timeout <= 0 {
		timeout = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	network, host := "tcp", addr
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, addr, host = "unix", path, "sluice"
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	// Reading and writing below know no context; closing ends them.
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	up, err := d.upgrade(ctx, conn, network, host)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return up, nil
}

func (d *HTTPDialer) upgrade(ctx context.Context, conn net.Conn, network, host string) (io.ReadWriteCloser, error) {
	if d.TLS != nil && network == "tcp" {
		cfg := d.TLS.Clone()
		if cfg.ServerName == "" {
			cfg.ServerName, _, _ = net.SplitHostPort(host)
		}
		// HTTP/2 has no Upgrade.
		cfg.NextProtos = []string{"http/1.1"}
		t := tls.Client(conn, cfg)
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		conn = t
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+host+StreamPath, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", StreamProtocol)
	if d.Bearer != "" {
		req.Header.Set("Authorization", "Bearer "+d.Bearer)
	}
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	rd := bufio.NewReaderSize(conn, 64<<10)
	resp, err := http.ReadResponse(rd, req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		return nil, fmt.Errorf("%w: %s: %q", ErrRefused, resp.Status, strings.TrimSpace(string(body)))
	}
	return &upgraded{Conn: conn, rd: rd}, nil
}

// upgraded reads first what came together with the answer's head.
type upgraded struct {
	net.Conn
	rd *bufio.Reader
}

func (u *upgraded) Read(p []byte) (int, error) { return u.rd.Read(p) }
