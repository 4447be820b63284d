package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

// newDashboardCmd shows the dashboard of a server that is reached over a
// socket or with a token, neither of which a browser has.
func newDashboardCmd() *cobra.Command {
	c := &cobra.Command{Use: "dashboard", Short: "Open the dashboard to this machine's browser", Args: argCount(0, ""),
		Long: `Serves the server's dashboard on the loopback address, for reading only, and prints
its address. The address holds a secret of this run, as other users of the
machine can reach the port too.`,
		Example: "  sluice dashboard\n  sluice dashboard --port 8790"}
	conn, out := addClientFlags(c), outputFlag(c)
	port := c.Flags().Int("port", 0, "port on 127.0.0.1 (default: a free one)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := out.check(c); err != nil {
			return err
		}
		cl, err := conn.open()
		if err != nil {
			return err
		}
		if _, err := getStatus(c.Context(), cl); err != nil {
			return err
		}
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
		if err != nil {
			return fmt.Errorf("the port cannot be had; choose another with --port: %w", err)
		}
		d := newBrowserDoor(cl, ln.Addr().String())
		address := fmt.Sprintf("http://%s/?open=%s", d.host, d.secret)
		if err := out.print(c, map[string]string{"url": address}, func(t *table) {
			t.text("%s", address)
			t.text("ctrl-c ends it")
		}); err != nil {
			ln.Close()
			return err
		}
		return d.serve(c.Context(), ln)
	}
	return c
}

// browserDoor lets one browser read the dashboard and the status.
type browserDoor struct {
	cl     *client
	host   string // 127.0.0.1:port, the only Host accepted: no rebinding of names
	secret string
}

const doorCookie = "sluice-dashboard"

func newBrowserDoor(cl *client, host string) *browserDoor {
	b := make([]byte, 18)
	rand.Read(b)
	return &browserDoor{cl: cl, host: host, secret: base64.RawURLEncoding.EncodeToString(b)}
}

func (d *browserDoor) serve(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{Handler: d, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: callTimeout + 10*time.Second, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("dashboard: %w", err)
	}
	return nil
}

// ServeHTTP implements http.Handler: the secret in the address once, then a
// cookie; GET of two paths, nothing else.
func (d *browserDoor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if r.Host != d.host || r.Method != http.MethodGet {
		http.Error(w, "use the address that `sluice dashboard` printed", http.StatusForbidden)
		return
	}
	if given := r.URL.Query().Get("open"); given != "" && d.same(given) {
		http.SetCookie(w, &http.Cookie{Name: doorCookie, Value: d.secret, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
		http.Redirect(w, r, "/", http.StatusSeeOther) // the secret leaves the address bar
		return
	}
	cookie, err := r.Cookie(doorCookie)
	if err != nil || !d.same(cookie.Value) {
		http.Error(w, "use the address that `sluice dashboard` printed", http.StatusForbidden)
		return
	}
	if r.URL.Path != "/" && r.URL.Path != "/v1/status" {
		http.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	resp, err := d.cl.send(ctx, http.MethodGet, r.URL.Path, nil)
	if err != nil {
		http.Error(w, "the server does not answer", http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for _, name := range []string{"Content-Type", "Content-Security-Policy", "Referrer-Policy"} {
		if v := resp.Header.Get(name); v != "" {
			w.Header().Set(name, v)
		}
	}
	_, _ = io.Copy(w, io.LimitReader(resp.Body, maxAnswerBytes)) // an error is a reader that left
}

func (d *browserDoor) same(given string) bool {
	return subtle.ConstantTimeCompare([]byte(given), []byte(d.secret)) == 1
}
