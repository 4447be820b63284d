package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

// logFlags are the flags of every long-running role.
type logFlags struct {
	level string
	file  string
}

func (l *logFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.level, "log-level", "info", "debug, info, warn or error")
	cmd.Flags().StringVar(&l.file, "log-file", "", "write the log to this file instead of standard error")
}

// open returns the process's logger. The file, if any, stays open until the
// process ends.
func (l *logFlags) open() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: must be debug, info, warn or error", l.level)
	}
	out := os.Stderr
	if l.file != "" {
		f, err := os.OpenFile(l.file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open the log file: %w", err)
		}
		out = f
	}
	// Whoever reads our output may go; by default that would end the process. Not ignored, which holders would inherit.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level})), nil
}

// untilSignal is a context that ends with SIGINT or SIGTERM. After it, call letSignalsEnd.
func untilSignal(parent context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(parent, syscall.SIGINT, syscall.SIGTERM)
}

// letSignalsEnd makes the next signal end the process at once, whoever caught it before: who sends a second one does not
// want to wait for what the first one began.
func letSignalsEnd() { signal.Reset(syscall.SIGINT, syscall.SIGTERM) }

func newServeCmd() *cobra.Command {
	var o serverOptions
	var logs logFlags
	var records recordFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the server: gateway, controller and control port",
		Long: `Run the server: the OpenAI-compatible gateway on --listen, the controller, and
the control port. Without --control the control port is only the Unix socket
DATA/control.sock. With it, it is also TLS on that address; the certificate and
the cluster's authority are made on first start in DATA/tls, and agents on other
machines come in with a token from "sluice token create".`,
		Example: `  sluice serve --data /var/lib/sluice --listen 127.0.0.1:8080
  sluice serve --data /var/lib/sluice --listen 127.0.0.1:8080 --control 10.0.0.1:7070 --gossip 10.0.0.1:7946`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logs.open()
			if err != nil {
				return err
			}
			o.Log = log
			if o.Records, err = records.config(os.Getenv, o.Node, log); err != nil {
				return err
			}
			return serveUntil(cmd.Context(), o)
		},
	}
	addServerFlags(cmd, &o)
	records.add(cmd)
	logs.add(cmd)
	return cmd
}

func addServerFlags(cmd *cobra.Command, o *serverOptions) {
	f := cmd.Flags()
	f.StringVar(&o.DataDir, "data", defaultDataDir(), "directory for facts, keys and logs")
	f.StringVar(&o.Node, "node", hostName(), "name of this server")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8080", "data port for applications (loopback until keys exist)")
	f.StringArrayVar(&o.CORSOrigins, "cors-origin", nil, "let browser pages of this origin ask, as https://app.example; may be given again")
	f.StringVar(&o.Control, "control", "", "TCP control port for agents and clients on other machines (TLS)")
	f.StringSliceVar(&o.Hosts, "hosts", nil, "further names and addresses for the control port's certificate")
	f.StringVar(&o.Gossip, "gossip", "", "address to gossip on, host:port")
	f.StringSliceVar(&o.Seeds, "seeds", nil, "gossip addresses of other servers")
	f.DurationVar(&o.Grace, "grace", defaultGrace, "how long requests under way may take to finish when the server stops; a second signal ends it at once")
	f.Float64Var(&o.Speed, "speed", 1, "how many times faster than real the load is played")
	f.BoolVar(&o.Strict, "strict", false, "verify every invariant after every change")
	f.Lookup("speed").Hidden = true
	f.Lookup("strict").Hidden = true
}

// serveUntil runs a server until a signal or until a part of it fails.
func serveUntil(parent context.Context, o serverOptions) error {
	ctx, cancel := untilSignal(parent)
	defer cancel()
	s, err := startServer(o)
	if err != nil {
		return err
	}
	defer s.close()
	o.Log.Info("serving", "data port", s.opts.Listen, "control socket", socketPath(o.DataDir), "control port", s.opts.Control)
	select {
	case <-ctx.Done():
		letSignalsEnd()
		o.Log.Info("stopping; holders go on")
		return nil
	case err := <-s.failed:
		return err
	}
}

func hostName() string {
	h, err := os.Hostname()
	if err != nil || h == "" {
		return "node"
	}
	return h
}

func agentDir(dataDir string) string { return filepath.Join(dataDir, "node") }
