package trust

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	// dialTimeout bounds connecting, and handshaking, each.
	dialTimeout = 10 * time.Second
	// maxIdleConns is how many idle connections a client keeps.
	maxIdleConns = 4
)

// Errors of a handshake, seen by clients.
var (
	// ErrWrongCluster: the server's CA is not the one that the token pins.
	ErrWrongCluster = errors.New("the server belongs to another cluster, or someone stands between: check the address, or make a token on this server")
	// ErrServerName: the right cluster, but the certificate does not name the
	// host that was dialled.
	ErrServerName = errors.New("the server's certificate does not name this host: add it to the server's host names")
)

// ClientTLS is the client's side for one host (a DNS name or an IP address,
// without port; as dialled). It accepts a server if and only if the chain it
// presents ends in a CA whose SHA-256 equals the token's, and the leaf is
// valid now, a server's and not an agent's, and names host. Session resumption is checked the
// same way. For HTTP use HTTPClient, which does this for each host dialled.
func ClientTLS(t Token, host string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: host,
		// The system's roots have no say. All checks are in
		// VerifyConnection, which runs on every handshake and fails it.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			return verifyPinned(cs.PeerCertificates, t.CAHash, host, time.Now())
		},
	}
}

// verifyPinned checks the presented chain (leaf first) against the pin.
func verifyPinned(chain []*x509.Certificate, pin [sha256.Size]byte, host string, now time.Time) error {
	if len(chain) < 2 {
		return fmt.Errorf("trust: the server sent no chain: %w", ErrWrongCluster)
	}
	var root *x509.Certificate
	for _, c := range chain[1:] {
		sum := sha256.Sum256(c.Raw)
		if subtle.ConstantTimeCompare(sum[:], pin[:]) == 1 {
			root = c
			break
		}
	}
	if root == nil {
		return fmt.Errorf("trust: %w", ErrWrongCluster)
	}
	pool := x509.NewCertPool()
	pool.AddCert(root)
	leaf := chain[0]
	opts := x509.VerifyOptions{
		Roots: pool, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if _, err := leaf.Verify(opts); err != nil {
		var invalid x509.CertificateInvalidError
		if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
			return fmt.Errorf("trust: the server's certificate is not valid at this time, check both clocks: %w", err)
		}
		return fmt.Errorf("trust: %w: %w", ErrWrongCluster, err)
	}
	if !isServer(leaf) {
		return fmt.Errorf("trust: %w", ErrNotServer)
	}
	if err := leaf.VerifyHostname(host); err != nil {
		return fmt.Errorf("trust: %q: %w (it names %v)", host, ErrServerName, namesOf(leaf))
	}
	return nil
}

// HTTPClient speaks HTTPS to servers of the token's cluster and sends the
// token as bearer credential with every request, after the server has proved
// itself. It refuses plain http and does not follow redirects, either of which
// could carry the token elsewhere. No overall timeout is set, since streams
// are long: give requests a context.
func HTTPClient(t Token) *http.Client {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}
	inner := &http.Transport{
		MaxIdleConnsPerHost: maxIdleConns,
		IdleConnTimeout:     90 * time.Second,
		ForceAttemptHTTP2:   false, // long streams get a connection of their own
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, fmt.Errorf("trust: the address %q needs a port: %w", addr, err)
			}
			ctx, cancel := context.WithTimeout(ctx, 2*dialTimeout)
			defer cancel()
			d := &tls.Dialer{NetDialer: dialer, Config: ClientTLS(t, host)}
			return d.DialContext(ctx, network, addr)
		},
	}
	return &http.Client{
		Transport: &bearing{inner: inner, header: t.Header()},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
}

// bearing adds the credential.
type bearing struct {
	inner  *http.Transport
	header string
}

var errPlain = errors.New("trust: the control port speaks https: change the address")

func (b *bearing) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		if r.Body != nil {
			r.Body.Close() // RoundTrip's duty, also on errors
		}
		return nil, errPlain
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", b.header)
	return b.inner.RoundTrip(r)
}

// CloseIdleConnections is found by http.Client.CloseIdleConnections.
func (b *bearing) CloseIdleConnections() { b.inner.CloseIdleConnections() }
