package gateway

import (
	"log/slog"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"sluice/gateway/quota"
	"sluice/gateway/sink"
	"sluice/router"
	"sluice/router/own"
	"sluice/slo"
)

// Router chooses replicas. *own.Router fits through FromOwn. Safe for concurrent use.
type Router interface {
	// Acquire picks a replica and charges it to t, or waits for one until gone is closed. t is the caller's, and free. On
	// an error it holds nothing: router.ErrUnknownModel, *router.Refusal, own.ErrGone.
	Acquire(t *own.Ticket, req *router.Request, gone <-chan struct{}) error
	// Table is what models there are; nil before the first one.
	Table() *router.Table
}

// FromOwn makes a Router of r. table returns the table that r was given last.
func FromOwn(r *own.Router, table func() *router.Table) Router { return ownRouter{r, table} }

type ownRouter struct {
	r     *own.Router
	table func() *router.Table
}

func (o ownRouter) Acquire(t *own.Ticket, req *router.Request, gone <-chan struct{}) error {
	return o.r.AcquireInto(t, req, gone)
}

func (o ownRouter) Table() *router.Table { return o.table() }

// Keys knows the keys of tenants. Safe for concurrent use; it must not block.
type Keys interface {
	// Lookup finds a key by the SHA-256 of its secret in lower-case hexadecimal. secretHash is not kept.
	Lookup(secretHash []byte) (Key, bool)
	// Empty reports that there are no keys at all: then whoever reaches the (loopback) listener may do everything.
	Empty() bool
}

// Key is what a secret entitles to.
type Key struct {
	ID     string // names the key in limits; never the secret
	Tenant string
	// Models are the names or aliases it may use; empty allows all.
	Models []string
	// ClassCeiling is the most urgent class it may use: asking for more gets this one.
	ClassCeiling slo.Class
	Limits       Limits
	// TenantLimits bound all keys of the tenant together; they are the same in each of them.
	TenantLimits Limits
	// TenantWeight is the tenant's share in queues; 0 reads as 1.
	TenantWeight float64
}

// Limits bound what a key or a tenant may use. 0 means no limit.
type Limits = quota.Limits

// Observer hears of every request to a known model: once when it arrived, refused or not, once when it ended. Called
// from many goroutines; it must not block.
type Observer interface {
	Arrived(model string, class slo.Class, nowMs int64)
	Finished(slo.Sample)
}

// Deps is what the server works with. Router is required.
type Deps struct {
	Router   Router
	Keys     Keys         // nil: no keys
	Observer Observer     // nil: nobody listens
	NowMs    func() int64 // fleet time; nil: Unix milliseconds at the start plus monotone time since
	Metrics  *metrics.Set // nil: a set of its own
	Log      *slog.Logger // nil: discarded. Never gets prompts, keys or answers
	Ready    func() bool  // more conditions for /readyz; nil: none
	// UpstreamAuth returns the Authorization header for a replica, empty for none; nil: none for any. One with a control
	// character is not sent, and the engine will say what it misses.
	UpstreamAuth func(replicaID string) string
	Records      *sink.Sink // access log and traces; nil: none. The caller closes it after Shutdown
}

type noKeys struct{}

func (noKeys) Lookup([]byte) (Key, bool) { return Key{}, false }
func (noKeys) Empty() bool               { return true }

type noObserver struct{}

func (noObserver) Arrived(string, slo.Class, int64) {}
func (noObserver) Finished(slo.Sample)              {}

func (d *Deps) fill() {
	if d.Keys == nil {
		d.Keys = noKeys{}
	}
	if d.Observer == nil {
		d.Observer = noObserver{}
	}
	if d.NowMs == nil {
		start := time.Now()
		unixMs := start.UnixMilli()
		d.NowMs = func() int64 { return unixMs + time.Since(start).Milliseconds() }
	}
	if d.Metrics == nil {
		d.Metrics = metrics.NewSet()
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.UpstreamAuth == nil {
		d.UpstreamAuth = func(string) string { return "" }
	}
}
