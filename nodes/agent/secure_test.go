package agent

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/nodes"
	"sluice/nodes/agent/hold"
)

// certificate makes a certificate for 127.0.0.1 and a pool that trusts it.
func certificate(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, &tls.Config{RootCAs: pool}
}

// Beyond loopback, the listener speaks TLS and asks for the token on every path.
func TestListenerIsSecured(t *testing.T) {
	l := newLeader(t)
	serverTLS, clientTLS := certificate(t)
	cfg := agentArgs{Data: t.TempDir(), Sim: "", Socket: l.path}.config()
	cfg.Devices, cfg.Listen, cfg.TLS = NoDevices{}, "0.0.0.0:0", serverTLS
	cfg.CheckBearer = func(h string) bool { return h == "Bearer good" }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, cfg) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "hello", func() bool { return l.helloCount() > 0 })
	addr := l.lastHello().Node.AgentAddr
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: clientTLS}}
	defer client.CloseIdleConnections()
	for _, path := range []string{"/v1/state", "/v1/holders/a/log", "/v1/nothing"} {
		for token, good := range map[string]bool{"": false, "Bearer bad": false, "Bearer good": true} {
			req, _ := http.NewRequest(http.MethodGet, "https://"+addr+path, nil)
			req.Header.Set("Authorization", token)
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if (resp.StatusCode != http.StatusUnauthorized) != good {
				t.Errorf("%s with %q: %s", path, token, resp.Status)
			}
		}
	}
	if resp, err := http.Get("http://" + addr + "/v1/state"); err == nil {
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("plain HTTP was answered")
		}
	}
}

// The dialer checks the server's certificate before it shows its token.
func TestDialerOverTLS(t *testing.T) {
	serverTLS, clientTLS := certificate(t)
	ln, err := tls.Listen("tcp", "127.0.0.1:0", serverTLS)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 8)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", StreamProtocol)
		_, _ = io.Copy(conn, rw) // echo
		conn.Close()
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = srv.Serve(ln) }()
	defer func() { srv.Close(); <-served }()
	d := &HTTPDialer{Addrs: func() []string { return []string{ln.Addr().String()} }, Bearer: "t0ken", TLS: &tls.Config{}}
	if _, err := d.Dial(context.Background()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown certificate was taken: %v", err)
	}
	select {
	case a := <-got:
		t.Errorf("the token was shown to a stranger: %q", a)
	default:
	}
	d.TLS = clientTLS
	rwc, err := d.Dial(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer rwc.Close()
	if a := <-got; a != "Bearer t0ken" {
		t.Errorf("authorization %q", a)
	}
	fmt.Fprint(rwc, "ping")
	buf := make([]byte, 4)
	if _, err := io.ReadFull(rwc, buf); err != nil || string(buf) != "ping" {
		t.Errorf("%q %v", buf, err)
	}
}

// A log is followed as it grows, through its rotation.
func TestFollowerThroughRotation(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(f, text)
		f.Close()
	}
	var out bytes.Buffer
	f := &follower{now: filepath.Join(dir, hold.LogFile), old: filepath.Join(dir, hold.OldLog), w: &out}
	defer f.close()
	f.tail(4)
	write(hold.LogFile, "one ")
	f.copy()
	write(hold.LogFile, "two ")
	if err := os.Rename(filepath.Join(dir, hold.LogFile), filepath.Join(dir, hold.OldLog)); err != nil {
		t.Fatal(err)
	}
	write(hold.LogFile, "three ")
	f.copy()
	write(hold.LogFile, "four")
	f.copy()
	if out.String() != "one two three four" {
		t.Errorf("%q", out.String())
	}
	out.Reset()
	g := &follower{now: filepath.Join(dir, hold.LogFile), old: filepath.Join(dir, hold.OldLog), w: &out}
	defer g.close()
	g.tail(14)
	if out.String() != "two three four" {
		t.Errorf("tail %q", out.String())
	}
}

// Where the data directory is too deep for a socket, the ranks are reached all
// the same.
func TestDeepDataDirectory(t *testing.T) {
	s := newSite(t, 1)
	s.args.Data = filepath.Join(s.args.Data, strings.Repeat("deep/", 20), "data")
	s.start()
	gang := s.trainer("a", "G0")
	s.begin(nodes.OrderStart, gang)
	s.await("a", nodes.StateRunning)
	s.do(nodes.OrderKill, gang)
	s.await("a", nodes.StateGone)
	short := filepath.Join(os.TempDir(), "sluice-"+digest8("n1-"+digest8(s.args.Data)))
	if entries, err := os.ReadDir(short); err != nil || len(entries) != 0 {
		t.Errorf("sockets left: %v %v", entries, err)
	}
	_ = os.Remove(short)
}
