package trust

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	// caLife: long, since every join token pins this CA.
	caLife = 20 * 365 * 24 * time.Hour
	// serverLife, and renewBefore: a server's certificate is renewed by
	// itself, at start or under way, when less than renewBefore is left.
	serverLife  = 365 * 24 * time.Hour
	renewBefore = 60 * 24 * time.Hour
	// backdate lets clients with a slow clock accept a new certificate.
	backdate = time.Hour
	// MaxHosts is how many names a server's certificate may carry.
	MaxHosts = 64
)

// Errors of the directory.
var (
	// ErrExposed: a private file can be read by others.
	ErrExposed = errors.New("a private key is readable by others")
	// ErrDamaged: a file cannot be read as what it should be.
	ErrDamaged = errors.New("a file of the cluster's authority is missing or damaged")
)

// Authority is the cluster's CA and secret, opened from a directory. Safe for
// concurrent use.
type Authority struct {
	dir    string
	ca     *x509.Certificate
	signer pair
	secret []byte // of the cluster, 32 bytes
	now    func() time.Time

	mu     sync.Mutex
	server pair // guarded by mu; the present certificate of this server
}

// Open opens the authority in dir, making directory (0700), CA and cluster
// secret on the first start. A start that was cut short is completed.
// Errors: ErrExposed, ErrDamaged, with what to do.
func Open(dir string) (*Authority, error) { return openAt(dir, time.Now) }

func openAt(dir string, now func() time.Time) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("trust: making %s: %w", dir, err)
	}
	a := &Authority{dir: dir, now: now}
	var err error
	if a.secret, err = a.loadSecret(); err != nil {
		return nil, err
	}
	if a.signer, err = a.loadCA(); err != nil {
		return nil, err
	}
	a.ca = a.signer.leaf
	return a, nil
}

func (a *Authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *Authority) loadSecret() ([]byte, error) {
	text, err := readPrivate(a.path("cluster.secret"))
	if errors.Is(err, os.ErrNotExist) {
		secret := make([]byte, secretBytes)
		rand.Read(secret)
		return secret, writeFile(a.path("cluster.secret"), []byte(hex.EncodeToString(secret)+"\n"), 0o600)
	}
	if err != nil {
		return nil, err
	}
	if len(text) != 2*secretBytes+1 {
		return nil, a.damaged("cluster.secret")
	}
	secret, err := hex.DecodeString(string(text[:2*secretBytes]))
	if err != nil {
		return nil, a.damaged("cluster.secret")
	}
	return secret, nil
}

// loadCA reads the CA, or makes it if its certificate was never written: the
// key is written first, so a key alone is a start that was cut short, and
// nobody can have trusted it.
func (a *Authority) loadCA() (pair, error) {
	if _, err := os.Stat(a.path("ca.crt")); errors.Is(err, os.ErrNotExist) {
		p, err := newCA(a.now())
		if err != nil {
			return pair{}, err
		}
		return p, p.write(a.path("ca"))
	}
	p, err := readPair(a.path("ca"))
	if err != nil {
		return pair{}, err
	}
	if !p.leaf.IsCA {
		return pair{}, a.damaged("ca.crt")
	}
	return p, nil
}

func (a *Authority) damaged(name string) error {
	return fmt.Errorf("trust: %s: %w: put back a copy of %s; a new one would lock out every agent", a.path(name), ErrDamaged, a.dir)
}

// CAHash is what join tokens pin.
func (a *Authority) CAHash() [sha256.Size]byte { return sha256.Sum256(a.ca.Raw) }

// CAPEM is the CA's certificate for clients outside the cluster's tools.
func (a *Authority) CAPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.ca.Raw})
}

// GossipKey is the 32-byte key of gossip, the same on every server of a
// cluster. The slice is the caller's.
func (a *Authority) GossipKey() []byte { return a.derive("sluice gossip key v1", 32) }

// Label names the cluster in gossip: 16 hex digits, no secret, and different
// for any two clusters.
func (a *Authority) Label() string { return hex.EncodeToString(a.derive("sluice gossip label v1", 8)) }

func (a *Authority) derive(purpose string, n int) []byte {
	key, err := hkdf.Key(sha256.New, a.secret, nil, purpose, n)
	if err != nil {
		panic("trust: " + err.Error()) // only for lengths over 255 hashes
	}
	return key
}

// ServerTLS opens the authority in dir and returns the server's side of TLS;
// see Authority.ServerTLS.
func ServerTLS(dir string, hosts []string) (*tls.Config, error) {
	a, err := Open(dir)
	if err != nil {
		return nil, err
	}
	return a.ServerTLS(hosts)
}

// ServerTLS is the server's side: a certificate that names hosts (DNS names
// and IP addresses, without ports; localhost, 127.0.0.1 and ::1 are always
// among them), signed by the CA, which is sent along. It is kept in dir, and
// made anew when hosts changed or its end comes near, also in a running
// server. TLS 1.3 only.
func (a *Authority) ServerTLS(hosts []string) (*tls.Config, error) {
	names, err := subjectNames(hosts)
	if err != nil {
		return nil, err
	}
	if _, err := a.serverCertificate(names); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return a.serverCertificate(names)
		},
	}, nil
}

// PeerTLS is both sides of TLS between servers that share this authority: each
// shows its certificate and accepts only the CA's. For the port of the
// replicated log.
func (a *Authority) PeerTLS(hosts []string) (*tls.Config, error) {
	c, err := a.ServerTLS(hosts)
	if err != nil {
		return nil, err
	}
	names, _ := subjectNames(hosts)
	pool := x509.NewCertPool()
	pool.AddCert(a.ca)
	c.NextProtos = nil
	c.RootCAs, c.ClientCAs = pool, pool
	c.ClientAuth = tls.RequireAndVerifyClientCert
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		if len(cs.PeerCertificates) == 0 || !isServer(cs.PeerCertificates[0]) {
			return fmt.Errorf("trust: %w", ErrNotServer)
		}
		return nil
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return a.serverCertificate(names)
	}
	return c, nil
}

// serverCertificate returns the present certificate for names, renewed if it
// must be.
func (a *Authority) serverCertificate(names []string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.loadServerLocked(); err != nil {
		return nil, err
	}
	return a.serverCertificateLocked(names)
}

// ownCertificate is the server's certificate under whatever names it has, for
// calls to agents: they ask what it is, not what it is called.
func (a *Authority) ownCertificate() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.loadServerLocked(); err != nil {
		return nil, err
	}
	if a.server.leaf != nil {
		return a.serverCertificateLocked(namesOf(a.server.leaf))
	}
	names, err := subjectNames(nil)
	if err != nil {
		return nil, err
	}
	return a.serverCertificateLocked(names)
}

// loadServerLocked reads the server's certificate once. One that cannot be read
// is made again: nothing pins it. One whose key is exposed is an error.
func (a *Authority) loadServerLocked() error {
	if a.server.leaf != nil {
		return nil
	}
	p, err := readPair(a.path("server"))
	if errors.Is(err, ErrExposed) {
		return err
	}
	if err == nil {
		a.server = p
	}
	return nil
}

func (a *Authority) serverCertificateLocked(names []string) (*tls.Certificate, error) {
	if !a.goodLocked(names) {
		p, err := newServer(a.signer, names, a.now())
		if err != nil {
			return nil, err
		}
		if err := p.write(a.path("server")); err != nil {
			return nil, err
		}
		a.server = p
	}
	return &tls.Certificate{
		Certificate: [][]byte{a.server.leaf.Raw, a.ca.Raw},
		PrivateKey:  a.server.key,
		Leaf:        a.server.leaf,
	}, nil
}

func (a *Authority) goodLocked(names []string) bool {
	leaf := a.server.leaf
	return leaf != nil && isServer(leaf) && leaf.CheckSignatureFrom(a.ca) == nil &&
		a.now().Add(renewBefore).Before(leaf.NotAfter) && !a.now().Before(leaf.NotBefore) &&
		slices.Equal(namesOf(leaf), names)
}
