package trust

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	// AgentScheme is the scheme of URLs given to the client of AgentClient,
	// which turns it into http or https.
	AgentScheme = "agent"
	// agentKeyPrefix tells what a leaked text is.
	agentKeyPrefix = "sluice-agent."
	// maxIdlePerAgent is how many idle connections to one agent are kept: leases
	// of a node's replicas are renewed at about the same moment.
	maxIdlePerAgent = 4
	// maxIdleAgents bounds the idle connections to all agents.
	maxIdleAgents = 16384
)

// Errors of handshakes between servers and agents.
var (
	// ErrNotAgent: what answers at an agent's address is of this cluster, but
	// no agent.
	ErrNotAgent = errors.New("the certificate at this address is not an agent's: check the agent's --host and --listen")
	// ErrNotServer: an agent's certificate where a server's is due.
	ErrNotServer = errors.New("the certificate is an agent's, not a server's: check the address, or find out who stands between")
)

// AgentUsesTLS says whether the listener of an agent at addr (host:port, as
// advertised) speaks TLS and asks for the agent key: everywhere but on
// loopback. Both sides ask this and nothing else. What cannot be read as an
// address uses TLS.
func AgentUsesTLS(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return false
	}
	ip := net.ParseIP(host)
	return ip == nil || !ip.IsLoopback()
}

// AgentKey is the credential that servers show to agents, the same in the whole
// cluster. It is a secret: an agent gets it in its Welcome.
func (a *Authority) AgentKey() string {
	return agentKeyPrefix + base64.RawURLEncoding.EncodeToString(a.derive("sluice agent key v1", secretBytes))
}

// AgentClient is a client for the listeners of agents: for leases and logs. It
// takes URLs with AgentScheme and asks usesTLS (AgentUsesTLS but in tests) how
// to speak to their host:port. With TLS it believes only certificates that the
// CA gave to an agent and that name the host; it shows the server's own
// certificate and, after the agent has proved itself, the agent key. In plain
// HTTP it shows nothing. It follows no redirect, uses no proxy and sets no
// overall timeout: give requests a context. Each call makes a client with
// connections of its own. The client is safe for concurrent use.
func (a *Authority) AgentClient(usesTLS func(addr string) bool) (*http.Client, error) {
	if _, err := a.ownCertificate(); err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.ca)
	inner := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: dialTimeout,
		MaxIdleConns:        maxIdleAgents,
		MaxIdleConnsPerHost: maxIdlePerAgent,
		IdleConnTimeout:     90 * time.Second,
		ForceAttemptHTTP2:   false, // followed logs get a connection of their own
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS13,
			RootCAs:    pool,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return a.ownCertificate()
			},
			// On top of the usual checks of chain, time and host.
			VerifyConnection: func(cs tls.ConnectionState) error {
				if len(cs.PeerCertificates) == 0 || !isAgent(cs.PeerCertificates[0]) {
					return fmt.Errorf("trust: %w", ErrNotAgent)
				}
				return nil
			},
		},
	}
	return &http.Client{
		Transport: &toAgents{inner: inner, usesTLS: usesTLS, header: "Bearer " + a.AgentKey()},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}, nil
}

// toAgents chooses the scheme and adds the credential.
type toAgents struct {
	inner   *http.Transport
	usesTLS func(addr string) bool
	header  string // secret
}

func (t *toAgents) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != AgentScheme {
		if r.Body != nil {
			r.Body.Close() // RoundTrip's duty, also on errors
		}
		return nil, fmt.Errorf("trust: %q is no scheme of an agent: write %s://host:port", r.URL.Scheme, AgentScheme)
	}
	r = r.Clone(r.Context())
	r.Header.Del("Authorization")
	r.URL.Scheme = "http"
	if t.usesTLS(r.URL.Host) {
		r.URL.Scheme = "https"
		r.Header.Set("Authorization", t.header)
	}
	return t.inner.RoundTrip(r)
}

// CloseIdleConnections is found by http.Client.CloseIdleConnections.
func (t *toAgents) CloseIdleConnections() { t.inner.CloseIdleConnections() }
