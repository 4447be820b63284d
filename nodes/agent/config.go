package agent

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"time"
)

// Limits and periods. Periods are milliseconds of real time.
const (
	// MaxHolders bounds the table, holders that are gone but not forgotten
	// included; the next order is ErrFull.
	MaxHolders = 1024
	// MaxLineBytes bounds one line of the stream, either way; a longer one ends
	// the connection.
	MaxLineBytes = 1 << 20
	// MaxAnswers is how many earlier answers are kept by order id, the oldest
	// dropped first.
	MaxAnswers = 1024
	// MaxLeases bounds the gateways with a lease on one replica; the next is
	// refused.
	MaxLeases = 1024
	// maxEvents is the owner's inbox; a worker waits while it is full.
	maxEvents = 1024
	// maxOutbox is the frames waiting for the stream; one more ends the
	// connection, and the next hello tells everything again.
	maxOutbox = 4096

	// LeaseTTLMs is how long a gateway may use a replica without asking again.
	LeaseTTLMs = 2000
	// DrainMs is how long a sleep or stop waits for leases that are renewed
	// because of requests in flight.
	DrainMs = 600_000
	// DefaultGraceMs is the time between a stop signal and the kill when the
	// order names none.
	DefaultGraceMs = 10_000

	readingsMs = 1000
)

// Config is what an agent needs to run. Start from Default.
type Config struct {
	// NodeID names the node in the fleet: letters, digits, '.', '_', '-'.
	NodeID string
	// DataDir is the agent's own directory, on a local disk; made if missing.
	DataDir string
	// Host is the address at which holders are reached. Default 127.0.0.1.
	Host string
	// Listen is host:port of the agent's own listener (leases, logs). Beyond
	// loopback it needs TLS and CheckBearer. Default 127.0.0.1:0.
	Listen string
	// Rack and Block place the node; empty means unknown.
	Rack, Block string
	// Devices are the node's GPUs. Required.
	Devices Devices
	// Dial connects to the leader. Required.
	Dial Dialer
	// HoldCommand runs the shim; "--dir DIR" is appended. Required.
	HoldCommand []string
	// CheckpointRoot, if set, is the only place under which the checkpoint
	// directories of gangs may be.
	CheckpointRoot string
	// Version is told to the controller.
	Version string
	// Log gets warnings and events. Default discards.
	Log *slog.Logger
	// TLS serves the listener; nil is plain HTTP, loopback only.
	TLS *tls.Config
	// CheckBearer, if set, judges the Authorization header of each request to
	// the listener.
	CheckBearer func(header string) bool
	// PortMin and PortMax bound the ports given to holders, ends included.
	// The default stays below the usual ephemeral range, whose ports may be
	// taken by any outgoing connection between the pick and the bind.
	PortMin, PortMax int
	// LeaderlessMs is how long gangs go on without any leader. Default 600,000.
	LeaderlessMs int64
	// LogMaxBytes bounds each of a holder's two log files. Default 8 MiB.
	LogMaxBytes int64
	// NoCgroup uses environment marks even where cgroups could be written.
	NoCgroup bool
	// NowMs gives fleet time. Default: the system's time at the start, counted
	// on monotonically.
	NowMs func() int64
}

// Default returns a Config with everything that has a default.
func Default() Config {
	start := time.Now()
	base := start.UnixMilli()
	return Config{
		Host:         "127.0.0.1",
		Listen:       "127.0.0.1:0",
		Log:          slog.New(slog.DiscardHandler),
		PortMin:      21000,
		PortMax:      30999,
		LeaderlessMs: 600_000,
		LogMaxBytes:  8 << 20,
		NowMs:        func() int64 { return base + time.Since(start).Milliseconds() },
	}
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Validate returns the first rule that is broken, wrapped in ErrConfig.
func (c *Config) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
	}
	switch {
	case !nameForm.MatchString(c.NodeID):
		return bad("node id %q must be letters, digits, '.', '_' or '-', and start with a letter or digit", c.NodeID)
	case c.DataDir == "":
		return bad("a data directory is needed")
	case c.Host == "":
		return bad("host is needed: the address at which holders are reached")
	case c.Devices == nil:
		return bad("devices are needed")
	case c.Dial == nil:
		return bad("a dialer is needed")
	case len(c.HoldCommand) == 0:
		return bad("the hold command is needed")
	case c.CheckpointRoot != "" && !filepath.IsAbs(c.CheckpointRoot):
		return bad("checkpoint root %q must be an absolute path", c.CheckpointRoot)
	case c.PortMin < 1 || c.PortMax > 65535 || c.PortMin > c.PortMax:
		return bad("ports %d to %d must lie in 1 to 65535", c.PortMin, c.PortMax)
	case c.LeaderlessMs <= 0:
		return bad("leaderlessMs must be above 0, not %d", c.LeaderlessMs)
	case c.LogMaxBytes <= 0:
		return bad("logMaxBytes must be above 0, not %d", c.LogMaxBytes)
	case c.Log == nil || c.NowMs == nil:
		return bad("log and clock are needed; start from agent.Default")
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return bad("listen %q must be host:port", c.Listen)
	}
	if !loopback(host) && (c.TLS == nil || c.CheckBearer == nil) {
		return fmt.Errorf("%w: %s", ErrInsecure, c.Listen)
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
