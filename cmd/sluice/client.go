package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sluice/gateway/admin"
	"sluice/nodes/trust"
)

const (
	callTimeout    = 20 * time.Second // of one call; streams have none
	maxAnswerBytes = 256 << 20        // of one answer: a status of 10,000 GPUs has some 5 MB
)

// client calls the control port. Safe for concurrent use.
type client struct {
	http  *http.Client
	base  string // "http://sluice" over the socket, or https://host:port
	where string // for messages
}

// clientFlags are the flags of every verb that calls the control port.
type clientFlags struct {
	server    string
	tokenFile string
}

func addClientFlags(c *cobra.Command) *clientFlags {
	f := &clientFlags{}
	c.Flags().StringVar(&f.server, "server", "", "control port: unix:/path/control.sock or https://host:port (SLUICE_SERVER)")
	c.Flags().StringVar(&f.tokenFile, "token-file", "", "file with an operator's token, for https (or SLUICE_TOKEN)")
	return f
}

// open finds the server and makes a client; nothing is dialled yet.
func (f *clientFlags) open() (*client, error) {
	set, err := f.resolve()
	if err != nil {
		return nil, err
	}
	return newClient(set)
}

func newClient(set clientSettings) (*client, error) {
	if path, ok := strings.CutPrefix(set.Server, "unix:"); ok {
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}
		return &client{http: &http.Client{Transport: &http.Transport{DialContext: dial}, CheckRedirect: noRedirect},
			base: "http://sluice", where: set.Server}, nil
	}
	u, err := url.Parse(set.Server)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Port() == "" {
		return nil, fmt.Errorf("server %q is no control port; write unix:/path/control.sock or https://host:port", set.Server)
	}
	if set.Token == "" {
		return nil, fmt.Errorf("%s needs an operator's token; make one on the server with `sluice token create --role operator`, then set SLUICE_TOKEN or --token-file", set.Server)
	}
	token, err := trust.ParseToken(set.Token)
	if err != nil {
		return nil, err
	}
	return &client{http: trust.HTTPClient(token), base: "https://" + u.Host, where: set.Server}, nil
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// call sends in (nil for none) as JSON and decodes the answer into out (nil to
// drop it). A refusal is an *admin.Error.
func (c *client) call(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswerBytes)).Decode(out); err != nil {
		return fmt.Errorf("the answer of %s is not understood; use a client of the server's version: %w", c.where, err)
	}
	return nil
}

// stream opens a long answer; the caller closes it.
func (c *client) stream(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func (c *client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("writing the request: %w", err)
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("request to %s: %w", c.where, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, refusal(resp)
	}
	return resp, nil
}

func refusal(resp *http.Response) error {
	var body struct {
		Error *admin.Error `json:"error"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&body); err != nil || body.Error == nil {
		return fmt.Errorf("the server answered %s, which is not of a control port; check --server", resp.Status)
	}
	body.Error.Status = resp.StatusCode
	return body.Error
}

// unreachable says what to do when no server answers.
func (c *client) unreachable(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return context.Canceled
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no server answers at %s; start one with `sluice up`, or name yours with --server or SLUICE_SERVER", c.where)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("you may not open %s; run as the user that runs the server, or use its https address with a token", c.where)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s did not answer within %s; look at the server's log", c.where, callTimeout)
	}
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		err = urlErr.Err // without method and URL, which say nothing here
	}
	return fmt.Errorf("calling %s: %w", c.where, err)
}

// path joins escaped segments behind /v1.
func apiPath(segments ...string) string {
	var b strings.Builder
	b.WriteString("/v1")
	for _, s := range segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}
