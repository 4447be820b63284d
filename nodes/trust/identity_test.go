package trust

import (
	"context"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// local answers joins without a network.
func local(a *Authority) JoinFunc {
	return func(_ context.Context, csr []byte) (Welcome, error) {
		w := Welcome{Label: a.Label(), GossipKey: a.GossipKey(), CAPEM: string(a.CAPEM()), AgentKey: a.AgentKey()}
		if csr == nil {
			return w, nil
		}
		leaf, err := a.signAgent(csr)
		if err != nil {
			return w, err
		}
		w.CertPEM = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}))
		return w, nil
	}
}

func TestIdentityIsKept(t *testing.T) {
	a, other := authority(t), authority(t)
	tok, _, _ := CreateToken(a.CAHash(), "", 0, 0)
	foreign, _, _ := CreateToken(other.CAHash(), "", 0, 0)
	dir := filepath.Join(t.TempDir(), "tls")
	open := func(t *testing.T, node, host string, tok Token) *Identity {
		t.Helper()
		i, err := OpenIdentity(dir, node, []string{host}, tok)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	i := open(t, "n1", "gpu-01", tok)
	if _, err := i.TLS(); !errors.Is(err, ErrNotEnrolled) {
		t.Fatalf("TLS before the join: %v", err)
	}
	if i.CheckBearer("Bearer "+a.AgentKey()) || i.CheckBearer("") || i.CheckBearer("Bearer ") {
		t.Fatal("someone was let in before the join")
	}
	if _, err := i.Enrol(t.Context(), local(a)); err != nil {
		t.Fatal(err)
	}
	for header, want := range map[string]bool{
		"Bearer " + a.AgentKey(): true, "bearer " + a.AgentKey(): true, a.AgentKey(): false, "": false, "Bearer ": false,
		"Bearer " + a.AgentKey() + "x": false, "Bearer " + other.AgentKey(): false, "Bearer " + strings.Repeat("x", 1<<20): false,
	} {
		if i.CheckBearer(header) != want {
			t.Errorf("%d bytes: %v", len(header), !want)
		}
	}
	for name, mode := range map[string]os.FileMode{".": 0o700, "agent.key": 0o600, "agent.crt": 0o644, "ca.crt": 0o644} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if open(t, "n1", "GPU-01.", tok).due() {
		t.Error("the same agent asks again")
	}
	for name, again := range map[string]*Identity{
		"another name": open(t, "n2", "gpu-01", tok), "another host": open(t, "n1", "gpu-02", tok), "another cluster": open(t, "n1", "gpu-01", foreign),
	} {
		if !again.due() {
			t.Errorf("%s: the old certificate is used", name)
		}
	}
	// Another cluster's certificate takes the place, and works.
	moved := open(t, "n1", "gpu-01", foreign)
	if _, err := moved.Enrol(t.Context(), local(other)); err != nil || open(t, "n1", "gpu-01", foreign).due() {
		t.Errorf("moved to another cluster: %v", err)
	}
}

func TestIdentityAndHarm(t *testing.T) {
	a := authority(t)
	tok, _, _ := CreateToken(a.CAHash(), "", 0, 0)
	for name, c := range map[string]struct {
		harm func(dir string) error
		want error
	}{
		"key cut":          {func(d string) error { return os.Truncate(filepath.Join(d, "agent.key"), 9) }, nil},
		"key lost":         {func(d string) error { return os.Remove(filepath.Join(d, "agent.key")) }, nil},
		"certificate lost": {func(d string) error { return os.Remove(filepath.Join(d, "agent.crt")) }, nil},
		"CA lost":          {func(d string) error { return os.Remove(filepath.Join(d, "ca.crt")) }, nil},
		"CA cut":           {func(d string) error { return os.Truncate(filepath.Join(d, "ca.crt"), 9) }, nil},
		"key exposed":      {func(d string) error { return os.Chmod(filepath.Join(d, "agent.key"), 0o644) }, ErrExposed},
	} {
		dir := filepath.Join(t.TempDir(), "tls")
		i, err := OpenIdentity(dir, "n1", []string{"gpu-01"}, tok)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := i.Enrol(t.Context(), local(a)); err != nil {
			t.Fatal(err)
		}
		if err := c.harm(dir); err != nil {
			t.Fatal(err)
		}
		i, err = OpenIdentity(dir, "n1", []string{"gpu-01"}, tok)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if c.want != nil || err != nil {
			continue
		}
		if _, err := i.Enrol(t.Context(), local(a)); err != nil || i.due() {
			t.Errorf("%s: not mended: %v", name, err)
		}
	}
}

func TestIdentityTakesOnlyWhatItAskedFor(t *testing.T) {
	a, other := authority(t), authority(t)
	tok, _, _ := CreateToken(a.CAHash(), "", 0, 0)
	changed := func(change func(*Welcome)) JoinFunc {
		return func(ctx context.Context, csr []byte) (Welcome, error) {
			w, err := local(a)(ctx, csr)
			change(&w)
			return w, err
		}
	}
	elsewhere := func(ctx context.Context, _ []byte) (Welcome, error) {
		_, csr, _ := newRequest("n1", []string{"gpu-02"})
		return local(a)(ctx, csr)
	}
	otherKey := func(ctx context.Context, _ []byte) (Welcome, error) {
		_, csr, _ := newRequest("n1", []string{"gpu-01"})
		return local(a)(ctx, csr)
	}
	for name, c := range map[string]struct {
		join JoinFunc
		want error
	}{
		"no certificate": {changed(func(w *Welcome) { w.CertPEM = "" }), ErrNoCertificate},
		"no key":         {changed(func(w *Welcome) { w.AgentKey = "" }), ErrNoCertificate},
		"no CA":          {changed(func(w *Welcome) { w.CAPEM = "" }), ErrNoCertificate},
		"a CA as leaf":   {changed(func(w *Welcome) { w.CertPEM = w.CAPEM }), ErrNoCertificate},
		"other cluster":  {local(other), ErrWrongCluster},
		"other host":     {elsewhere, ErrNoCertificate},
		"other key":      {otherKey, ErrNoCertificate},
	} {
		i, err := OpenIdentity(filepath.Join(t.TempDir(), "tls"), "n1", []string{"gpu-01"}, tok)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := i.Enrol(t.Context(), c.join); !errors.Is(err, c.want) || !i.due() {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, hosts := range [][]string{nil, {""}, {"0.0.0.0"}, {"a:1"}} {
		if _, err := OpenIdentity(t.TempDir(), "n1", hosts, tok); !errors.Is(err, ErrRequest) {
			t.Errorf("hosts %q: %v", hosts, err)
		}
	}
	if _, err := OpenIdentity(t.TempDir(), "sluice server", []string{"a"}, tok); !errors.Is(err, ErrRequest) {
		t.Errorf("a server's name: %v", err)
	}
}

func TestCertificateIsRenewedUnderWay(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a, err := openAt(filepath.Join(base, "server"), time.Now)
		if err != nil {
			t.Fatal(err)
		}
		tok, _, _ := CreateToken(a.CAHash(), "", 0, 0)
		i, err := openIdentityAt(filepath.Join(base, "agent"), "n1", []string{"gpu-01"}, tok, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := i.Enrol(t.Context(), local(a)); err != nil {
			t.Fatal(err)
		}
		c, err := i.TLS()
		if err != nil {
			t.Fatal(err)
		}
		shown := func() string { crt, _ := c.GetCertificate(nil); return crt.Leaf.SerialNumber.String() }
		var tries atomic.Int64
		var away atomic.Bool
		away.Store(true)
		first := shown()
		join := func(ctx context.Context, csr []byte) (Welcome, error) {
			if tries.Add(1); away.Load() {
				return Welcome{}, errors.New("no server")
			}
			return local(a)(ctx, csr)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); i.Renew(ctx, join, slog.New(slog.DiscardHandler)) }()
		pass := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		pass(agentLife - agentRenewBefore - time.Minute)
		if tries.Load() != 0 {
			t.Errorf("%d tries too early", tries.Load())
		}
		pass(5 * time.Hour)
		if tries.Load() != 5 || shown() != first {
			t.Errorf("servers away: %d tries", tries.Load())
		}
		away.Store(false)
		pass(time.Hour)
		if tries.Load() != 6 || shown() == first || time.Until(i.Until()) < agentLife-2*time.Hour {
			t.Errorf("servers back: %d tries, good until %v", tries.Load(), i.Until())
		}
		pass(24 * time.Hour)
		if tries.Load() != 6 {
			t.Errorf("%d tries: a fresh certificate is asked for again", tries.Load())
		}
		cancel()
		<-done
		// What is on disk is what is shown.
		if again, err := openIdentityAt(filepath.Join(base, "agent"), "n1", []string{"gpu-01"}, tok, time.Now); err != nil || !again.Until().Equal(i.Until()) {
			t.Errorf("after a restart: %v", err)
		}
	})
}
