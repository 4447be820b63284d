package trust

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// renewCheck is how often an agent looks whether its certificate must be
// renewed, and so how often it tries while servers are away.
const renewCheck = time.Hour

// Errors of an agent's side.
var (
	// ErrNoCertificate: the server signed nothing, or not what was asked.
	ErrNoCertificate = errors.New("the server gave no usable certificate: run the same version of sluice on server and agents")
	// ErrNotEnrolled: TLS was asked for before Enrol.
	ErrNotEnrolled = errors.New("the agent has no certificate yet: enrol it first")
)

// JoinFunc joins some server with a certificate request, or nil for none.
type JoinFunc func(ctx context.Context, csrPEM []byte) (Welcome, error)

// Identity is the agent's side of TLS on its own listener: a certificate kept
// in a directory and renewed by joining again, and the agent key. Safe for
// concurrent use.
type Identity struct {
	base  string // path of key and certificate, less their suffixes
	node  string
	names []string
	pin   [sha256.Size]byte // of the CA
	now   func() time.Time

	mu      sync.Mutex
	own     pair              // guarded by mu
	ca      *x509.Certificate // guarded by mu; hashes to pin, nil before a certificate is there
	keyHash [sha256.Size]byte // guarded by mu; of the agent key
	keyed   bool              // guarded by mu; keyHash is set
}

// OpenIdentity reads the certificate of node for hosts (DNS names and IP
// addresses, without ports) from dir, made with mode 0700. A certificate that
// is missing, damaged, for other names or another cluster, or near its end, is
// asked for by Enrol. Errors: ErrExposed, ErrRequest for names that no server
// would sign.
func OpenIdentity(dir, node string, hosts []string, t Token) (*Identity, error) {
	return openIdentityAt(dir, node, hosts, t, time.Now)
}

func openIdentityAt(dir, node string, hosts []string, t Token, now func() time.Time) (*Identity, error) {
	names, err := agentNames(hosts)
	if err != nil {
		return nil, err
	}
	if !nodeForm.MatchString(node) {
		return nil, fmt.Errorf("trust: %w: %.80q is no node's name", ErrRequest, node)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("trust: making %s: %w", dir, err)
	}
	i := &Identity{base: filepath.Join(dir, "agent"), node: node, names: names, pin: t.CAHash, now: now}
	p, err := readPair(i.base)
	if errors.Is(err, ErrExposed) {
		return nil, err
	}
	// Any other harm is mended by Enrol: nothing pins this certificate.
	ca, caErr := readCertificate(filepath.Join(dir, "ca.crt"))
	if err == nil && caErr == nil && i.check(p.leaf, ca) == nil {
		i.own, i.ca = p, ca
	}
	return i, nil
}

func readCertificate(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("trust: %w", err)
	}
	return parseCertificate(text)
}

func parseCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, ErrNoCertificate
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoCertificate, err)
	}
	return c, nil
}

// check says whether leaf is what this agent needs, valid now and from the
// pinned CA.
func (i *Identity) check(leaf, ca *x509.Certificate) error {
	if sum := sha256.Sum256(ca.Raw); sum != i.pin {
		return ErrWrongCluster
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	opts := x509.VerifyOptions{Roots: pool, CurrentTime: i.now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if _, err := leaf.Verify(opts); err != nil {
		return fmt.Errorf("%w: %w", ErrNoCertificate, err)
	}
	if !isAgent(leaf) || leaf.Subject.CommonName != i.node || !slices.Equal(namesOf(leaf), i.names) {
		return fmt.Errorf("%w: it names %q at %v", ErrNoCertificate, leaf.Subject.CommonName, namesOf(leaf))
	}
	return nil
}

// due says whether a certificate must be asked for.
func (i *Identity) due() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.own.leaf == nil || !i.now().Add(agentRenewBefore).Before(i.own.leaf.NotAfter)
}

// Enrol joins, asking for a certificate if one is due, and takes what comes:
// certificate and key into the directory, the agent key into memory only.
// Call it before TLS. What was there stays in use after an error. Errors: those
// of join, ErrNoCertificate.
func (i *Identity) Enrol(ctx context.Context, join JoinFunc) (Welcome, error) {
	var key *ecdsa.PrivateKey
	var csrPEM []byte
	if i.due() {
		var err error
		if key, csrPEM, err = newRequest(i.node, i.names); err != nil {
			return Welcome{}, err
		}
	}
	w, err := join(ctx, csrPEM)
	if err != nil {
		return Welcome{}, err
	}
	if w.AgentKey == "" {
		return Welcome{}, fmt.Errorf("trust: joining: %w", ErrNoCertificate)
	}
	if key != nil {
		if err := i.install(key, w); err != nil {
			return Welcome{}, fmt.Errorf("trust: joining: %w", err)
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keyHash, i.keyed = sha256.Sum256([]byte(w.AgentKey)), true
	return w, nil
}

// install puts a new certificate on disk and into use.
func (i *Identity) install(key *ecdsa.PrivateKey, w Welcome) error {
	ca, err := parseCertificate([]byte(w.CAPEM))
	if err != nil {
		return err
	}
	leaf, err := parseCertificate([]byte(w.CertPEM))
	if err != nil {
		return err
	}
	if err := i.check(leaf, ca); err != nil {
		return err
	}
	if !key.PublicKey.Equal(leaf.PublicKey) {
		return fmt.Errorf("%w: it is for another key", ErrNoCertificate)
	}
	p := pair{leaf, key}
	caText := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})
	if err := writeFile(filepath.Join(filepath.Dir(i.base), "ca.crt"), caText, 0o644); err != nil {
		return err
	}
	if err := p.write(i.base); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.own, i.ca = p, ca
	return nil
}

// Renew keeps the certificate fresh until ctx ends. A failed try is logged and
// made again after an hour; the listener goes on with what it has. join should
// try each server once and return.
func (i *Identity) Renew(ctx context.Context, join JoinFunc, log *slog.Logger) {
	tick := time.NewTicker(renewCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !i.due() {
			continue
		}
		if _, err := i.Enrol(ctx, join); err != nil && ctx.Err() == nil {
			log.Warn("the agent's certificate is not renewed yet", "until", i.Until(), "error", err)
		} else if err == nil {
			log.Info("the agent's certificate is renewed", "until", i.Until())
		}
	}
}

// Until is the end of the present certificate; zero without one.
func (i *Identity) Until() time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.own.leaf == nil {
		return time.Time{}
	}
	return i.own.leaf.NotAfter
}

// TLS is the listener's side: it shows the present certificate and lets in only
// servers of the cluster, by theirs. Error: ErrNotEnrolled.
func (i *Identity) TLS() (*tls.Config, error) {
	i.mu.Lock()
	ca := i.ca
	i.mu.Unlock()
	if ca == nil {
		return nil, fmt.Errorf("trust: %w", ErrNotEnrolled)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// The CA never changes: every token pins it.
		ClientCAs:  pool,
		ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{"http/1.1"},
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 || !isServer(cs.PeerCertificates[0]) {
				return fmt.Errorf("trust: %w", ErrNotServer)
			}
			return nil
		},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			i.mu.Lock()
			defer i.mu.Unlock()
			return &tls.Certificate{Certificate: [][]byte{i.own.leaf.Raw}, PrivateKey: i.own.key, Leaf: i.own.leaf}, nil
		},
	}, nil
}

// CheckBearer says, in constant time, whether an Authorization header's value
// holds the agent key. Before Enrol it lets nobody in.
func (i *Identity) CheckBearer(header string) bool {
	credential, ok := Bearer(header)
	got := sha256.Sum256([]byte(credential))
	i.mu.Lock()
	defer i.mu.Unlock()
	return subtle.ConstantTimeCompare(got[:], i.keyHash[:]) == 1 && ok && i.keyed
}
