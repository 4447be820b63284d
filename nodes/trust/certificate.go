package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// maxFileBytes bounds what is read of any file here; a larger one is damaged.
const maxFileBytes = 64 << 10

// pair is a certificate with its key.
type pair struct {
	leaf *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCA(now time.Time) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("trust: making the CA's key: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "sluice cluster CA"},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(caLife),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, IsCA: true,
		BasicConstraintsValid: true, MaxPathLenZero: true,
	}
	return sign(t, t, key, key)
}

func newServer(ca pair, names []string, now time.Time) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("trust: making the server's key: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: serverSubject},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(serverLife),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		// Both, since servers also dial each other.
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	t.DNSNames, t.IPAddresses = splitNames(names)
	return sign(t, ca.leaf, key, ca.key)
}

func sign(t, parent *x509.Certificate, key, by *ecdsa.PrivateKey) (pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, by)
	if err != nil {
		return pair{}, fmt.Errorf("trust: signing a certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return pair{}, fmt.Errorf("trust: reading a new certificate back: %w", err)
	}
	return pair{leaf, key}, nil
}

func serial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b)
	b[0] &= 0x7f // positive
	return new(big.Int).SetBytes(b)
}

// subjectNames is hosts in one canonical order, with what every server is
// also called on its own machine.
func subjectNames(hosts []string) ([]string, error) {
	names := []string{"localhost", "127.0.0.1", "::1"}
	for _, h := range hosts {
		h = strings.ToLower(strings.TrimSuffix(strings.Trim(strings.TrimSpace(h), "[]"), "."))
		ip := net.ParseIP(h)
		switch {
		case ip != nil && ip.IsUnspecified():
			continue // a listener's wildcard is nobody's name
		case ip != nil:
			h = ip.String()
		case h == "" || strings.ContainsAny(h, ":/ \t@*") || len(h) > 253:
			return nil, fmt.Errorf("trust: %q is no host name or address: give names without port or scheme", h)
		}
		names = append(names, h)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > MaxHosts {
		return nil, fmt.Errorf("trust: %d names for one certificate, the limit is %d", len(names), MaxHosts)
	}
	return names, nil
}

func namesOf(leaf *x509.Certificate) []string {
	names := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	slices.Sort(names)
	return names
}

// write stores key, then certificate, at base+".key" and base+".crt".
func (p pair) write(base string) error {
	der, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		return fmt.Errorf("trust: encoding a key: %w", err)
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := writeFile(base+".key", key, 0o600); err != nil {
		return err
	}
	crt := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.leaf.Raw})
	return writeFile(base+".crt", crt, 0o644)
}

func readPair(base string) (pair, error) {
	bad := func(name string) error {
		return fmt.Errorf("trust: %s: %w: put back a copy of that directory", name, ErrDamaged)
	}
	keyText, err := readPrivate(base + ".key")
	if errors.Is(err, fs.ErrNotExist) {
		return pair{}, bad(base + ".key")
	}
	if err != nil {
		return pair{}, err
	}
	crtText, err := os.ReadFile(base + ".crt")
	if err != nil {
		return pair{}, bad(base + ".crt")
	}
	keyBlock, _ := pem.Decode(keyText)
	crtBlock, _ := pem.Decode(crtText)
	if keyBlock == nil {
		return pair{}, bad(base + ".key")
	}
	if crtBlock == nil {
		return pair{}, bad(base + ".crt")
	}
	anyKey, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return pair{}, bad(base + ".key")
	}
	key, ok := anyKey.(*ecdsa.PrivateKey)
	if !ok {
		return pair{}, bad(base + ".key")
	}
	leaf, err := x509.ParseCertificate(crtBlock.Bytes)
	if err != nil || !key.PublicKey.Equal(leaf.PublicKey) {
		return pair{}, bad(base + ".crt")
	}
	return pair{leaf, key}, nil
}

// readPrivate reads a file that only its owner may read.
func readPrivate(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("trust: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("trust: %s: %w (mode %v): chmod 600 it, and replace it if others use this machine", path, ErrExposed, info.Mode().Perm())
	}
	if info.Size() > maxFileBytes {
		return nil, fmt.Errorf("trust: %s: %w: it is over %d bytes", path, ErrDamaged, maxFileBytes)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("trust: %w", err)
	}
	return b, nil
}

// writeFile replaces a file whole, on disk, or not at all. The temporary name
// is made with mode 0600 and opened to others only when the content is meant
// for them.
func writeFile(path string, data []byte, mode os.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*")
	if err != nil {
		return fmt.Errorf("trust: writing %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("trust: writing %s: %w", path, err)
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("trust: writing %s: %w", path, err)
	}
	defer d.Close()
	return d.Sync()
}
