package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"sluice/nodes/agent"
	"sluice/nodes/trust"
)

// listening is where an agent listens and how others reach it.
type listening struct {
	listen     string // host is an address, so that it is looked up once
	advertised string // host:port as others dial it; the port may still be 0
	hosts      []string
}

// agentListening settles the listener of an agent. Without a listen address it
// is the host's, any port. What listens everywhere is reached at host.
func agentListening(listen, host string) (listening, error) {
	if listen == "" {
		listen = net.JoinHostPort(host, "0")
	}
	// The same choice among a name's addresses as net.Listen makes.
	tcp, err := net.ResolveTCPAddr("tcp", listen)
	if err != nil {
		return listening{}, fmt.Errorf("--listen %q must be host:port of this machine: %w", listen, err)
	}
	_, port, err := net.SplitHostPort(tcp.String())
	if err != nil {
		return listening{}, fmt.Errorf("--listen %q must be host:port: %w", listen, err)
	}
	l := listening{listen: tcp.String(), advertised: net.JoinHostPort(host, port), hosts: []string{host}}
	everywhere := tcp.IP == nil || tcp.IP.IsUnspecified() || tcp.Zone != ""
	switch {
	case everywhere && !trust.AgentUsesTLS(l.advertised):
		return listening{}, fmt.Errorf("--listen %s is open to other machines, but --host %s is not where they reach this one: give --host, or listen on 127.0.0.1", listen, host)
	case !everywhere:
		l.advertised = net.JoinHostPort(tcp.IP.String(), port)
		if h := tcp.IP.String(); h != host {
			l.hosts = append(l.hosts, h)
		}
	}
	return l, nil
}

// enter joins a server and secures cfg's listener if its address needs it. The
// function it returns keeps the certificate fresh until its context ends.
func enter(ctx context.Context, o *agentOptions, cfg *agent.Config, token trust.Token) (trust.Welcome, func(context.Context), error) {
	idle := func(context.Context) {}
	l, err := agentListening(o.Listen, o.Host)
	if err != nil {
		return trust.Welcome{}, idle, err
	}
	cfg.Listen = l.listen
	usesTLS := o.UsesTLS
	if usesTLS == nil {
		usesTLS = trust.AgentUsesTLS
	}
	join := func(ctx context.Context, csr []byte) (trust.Welcome, error) {
		return joinAny(ctx, o.Join, token, csr, o.Log)
	}
	if !usesTLS(l.advertised) {
		if trust.AgentUsesTLS(net.JoinHostPort(o.Host, "0")) {
			o.Log.Warn("servers on other machines cannot reach this agent's leases and logs", "listen", cfg.Listen, "host", o.Host)
		}
		w, err := join(ctx, nil)
		return w, idle, err
	}
	id, err := trust.OpenIdentity(filepath.Join(o.DataDir, "tls"), o.Node, l.hosts, token)
	if err != nil {
		return trust.Welcome{}, idle, err
	}
	w, err := id.Enrol(ctx, join)
	if err != nil {
		return w, idle, err
	}
	if cfg.TLS, err = id.TLS(); err != nil {
		return w, idle, err
	}
	cfg.CheckBearer = id.CheckBearer
	once := func(ctx context.Context, csr []byte) (trust.Welcome, error) { return joinOnce(ctx, o.Join, token, csr) }
	return w, func(ctx context.Context) { id.Renew(ctx, once, o.Log) }, nil
}

// joinAny asks the servers again and again, until one lets the agent in, or
// says that it never will.
func joinAny(ctx context.Context, addrs []string, t trust.Token, csr []byte, log *slog.Logger) (trust.Welcome, error) {
	tick := time.NewTicker(joinRetry)
	defer tick.Stop()
	for {
		w, err := joinOnce(ctx, addrs, t, csr)
		if err == nil || neverJoins(err) {
			return w, err
		}
		log.Warn("cannot join yet", "error", err)
		select {
		case <-ctx.Done():
			return trust.Welcome{}, ctx.Err()
		case <-tick.C:
		}
	}
}

// joinOnce asks each server in turn until one lets the agent in or says that it
// never will.
func joinOnce(ctx context.Context, addrs []string, t trust.Token, csr []byte) (trust.Welcome, error) {
	var errs []error
	for _, addr := range addrs {
		w, err := trust.Join(ctx, addr, t, csr)
		if err == nil || neverJoins(err) {
			return w, err
		}
		errs = append(errs, err)
	}
	return trust.Welcome{}, errors.Join(errs...)
}

// neverJoins says whether another try would end the same way.
func neverJoins(err error) bool {
	for _, final := range []error{trust.ErrRefused, trust.ErrWrongCluster, trust.ErrServerName, trust.ErrNotServer, trust.ErrRequest} {
		if errors.Is(err, final) {
			return true
		}
	}
	return false
}

// pinnedDialer dials servers by their addresses, each under its own name.
type pinnedDialer struct {
	addrs func() []string
	token trust.Token
}

// Dial implements agent.Dialer.
func (d *pinnedDialer) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	var errs []error
	for _, addr := range d.addrs() {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			errs = append(errs, fmt.Errorf("the control port %q must be host:port: %w", addr, err))
			continue
		}
		one := agent.HTTPDialer{Addrs: func() []string { return []string{addr} }, TLS: trust.ClientTLS(d.token, host), Bearer: d.token.Reveal()}
		stream, err := one.Dial(ctx)
		if err == nil {
			return stream, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
