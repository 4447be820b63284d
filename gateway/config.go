package gateway

import (
	"errors"
	"fmt"
	"time"

	"sluice/gateway/relay"
	"sluice/slo"
)

// ErrConfig is wrapped by every error of Config.Validate.
var ErrConfig = errors.New("gateway: setting out of range")

// Config holds the data port's settings. Start from Default. Times are milliseconds.
type Config struct {
	// Addr is where ListenAndServe listens, host:port.
	Addr string `json:"addr"`

	// MaxBodyBytes bounds a request's body; beyond it the answer is 413. An image of 20 MB as a data URL needs 27.
	MaxBodyBytes int `json:"maxBodyBytes"`
	// MaxBodiesBytes bounds what the bodies above 64 KiB of all requests hold together; beyond it the answer is 503. The
	// default has room for 150 images of 20 MB.
	MaxBodiesBytes int64 `json:"maxBodiesBytes"`
	// MaxHeaderBytes bounds a request's line and headers; each connection holds a buffer of this size.
	MaxHeaderBytes int `json:"maxHeaderBytes"`
	// MaxConns bounds client connections; further ones are answered 503.
	MaxConns int `json:"maxConns"`
	// ReadTimeoutMs bounds the reading of one request, ClientIdleMs the wait for the next on a connection, and
	// ClientWriteMs how long a client may leave a write standing before it is cut.
	ReadTimeoutMs int64 `json:"readTimeoutMs"`
	ClientIdleMs  int64 `json:"clientIdleMs"`
	ClientWriteMs int64 `json:"clientWriteMs"`

	// RequestTimeoutMs bounds a request from arrival to last byte. x-request-timeout-ms may shorten it.
	RequestTimeoutMs int64 `json:"requestTimeoutMs"`
	// FirstByteMs bounds one try up to the first byte of the body; StreamIdleMs the pauses after that.
	FirstByteMs  int64 `json:"firstByteMs"`
	StreamIdleMs int64 `json:"streamIdleMs"`
	// ConnectMs bounds the opening of a connection to an engine; KeepIdleMs how long an unused one is kept, and
	// MaxIdlePerReplica how many of them.
	ConnectMs         int64 `json:"connectMs"`
	KeepIdleMs        int64 `json:"keepIdleMs"`
	MaxIdlePerReplica int   `json:"maxIdlePerReplica"`

	// MaxTries bounds the replicas tried for one request. Retries spend a budget that each request raises by
	// RetryRatio, up to RetryBurst.
	MaxTries   int     `json:"maxTries"`
	RetryRatio float64 `json:"retryRatio"`
	RetryBurst int     `json:"retryBurst"`
	// HedgeRatio bounds the interactive requests that get a second try beside the first, whose beginning is late, as a
	// share of all interactive ones; 0 switches them off.
	HedgeRatio float64 `json:"hedgeRatio"`

	// DefaultClass is the class of requests that name none in x-sluice-class; a key's ceiling bounds both.
	DefaultClass slo.Class `json:"defaultClass"`
	// PrefixBlockBytes is the block size of prompt hashes for cache affinity; 0 switches them off.
	PrefixBlockBytes int `json:"prefixBlockBytes"`
	// ReadinessLagMs is how long a shutdown goes on accepting after /readyz says no, so that balancers can notice.
	ReadinessLagMs int64 `json:"readinessLagMs"`
	// CORSOrigins are the sites whose pages may ask from a browser, as its Origin header names them: https://app.example;
	// * for all. None: no answer says a word about CORS.
	CORSOrigins []string `json:"corsOrigins"`
}

// Default returns settings for a gateway inside a cluster.
func Default() Config {
	return Config{
		Addr:         "127.0.0.1:8000",
		MaxBodyBytes: 32 << 20, MaxBodiesBytes: 4 << 30, MaxHeaderBytes: 8 << 10, MaxConns: 1 << 16,
		ReadTimeoutMs: 60_000, ClientIdleMs: 120_000, ClientWriteMs: 30_000,
		RequestTimeoutMs: 600_000, FirstByteMs: 600_000, StreamIdleMs: 60_000,
		ConnectMs: 2_000, KeepIdleMs: 60_000, MaxIdlePerReplica: 256,
		MaxTries: 3, RetryRatio: 0.2, RetryBurst: 256, HedgeRatio: 0.05,
		DefaultClass:     slo.Standard,
		PrefixBlockBytes: 256,
	}
}

// Validate returns nil, or an error that wraps ErrConfig and says what to write instead.
func (c Config) Validate() error {
	for _, r := range []struct {
		name     string
		v        int64
		min, max int64
	}{
		{"maxBodyBytes", int64(c.MaxBodyBytes), 1 << 10, 1 << 30},
		{"maxBodiesBytes", c.MaxBodiesBytes, int64(c.MaxBodyBytes), 1 << 50},
		{"maxHeaderBytes", int64(c.MaxHeaderBytes), 1 << 10, 1 << 20},
		{"maxConns", int64(c.MaxConns), 1, 1 << 22},
		{"readTimeoutMs", c.ReadTimeoutMs, 1, 1 << 31},
		{"clientIdleMs", c.ClientIdleMs, 1, 1 << 31},
		{"clientWriteMs", c.ClientWriteMs, 1, 1 << 31},
		{"requestTimeoutMs", c.RequestTimeoutMs, 1, 1 << 31},
		{"firstByteMs", c.FirstByteMs, 1, 1 << 31},
		{"streamIdleMs", c.StreamIdleMs, 1, 1 << 31},
		{"connectMs", c.ConnectMs, 1, 1 << 31},
		{"keepIdleMs", c.KeepIdleMs, 1, 1 << 31},
		{"maxIdlePerReplica", int64(c.MaxIdlePerReplica), 0, 1 << 16},
		{"maxTries", int64(c.MaxTries), 1, maxTries},
		{"retryBurst", int64(c.RetryBurst), 0, 1 << 20},
		{"prefixBlockBytes", int64(c.PrefixBlockBytes), 0, 1 << 16},
		{"readinessLagMs", c.ReadinessLagMs, 0, 1 << 31},
	} {
		if r.v < r.min || r.v > r.max {
			return fmt.Errorf("%w: %s is %d; write %d to %d", ErrConfig, r.name, r.v, r.min, r.max)
		}
	}
	if !(c.RetryRatio >= 0 && c.RetryRatio <= 1) {
		return fmt.Errorf("%w: retryRatio is %v; write 0 to 1", ErrConfig, c.RetryRatio)
	}
	if !(c.HedgeRatio >= 0 && c.HedgeRatio <= 1) {
		return fmt.Errorf("%w: hedgeRatio is %v; write 0 to 1", ErrConfig, c.HedgeRatio)
	}
	if err := validOrigins(c.CORSOrigins); err != nil {
		return err
	}
	if !c.DefaultClass.Valid() {
		return fmt.Errorf("%w: defaultClass is %v; write interactive, standard or batch", ErrConfig, c.DefaultClass)
	}
	return nil
}

// maxTries bounds MaxTries: the list of excluded replicas has this much room.
const maxTries = 8

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func (c Config) relay() relay.Config {
	r := relay.Default()
	r.ConnectTimeout, r.FirstByteTimeout, r.IdleTimeout = ms(c.ConnectMs), ms(c.FirstByteMs), ms(c.StreamIdleMs)
	r.KeepIdle, r.MaxIdlePerAddr = ms(c.KeepIdleMs), c.MaxIdlePerReplica
	return r
}
