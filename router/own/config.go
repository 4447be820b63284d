package own

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice/router"
)

// Errors of Acquire beside router.ErrUnknownModel and *router.Refusal.
var (
	ErrGone   = errors.New("own: the client left while its request waited")
	ErrClosed = errors.New("own: the router is closed")
)

// ErrConfig is wrapped by every error of Config.Validate.
var ErrConfig = errors.New("own: config out of range")

// Leaser speaks to the agents. Renew asks for a lease or prolongs it, ttlMs counted at the agent from when it got the
// request. An error that wraps router.ErrLeaseRefused means that the engine is about to sleep or stop; it is then asked
// again while requests are in flight, so the agent can tell a draining holder from a dead one. Any other error leaves
// the lease to run out. Return gives it back, with nothing in flight. Called from several goroutines; the context ends
// each call.
type Leaser interface {
	Renew(ctx context.Context, r router.Replica) (ttlMs int64, err error)
	Return(ctx context.Context, r router.Replica) error
}

// Config of a Router. Start from Default.
type Config struct {
	NowMs  func() int64                     // fleet time; nil: the process's monotone clock on top of Unix time
	Leaser Leaser                           // nil: replicas with an AgentAddr are served without a lease
	Coming func(model string) router.Coming // capacity on its way, for Retry-After; nil: none is known of. Must not block

	QueueLimit  int     // waiting requests of one model
	MaxWaitMs   int64   // in the queue, for requests without an earlier deadline
	EmptyWaitMs int64   // for a replica, while the model has none at all; 0: refused at once
	Reserve     float64 // share of a model's slots that batch leaves free for others; standard leaves half of it

	EjectAfter int   // connect failures in a row
	EjectMs    int64 // the first time; doubled each time after
	MaxEjectMs int64
	BusyMs     int64 // how long a replica that said 429 or 503 is left alone; doubled in a row
	MaxBusyMs  int64 // bound of that, and of the engine's own Retry-After

	PrefixEntries    int // of the prefix index, all models together
	PrefixPerReplica int // blocks one replica is believed to hold; 0: no limit of its own
}

// Default returns the usual limits.
func Default() Config {
	return Config{
		QueueLimit:  1024,   // 64 slots' worth of 16: more would only wait to be refused
		MaxWaitMs:   60_000, // clients' own timeouts are about that
		EmptyWaitMs: 30_000, // a sleeping replica wakes in seconds, a cold one may take longer than a client waits
		Reserve:     0.125,  // 2 of 16 slots: one interactive request gets in at once
		EjectAfter:  3, EjectMs: 500, MaxEjectMs: 30_000,
		BusyMs: 100, MaxBusyMs: 1000, // busy is not broken: a second after the burst it is asked again
		PrefixEntries: 1 << 17,
	}
}

// Validate returns nil, or an error that wraps ErrConfig and names the field.
func (c Config) Validate() error {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("%w: %s %v; want %s", ErrConfig, field, value, want)
	}
	switch {
	case c.QueueLimit < 1:
		return bad("QueueLimit", c.QueueLimit, "at least 1")
	case c.MaxWaitMs < 1:
		return bad("MaxWaitMs", c.MaxWaitMs, "at least 1")
	case c.EmptyWaitMs < 0:
		return bad("EmptyWaitMs", c.EmptyWaitMs, "0 or more")
	case !(c.Reserve >= 0 && c.Reserve <= 0.9):
		return bad("Reserve", c.Reserve, "0 to 0.9")
	case c.EjectAfter < 1:
		return bad("EjectAfter", c.EjectAfter, "at least 1")
	case c.EjectMs < 1 || c.MaxEjectMs < c.EjectMs:
		return bad("EjectMs, MaxEjectMs", [2]int64{c.EjectMs, c.MaxEjectMs}, "1 or more, in order")
	case c.BusyMs < 1 || c.MaxBusyMs < c.BusyMs:
		return bad("BusyMs, MaxBusyMs", [2]int64{c.BusyMs, c.MaxBusyMs}, "1 or more, in order")
	case c.PrefixEntries < 1:
		return bad("PrefixEntries", c.PrefixEntries, "at least 1")
	}
	return nil
}

// processClock is fleet time of this process: Unix milliseconds at the start plus what has passed since, monotone.
func processClock() func() int64 {
	start := time.Now()
	unixMs := start.UnixMilli()
	return func() int64 { return unixMs + time.Since(start).Milliseconds() }
}
