package trust

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// net/http lingers half a second on a connection that it ends.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

func authority(t *testing.T) *Authority {
	t.Helper()
	a, err := Open(filepath.Join(t.TempDir(), "tls"))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

type oneRecord TokenRecord

func (r oneRecord) Token(id string) (TokenRecord, bool) { return TokenRecord(r), id == r.ID }

// serve runs h over TLS at bind until the test ends. httptest would put a
// certificate of its own before ours.
func serve(t *testing.T, c *tls.Config, bind string, h http.Handler) string {
	t.Helper()
	ln, err := net.Listen("tcp", bind)
	if err != nil {
		t.Skipf("needs the whole of 127.0.0.0/8 on loopback: %v", err)
	}
	s := &http.Server{Handler: h, TLSConfig: c, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	done := make(chan struct{})
	go func() { defer close(done); s.ServeTLS(ln, "", "") }()
	t.Cleanup(func() { s.Close(); <-done })
	return ln.Addr().String()
}

func joinServer(t *testing.T, a *Authority, store TokenStore, bind string) string {
	t.Helper()
	c, err := a.ServerTLS(nil)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(JoinPath, JoinHandler(a, store, func() int64 { return 1000 }, nil))
	return serve(t, c, bind, mux)
}

func TestJoinWithOnlyAToken(t *testing.T) {
	a := authority(t)
	tok, rec, err := CreateToken(a.CAHash(), "rack 3", 1000, 0)
	if err != nil {
		t.Fatal(err)
	}
	addr := joinServer(t, a, oneRecord(rec), "127.0.0.1:0")
	pasted, err := ParseToken(" " + tok.Reveal() + "\n")
	if err != nil || pasted != tok {
		t.Fatalf("%v, %v", pasted, err)
	}
	w, err := Join(context.Background(), addr, pasted, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(w.GossipKey, a.GossipKey()) || w.Label != a.Label() || w.CAPEM != string(a.CAPEM()) {
		t.Fatalf("welcome %v", w)
	}
	_, port, _ := net.SplitHostPort(addr)
	if _, err := Join(context.Background(), "localhost:"+port, tok, nil); err != nil {
		t.Fatalf("by name: %v", err)
	}
}

func TestJoinRefusals(t *testing.T) {
	a, other := authority(t), authority(t)
	tok, rec, _ := CreateToken(a.CAHash(), "", 1000, 0)
	late, lateRec, _ := CreateToken(a.CAHash(), "", 0, 10)
	foreign, _, _ := CreateToken(other.CAHash(), "", 0, 0)
	unknown, _, _ := CreateToken(a.CAHash(), "", 0, 0)
	addr := joinServer(t, a, oneRecord(rec), "127.0.0.1:0")
	lateAddr := joinServer(t, a, oneRecord(lateRec), "127.0.0.1:0")
	ctx := context.Background()
	for name, c := range map[string]struct {
		addr string
		tok  Token
		want error
	}{
		"another cluster's token": {addr, foreign, ErrWrongCluster},
		"unknown token":           {addr, unknown, ErrRefused},
		"expired token":           {lateAddr, late, ErrRefused},
		"no such name":            {joinServer(t, a, oneRecord(rec), "127.0.0.2:0"), tok, ErrServerName},
	} {
		_, err := Join(ctx, c.addr, c.tok, nil)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), c.tok.secret) {
			t.Errorf("%s: the error contains the secret", name)
		}
	}
}

// A man in the middle with a CA of his own, and one who also sends along the
// true CA's certificate (which is public), must not see the token.
func TestManInTheMiddleNeverSeesTheToken(t *testing.T) {
	a, mallory := authority(t), authority(t)
	tok, _, _ := CreateToken(a.CAHash(), "", 0, 0)
	for name, appendTrueCA := range map[string]bool{"own CA": false, "true CA appended": true} {
		c, err := mallory.ServerTLS(nil)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := c.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		if appendTrueCA {
			cert.Certificate = append(cert.Certificate, a.ca.Raw)
		}
		c.GetCertificate = nil
		c.Certificates = append(c.Certificates, *cert)
		saw := make(chan string, 1)
		addr := serve(t, c, "127.0.0.1:0", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			saw <- r.Header.Get("Authorization")
		}))
		_, err = Join(context.Background(), addr, tok, nil)
		if !errors.Is(err, ErrWrongCluster) {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case h := <-saw:
			t.Errorf("%s: the token was sent: %d bytes", name, len(h))
		default:
		}
	}
}

func TestClientRefusesPlainHTTPAndRedirects(t *testing.T) {
	a := authority(t)
	tok, _, _ := CreateToken(a.CAHash(), "", 0, 0)
	client := HTTPClient(tok)
	defer client.CloseIdleConnections()
	if _, err := client.Get("http://127.0.0.1:1/"); !errors.Is(err, errPlain) {
		t.Fatalf("plain http: %v", err)
	}
	c, _ := a.ServerTLS(nil)
	addr := serve(t, c, "127.0.0.1:0", http.RedirectHandler("https://127.0.0.1:1/", http.StatusFound))
	resp, err := client.Get("https://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusFound {
		t.Fatalf("status %d: the redirect was followed", resp.StatusCode)
	}
}

func TestVerifyBearer(t *testing.T) {
	a := authority(t)
	tok, rec, _ := CreateToken(a.CAHash(), "n", 100, 50)
	if rec.ExpiresMs != 150 || strings.Contains(fmt.Sprint(rec), tok.secret) {
		t.Fatalf("record %+v", rec)
	}
	wrong := tok
	wrong.secret = random(secretBytes)
	for name, c := range map[string]struct {
		header string
		nowMs  int64
		want   error
	}{
		"good":           {tok.Header(), 149, nil},
		"lower case":     {"bearer " + tok.Reveal(), 149, nil},
		"expired":        {tok.Header(), 150, ErrTokenExpired},
		"wrong secret":   {wrong.Header(), 149, ErrBearer},
		"wrong, expired": {wrong.Header(), 999, ErrBearer}, // tells nothing
		"basic":          {"Basic " + tok.Reveal(), 149, ErrBearer},
		"bare":           {tok.Reveal(), 149, ErrBearer},
		"empty":          {"", 149, ErrBearer},
		"bearer only":    {"Bearer ", 149, ErrBearer},
		"long":           {"Bearer " + strings.Repeat("x", 1<<20), 149, ErrBearer},
	} {
		id, err := VerifyBearer(oneRecord(rec), c.header, c.nowMs)
		if !errors.Is(err, c.want) || (err == nil) != (id == tok.ID) {
			t.Errorf("%s: %q, %v", name, id, err)
		}
	}
	blank := oneRecord(TokenRecord{ID: tok.ID}) // a record without a hash lets nobody in
	if _, err := VerifyBearer(blank, tok.Header(), 0); !errors.Is(err, ErrBearer) {
		t.Error("an empty hash matched")
	}
}

func TestSecretsDoNotShow(t *testing.T) {
	a := authority(t)
	tok, rec, _ := CreateToken(a.CAHash(), "n", 0, 0)
	w := Welcome{Label: "l", GossipKey: a.GossipKey(), AgentKey: a.AgentKey()}
	var out bytes.Buffer
	for _, h := range []slog.Handler{slog.NewJSONHandler(&out, nil), slog.NewTextHandler(&out, nil)} {
		slog.New(h).Info("x", "token", tok, "in", struct{ T Token }{tok}, "record", rec, "welcome", w)
	}
	fmt.Fprintf(&out, "%v %+v %#v %s %q %x %v %+v", tok, tok, tok, tok, tok, tok, struct{ T Token }{tok}, []any{&tok, w})
	for _, secret := range []string{a.AgentKey(), fmt.Sprintf("%x", a.AgentKey()), tok.secret, fmt.Sprintf("%x", tok.secret), fmt.Sprint(a.GossipKey()), fmt.Sprintf("%x", a.GossipKey())} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("a secret shows in\n%s", out.String())
		}
	}
	if _, err := json.Marshal(tok); err == nil {
		t.Error("a token went into JSON")
	}
	if m := Mask("sk-abc"); strings.Contains(m, "abc") || !strings.HasPrefix(m, "sk-***") {
		t.Errorf("mask %q", m)
	}
}

func TestParseTokenRefusesWithoutQuoting(t *testing.T) {
	good, _, _ := CreateToken([32]byte{1}, "", 0, 0)
	text := good.Reveal()
	for _, bad := range []string{
		"", "sk-abc", text[1:], text[:len(text)-1], text + "0", text + ".x",
		strings.Replace(text, ".", "..", 1), strings.Replace(text, good.secret, "short", 1),
		strings.Replace(text, good.secret, good.secret[:42]+"\x00", 1),
	} {
		tok, err := ParseToken(bad)
		if !errors.Is(err, ErrTokenFormat) || !tok.IsZero() {
			t.Errorf("%d bytes accepted: %v", len(bad), err)
		}
		if len(bad) > 8 && strings.Contains(err.Error(), bad) {
			t.Error("the error quotes the text")
		}
	}
}

func FuzzParseToken(f *testing.F) {
	good, _, _ := CreateToken([32]byte{1}, "", 0, 0)
	f.Add(good.Reveal())
	f.Add("sluice-join.a.b.c")
	f.Fuzz(func(t *testing.T, text string) {
		tok, err := ParseToken(text)
		if err != nil {
			return
		}
		if again, err := ParseToken(tok.Reveal()); err != nil || again != tok {
			t.Fatalf("%v, %v", again, err)
		}
	})
}

func TestKeys(t *testing.T) {
	secret, hash := NewKey()
	if !strings.HasPrefix(secret, "sk-") || len(secret) != 46 || len(hash) != 64 || HashKey(secret) != hash {
		t.Fatalf("%d bytes, hash %q", len(secret), hash)
	}
	if other, _ := NewKey(); other == secret {
		t.Fatal("two keys are equal")
	}
}

func TestAuthorityIsTheSameAfterARestart(t *testing.T) {
	a := authority(t)
	if _, err := a.ServerTLS([]string{"gpu-01.example", "10.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	leaf := a.server.leaf
	b, err := Open(a.dir)
	if err != nil {
		t.Fatal(err)
	}
	if b.CAHash() != a.CAHash() || !bytes.Equal(a.GossipKey(), b.GossipKey()) || a.Label() != b.Label() {
		t.Fatal("another authority after a restart")
	}
	if _, err := b.ServerTLS([]string{"10.0.0.1", "GPU-01.example."}); err != nil || !b.server.leaf.Equal(leaf) {
		t.Fatalf("the certificate was made anew for the same names: %v", err)
	}
	if _, err := b.ServerTLS([]string{"10.0.0.2"}); err != nil || b.server.leaf.Equal(leaf) {
		t.Fatalf("other names, same certificate: %v", err)
	}
	filepath.WalkDir(a.dir, func(path string, d os.DirEntry, err error) error {
		info, _ := d.Info()
		mode, want := info.Mode().Perm(), os.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		} else if strings.HasSuffix(path, ".crt") {
			want = 0o644
		}
		if mode != want {
			t.Errorf("%s has mode %v", path, mode)
		}
		return nil
	})
	if bytes.Equal(a.GossipKey(), authority(t).GossipKey()) {
		t.Error("two clusters share a key")
	}
}

func TestServerCertificateIsRenewedUnderWay(t *testing.T) {
	now := time.Now()
	a, err := openAt(filepath.Join(t.TempDir(), "tls"), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	c, err := a.ServerTLS(nil)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := c.GetCertificate(nil)
	now = now.Add(serverLife - renewBefore - 2*time.Hour)
	same, _ := c.GetCertificate(nil)
	now = now.Add(3 * time.Hour)
	next, err := c.GetCertificate(nil)
	if err != nil || !first.Leaf.Equal(same.Leaf) || first.Leaf.Equal(next.Leaf) {
		t.Fatalf("renewed too early or not at all: %v", err)
	}
	if err := verifyPinned([]*x509.Certificate{next.Leaf, a.ca}, a.CAHash(), "localhost", now); err != nil {
		t.Fatal(err)
	}
	if err := verifyPinned([]*x509.Certificate{first.Leaf, a.ca}, a.CAHash(), "localhost", now.Add(serverLife)); err == nil {
		t.Fatal("an expired certificate passed")
	}
}

func TestDamageAndExposureAreSaid(t *testing.T) {
	for name, c := range map[string]struct {
		harm func(dir string) error
		want error
	}{
		"key readable by others": {func(d string) error { return os.Chmod(filepath.Join(d, "ca.key"), 0o640) }, ErrExposed},
		"secret readable":        {func(d string) error { return os.Chmod(filepath.Join(d, "cluster.secret"), 0o604) }, ErrExposed},
		"key lost":               {func(d string) error { return os.Remove(filepath.Join(d, "ca.key")) }, ErrDamaged},
		"key cut":                {func(d string) error { return os.Truncate(filepath.Join(d, "ca.key"), 30) }, ErrDamaged},
		"cert cut":               {func(d string) error { return os.Truncate(filepath.Join(d, "ca.crt"), 30) }, ErrDamaged},
		"secret cut":             {func(d string) error { return os.Truncate(filepath.Join(d, "cluster.secret"), 30) }, ErrDamaged},
	} {
		a := authority(t)
		if err := c.harm(a.dir); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(a.dir); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A first start cut between key and certificate goes on.
	a := authority(t)
	os.Remove(filepath.Join(a.dir, "ca.crt"))
	if _, err := Open(a.dir); err != nil {
		t.Errorf("a first start that was cut short: %v", err)
	}
}

func TestHostNames(t *testing.T) {
	for _, bad := range []string{"a:8080", "https://a", "a b", "*.x", ""} {
		if _, err := subjectNames([]string{bad}); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
	got, err := subjectNames([]string{"0.0.0.0", "::", "[::1]", "Node-1", "10.0.0.1", "node-1"})
	if want := "[10.0.0.1 127.0.0.1 ::1 localhost node-1]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := subjectNames(strings.Fields(strings.Repeat("x ", MaxHosts) + names(MaxHosts))); err == nil {
		t.Error("too many names accepted")
	}
}

func names(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "h%d ", i)
	}
	return b.String()
}

func TestPeerTLS(t *testing.T) {
	a, other := authority(t), authority(t)
	c, err := a.PeerTLS(nil)
	if err != nil {
		t.Fatal(err)
	}
	addr := serve(t, c, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "peer") }))
	get := func(from *Authority) error {
		c, err := from.PeerTLS(nil)
		if err != nil {
			t.Fatal(err)
		}
		tr := &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}
		resp, err := (&http.Client{Transport: tr}).Get("https://" + addr)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	if err := get(a); err != nil {
		t.Errorf("a peer: %v", err)
	}
	if err := get(other); err == nil {
		t.Error("a stranger was let in")
	}
}

func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.json")
	f, err := OpenTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	tok, rec, _ := CreateToken([32]byte{}, "a", 5, 0)
	old, oldRec, _ := CreateToken([32]byte{}, "b", 1, 2)
	for _, r := range []TokenRecord{oldRec, rec} {
		if err := f.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := f.Token(old.ID); ok {
		t.Error("an expired record stayed")
	}
	f, err = OpenTokens(path)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := VerifyBearer(f, tok.Header(), 10); err != nil || id != tok.ID {
		t.Fatalf("%q, %v", id, err)
	}
	if err := f.Revoke(tok.ID); err != nil || len(f.List()) != 0 {
		t.Fatal(err)
	}
	if _, err := VerifyBearer(f, tok.Header(), 10); !errors.Is(err, ErrBearer) {
		t.Fatalf("revoked: %v", err)
	}
	for i := range MaxTokens {
		if err := f.Add(TokenRecord{ID: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Add(rec); !errors.Is(err, ErrTooMany) {
		t.Fatalf("one more than all: %v", err)
	}
	os.WriteFile(path, []byte("["), 0o600)
	if _, err := OpenTokens(path); !errors.Is(err, ErrDamaged) {
		t.Fatalf("damaged: %v", err)
	}
}
