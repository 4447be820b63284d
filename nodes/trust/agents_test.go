package trust

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func everywhere(string) bool { return true }

// enrolled is an agent n1 of a's cluster for hosts.
func enrolled(t *testing.T, a *Authority, hosts ...string) *Identity {
	t.Helper()
	tok, rec, _ := CreateToken(a.CAHash(), "", 0, 0)
	addr := joinServer(t, a, oneRecord(rec), "127.0.0.1:0")
	i, err := OpenIdentity(filepath.Join(t.TempDir(), "tls"), "n1", hosts, tok)
	if err != nil {
		t.Fatal(err)
	}
	join := func(ctx context.Context, csr []byte) (Welcome, error) { return Join(ctx, addr, tok, csr) }
	if _, err := i.Enrol(context.Background(), join); err != nil {
		t.Fatal(err)
	}
	return i
}

// agentListener runs what an agent's listener is: TLS and a look at the bearer.
func agentListener(t *testing.T, i *Identity) (addr string) {
	t.Helper()
	c, err := i.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, c, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !i.CheckBearer(r.Header.Get("Authorization")) {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		io.WriteString(w, "lease")
	}))
}

func get(t *testing.T, c *http.Client, url string) (int, error) {
	t.Helper()
	defer c.CloseIdleConnections()
	resp, err := c.Get(url)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, nil
}

func TestServerCallsAgentOverTLS(t *testing.T) {
	a, other := authority(t), authority(t)
	i := enrolled(t, a, "127.0.0.1")
	addr := agentListener(t, i)
	for name, c := range map[string]struct {
		from *Authority
		host string
		want bool
	}{
		"the cluster's server": {a, "127.0.0.1", true},
		"a name not asked for": {a, "localhost", false},
		"another cluster":      {other, "127.0.0.1", false},
	} {
		client, err := c.from.AgentClient(everywhere)
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(addr)
		status, err := get(t, client, AgentScheme+"://"+net.JoinHostPort(c.host, port)+"/v1/leases/r1")
		if ok := err == nil && status == http.StatusOK; ok != c.want {
			t.Errorf("%s: %d, %v", name, status, err)
		}
	}
}

// Whoever holds the agent key, or is an agent, is still no server.
func TestAgentsAnswerOnlyServers(t *testing.T) {
	a := authority(t)
	i := enrolled(t, a, "127.0.0.1")
	addr := agentListener(t, i)
	pool := x509.NewCertPool()
	pool.AddCert(a.ca)
	ownPair := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &tls.Certificate{Certificate: [][]byte{i.own.leaf.Raw}, PrivateKey: i.own.key}, nil
	}
	for name, c := range map[string]*tls.Config{
		"no certificate":    {RootCAs: pool},
		"another agent's":   {RootCAs: pool, GetClientCertificate: ownPair},
		"TLS 1.2, no proof": {RootCAs: pool, MaxVersion: tls.VersionTLS12},
	} {
		client := &http.Client{Transport: &bearing{inner: &http.Transport{TLSClientConfig: c}, header: "Bearer " + a.AgentKey()}}
		if status, err := get(t, client, "https://"+addr); err == nil {
			t.Errorf("%s: let in with %d", name, status)
		}
	}
	// And a server without the key is none either.
	client, _ := a.AgentClient(everywhere)
	client.Transport.(*toAgents).header = "Bearer " + agentKeyPrefix + "guess"
	if status, err := get(t, client, AgentScheme+"://"+addr); err != nil || status != http.StatusUnauthorized {
		t.Errorf("a wrong key: %d, %v", status, err)
	}
}

// A bearer of a join token may ask for the server's own host. What it gets must
// not pass for the server, nor for a peer.
func TestAnAgentCannotPassForAServer(t *testing.T) {
	a := authority(t)
	i := enrolled(t, a, "127.0.0.1")
	fake := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return &tls.Certificate{Certificate: [][]byte{i.own.leaf.Raw, a.ca.Raw}, PrivateKey: i.own.key}, nil
	}}
	saw := make(chan string, 4)
	addr := serve(t, fake, "127.0.0.1:0", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		saw <- r.Header.Get("Authorization")
	}))
	tok, _, _ := CreateToken(a.CAHash(), "", 0, 0)
	if _, err := Join(context.Background(), addr, tok, nil); !errors.Is(err, ErrNotServer) {
		t.Errorf("join: %v", err)
	}
	peer, _ := a.PeerTLS(nil)
	tr := &http.Transport{TLSClientConfig: peer, DisableKeepAlives: true}
	if _, err := get(t, &http.Client{Transport: tr}, "https://"+addr); !errors.Is(err, ErrNotServer) {
		t.Errorf("peer: %v", err)
	}
	if len(saw) != 0 {
		t.Errorf("%d requests were sent", len(saw))
	}
}

func TestAgentClientSendsTheKeyOnlyToAgents(t *testing.T) {
	a := authority(t)
	client, err := a.AgentClient(everywhere)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := a.ServerTLS(nil)
	saw := make(chan string, 4)
	note := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { saw <- r.Header.Get("Authorization") })
	if _, err := get(t, client, AgentScheme+"://"+serve(t, c, "127.0.0.1:0", note)); !errors.Is(err, ErrNotAgent) {
		t.Errorf("a server at an agent's address: %v", err)
	}
	for _, url := range []string{"http://127.0.0.1:1/", "https://127.0.0.1:1/"} {
		if _, err := get(t, client, url); err == nil || !strings.Contains(err.Error(), "scheme") {
			t.Errorf("%s: %v", url, err)
		}
	}
	// On loopback it speaks plain HTTP and shows nothing.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	plain := &http.Server{Handler: note}
	done := make(chan struct{})
	go func() { defer close(done); plain.Serve(ln) }()
	defer func() { plain.Close(); <-done }()
	client, _ = a.AgentClient(AgentUsesTLS)
	if status, err := get(t, client, AgentScheme+"://"+ln.Addr().String()); err != nil || status != http.StatusOK {
		t.Fatalf("plain: %d, %v", status, err)
	}
	if len(saw) != 1 || <-saw != "" {
		t.Error("a credential was sent where it must not be")
	}
}

func TestAgentUsesTLS(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:7071": false, "127.8.9.10:1": false, "[::1]:7071": false, "localhost:1": false, "LocalHost.:1": false,
		"[::ffff:127.0.0.1]:1": false, "127.0.0.1": false,
		"10.0.0.1:7071": true, "0.0.0.0:1": true, "[::]:1": true, ":1": true, "gpu-01:1": true, "localhost.evil:1": true,
		"[fe80::1%lo]:1": true, "": true, "127.0.0.1.example:1": true, "2130706433:1": true,
	} {
		if AgentUsesTLS(addr) != want {
			t.Errorf("%q: %v", addr, !want)
		}
	}
}

func request(t *testing.T, key any, c *x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, c, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestSigning(t *testing.T) {
	a := authority(t)
	p256, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	p384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	weak, _ := rsa.GenerateKey(rand.Reader, 2048)
	n1 := pkix.Name{CommonName: "n1"}
	with := func(change func(*x509.CertificateRequest)) []byte {
		c := &x509.CertificateRequest{Subject: n1, DNSNames: []string{"gpu-01"}}
		change(c)
		return request(t, p256, c)
	}
	dns := func(names ...string) []byte {
		return with(func(c *x509.CertificateRequest) { c.DNSNames = names })
	}
	good := dns("gpu-01")
	block, _ := pem.Decode(good)
	block.Bytes[len(block.Bytes)-1] ^= 1
	forged := pem.EncodeToMemory(block)
	uri, _ := url.Parse("https://gpu-01/")
	for name, csr := range map[string][]byte{
		"empty":          nil,
		"no PEM":         []byte("csr"),
		"another block":  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.ca.Raw}),
		"two":            append(slices.Clone(good), good...),
		"too long":       append(slices.Clone(good), make([]byte, maxCSRBytes)...),
		"forged":         forged,
		"P-384":          request(t, p384, &x509.CertificateRequest{Subject: n1, DNSNames: []string{"a"}}),
		"Ed25519":        request(t, ed, &x509.CertificateRequest{Subject: n1, DNSNames: []string{"a"}}),
		"RSA":            request(t, weak, &x509.CertificateRequest{Subject: n1, DNSNames: []string{"a"}}),
		"no hosts":       dns(),
		"too many hosts": dns(strings.Fields(names(MaxAgentHosts + 1))...),
		"wildcard":       dns("*.example"),
		"port":           dns("a:80"),
		"empty label":    dns("a..b"),
		"odd address":    dns("2130706433"),
		"long label":     dns(strings.Repeat("a", 64)),
		"server's name":  with(func(c *x509.CertificateRequest) { c.Subject.CommonName = serverSubject }),
		"no name":        with(func(c *x509.CertificateRequest) { c.Subject.CommonName = "" }),
		"mail":           with(func(c *x509.CertificateRequest) { c.EmailAddresses = []string{"a@b"} }),
		"URI":            with(func(c *x509.CertificateRequest) { c.URIs = []*url.URL{uri} }),
		"everywhere":     with(func(c *x509.CertificateRequest) { c.IPAddresses = []net.IP{net.IPv4zero} }),
		"multicast":      with(func(c *x509.CertificateRequest) { c.IPAddresses = []net.IP{net.IPv4(224, 0, 0, 1)} }),
	} {
		if leaf, err := a.signAgent(csr); !errors.Is(err, ErrRequest) || leaf != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What it asks beyond names is not given.
	ca, _ := asn1.Marshal(struct{ CA bool }{true})
	greedy := with(func(c *x509.CertificateRequest) {
		c.Subject = pkix.Name{CommonName: "n1", OrganizationalUnit: []string{"admins"}, Organization: []string{"root"}}
		c.DNSNames, c.IPAddresses = []string{"GPU-01.Example"}, []net.IP{net.ParseIP("10.0.0.1"), net.IPv6loopback}
		c.ExtraExtensions = []pkix.Extension{
			{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: ca},
			{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Value: []byte{5, 0}},
		}
	})
	leaf, err := a.signAgent(greedy)
	if err != nil {
		t.Fatal(err)
	}
	checkAgentLeaf(t, a, leaf)
	if got := fmt.Sprint(namesOf(leaf)); got != "[10.0.0.1 ::1 gpu-01.example]" {
		t.Errorf("names %v", got)
	}
	if d := time.Until(leaf.NotAfter); d > agentLife || d < agentLife-time.Minute {
		t.Errorf("good for %v", d)
	}
}

// checkAgentLeaf holds for whatever signAgent signs.
func checkAgentLeaf(t *testing.T, a *Authority, leaf *x509.Certificate) {
	t.Helper()
	switch {
	case leaf.IsCA, leaf.KeyUsage != x509.KeyUsageDigitalSignature, len(leaf.UnknownExtKeyUsage) > 0,
		!slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}):
		t.Errorf("too much right: CA %v, usage %v %v", leaf.IsCA, leaf.KeyUsage, leaf.ExtKeyUsage)
	case !isAgent(leaf), isServer(leaf), len(leaf.Subject.Names) != 2:
		t.Errorf("subject %v", leaf.Subject)
	case leaf.CheckSignatureFrom(a.ca) != nil:
		t.Error("not signed by the CA")
	case len(namesOf(leaf)) == 0, len(namesOf(leaf)) > MaxAgentHosts, len(leaf.URIs)+len(leaf.EmailAddresses) > 0:
		t.Errorf("names %v", namesOf(leaf))
	}
}

func FuzzSigning(f *testing.F) {
	a, err := Open(filepath.Join(f.TempDir(), "tls"))
	if err != nil {
		f.Fatal(err)
	}
	_, csr, err := newRequest("n1", []string{"10.0.0.1", "gpu-01"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(csr)
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		leaf, err := a.signAgent(text)
		if err == nil {
			checkAgentLeaf(t, a, leaf)
		} else if !errors.Is(err, ErrRequest) {
			t.Fatal(err)
		}
	})
}

func TestJoinRefusesABadRequest(t *testing.T) {
	a := authority(t)
	tok, rec, _ := CreateToken(a.CAHash(), "", 0, 0)
	addr := joinServer(t, a, oneRecord(rec), "127.0.0.1:0")
	for name, csr := range map[string]string{"nonsense": "x", "huge": strings.Repeat("x", 1<<20)} {
		if _, err := Join(context.Background(), addr, tok, []byte(csr)); !errors.Is(err, ErrRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A certificate needs the token like all else.
	unknown, _, _ := CreateToken(a.CAHash(), "", 0, 0)
	_, csr, _ := newRequest("n1", []string{"10.0.0.1"})
	if w, err := Join(context.Background(), addr, unknown, csr); !errors.Is(err, ErrRefused) || w.CertPEM != "" || w.AgentKey != "" {
		t.Errorf("unknown token: %v", err)
	}
}
