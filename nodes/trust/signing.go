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
	"net"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// MaxAgentHosts is how many names an agent's certificate may carry.
	MaxAgentHosts = 8
	// agentLife is short, since nothing revokes a certificate: an agent whose
	// token was revoked cannot renew, and is out after this at the latest.
	agentLife = 30 * 24 * time.Hour
	// agentRenewBefore leaves a server ten days to come back.
	agentRenewBefore = 10 * 24 * time.Hour
	// maxCSRBytes bounds a request in PEM; with eight names one has under 4 KiB.
	maxCSRBytes = 8 << 10
)

// A certificate of this CA says in its subject what its bearer is. An agent may
// choose its common name and its hosts, so that without this mark any bearer of
// a join token could stand between a server and its clients.
const (
	serverSubject = "sluice server" // common name; no node's name has a space
	agentUnit     = "sluice agent"  // organisational unit
)

// ErrRequest: the certificate request asks for what an agent may not have.
var ErrRequest = errors.New("the certificate request is refused")

// nodeForm is the form of a node's name, nodes/agent's.
var nodeForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// labelForm is one part of a host's name. Underscores are seen in the wild.
var labelForm = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)

// agentNames is hosts in canonical form and order. An agent is called exactly
// what it asks for, on no other machine.
func agentNames(hosts []string) ([]string, error) {
	names := make([]string, 0, len(hosts))
	for _, h := range hosts {
		name, err := hostName(h)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 || len(names) > MaxAgentHosts {
		return nil, fmt.Errorf("trust: %w: %d host names, it must be 1 to %d", ErrRequest, len(names), MaxAgentHosts)
	}
	return names, nil
}

// hostName is h in canonical form: a DNS name in lower case, or an address.
func hostName(h string) (string, error) {
	if ip := net.ParseIP(h); ip != nil {
		if ip.IsUnspecified() || ip.IsMulticast() {
			return "", fmt.Errorf("trust: %w: %s is the address of no one host", ErrRequest, ip)
		}
		return ip.String(), nil
	}
	name := strings.ToLower(strings.TrimSuffix(h, "."))
	labels := strings.Split(name, ".")
	bad := len(name) > 253 || digits(labels[len(labels)-1]) // an address of some odd form
	for _, l := range labels {
		bad = bad || !labelForm.MatchString(l)
	}
	if bad {
		return "", fmt.Errorf("trust: %w: %.80q is no host name or address: give names without port or scheme", ErrRequest, h)
	}
	return name, nil
}

func digits(s string) bool { return strings.Trim(s, "0123456789") == "" }

// newRequest makes a key and asks for a certificate of node under names, which
// are canonical.
func newRequest(node string, names []string) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("trust: making the agent's key: %w", err)
	}
	t := &x509.CertificateRequest{Subject: pkix.Name{CommonName: node}}
	t.DNSNames, t.IPAddresses = splitNames(names)
	der, err := x509.CreateCertificateRequest(rand.Reader, t, key)
	if err != nil {
		return nil, nil, fmt.Errorf("trust: making a certificate request: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

func splitNames(names []string) (dns []string, ips []net.IP) {
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			ips = append(ips, ip)
		} else {
			dns = append(dns, n)
		}
	}
	return dns, ips
}

// signAgent makes the certificate that csrPEM asks for. Only the key, the
// common name and the hosts are taken from the request; all else, whatever it
// asks, is as for every agent: a server for its hosts, no client, no CA.
// Errors wrap ErrRequest.
func (a *Authority) signAgent(csrPEM []byte) (*x509.Certificate, error) {
	refuse := func(why string) (*x509.Certificate, error) {
		return nil, fmt.Errorf("trust: %w: %s", ErrRequest, why)
	}
	if len(csrPEM) > maxCSRBytes {
		return refuse(fmt.Sprintf("it has %d bytes, the limit is %d", len(csrPEM), maxCSRBytes))
	}
	block, rest := pem.Decode(csrPEM)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(strings.TrimSpace(string(rest))) > 0 {
		return refuse("it is not one certificate request in PEM")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return refuse("it cannot be read")
	}
	if csr.CheckSignature() != nil {
		return refuse("it is not signed with the key it names")
	}
	key, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return refuse("the key must be ECDSA on P-256")
	}
	if !nodeForm.MatchString(csr.Subject.CommonName) {
		return refuse("the common name must be a node's name: letters, digits, '.', '_' or '-'")
	}
	if len(csr.EmailAddresses)+len(csr.URIs) > 0 {
		return refuse("only host names and addresses may be asked for")
	}
	hosts := slices.Clone(csr.DNSNames)
	for _, ip := range csr.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	names, err := agentNames(hosts)
	if err != nil {
		return nil, err
	}
	return a.newAgent(csr.Subject.CommonName, names, key)
}

func (a *Authority) newAgent(node string, names []string, key *ecdsa.PublicKey) (*x509.Certificate, error) {
	now := a.now()
	t := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: node, OrganizationalUnit: []string{agentUnit}},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(agentLife),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	t.DNSNames, t.IPAddresses = splitNames(names)
	der, err := x509.CreateCertificate(rand.Reader, t, a.ca, key, a.signer.key)
	if err != nil {
		return nil, fmt.Errorf("trust: signing an agent's certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("trust: reading a new certificate back: %w", err)
	}
	return leaf, nil
}

// isServer and isAgent say what a certificate, verified before, is for.
func isServer(leaf *x509.Certificate) bool {
	return leaf.Subject.CommonName == serverSubject && len(leaf.Subject.OrganizationalUnit) == 0
}

func isAgent(leaf *x509.Certificate) bool {
	return slices.Equal(leaf.Subject.OrganizationalUnit, []string{agentUnit}) && nodeForm.MatchString(leaf.Subject.CommonName)
}
