package relay

import (
	"errors"
	"fmt"
	"iter"
	"time"
)

// Errors by stage. Each is wrapped with what was being done.
var (
	// ErrConnect: no connection, so the engine has not seen the request.
	ErrConnect = errors.New("relay: cannot connect to the engine")
	// ErrLost: the connection broke before the answer was complete.
	ErrLost = errors.New("relay: the connection to the engine broke")
	// ErrFirstByte: no byte of the answer's body came within FirstByteTimeout.
	ErrFirstByte = errors.New("relay: the engine did not begin to answer in time")
	// ErrIdle: the answer paused for longer than IdleTimeout.
	ErrIdle = errors.New("relay: the engine stopped in the middle of its answer")
	// ErrProtocol: the answer is not HTTP as this package accepts it.
	ErrProtocol = errors.New("relay: the engine's answer is malformed")
	// ErrCancelled: Cancel was called.
	ErrCancelled = errors.New("relay: cancelled")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("relay: the client is closed")
)

// Limits that are not settings.
const (
	// MaxHeadBytes bounds an answer's status line and headers.
	MaxHeadBytes = 16 << 10
	// MaxHeaders bounds their number.
	MaxHeaders = 100
	// maxInterim bounds the 1xx answers before the real one.
	maxInterim = 8
	// maxChunkLine bounds a chunk's size line, extensions included, and maxTrailerBytes all trailers.
	maxChunkLine    = 256
	maxTrailerBytes = 8 << 10
	// slimHead is the largest head that is kept in a buffer of its own while the body goes on.
	slimHead = 1 << 10
	// copyBelow: requests up to this size go out in one write from one buffer; larger ones are gathered by the kernel.
	copyBelow = MaxHeadBytes
)

// Config holds the client's settings. Start from Default.
type Config struct {
	// ConnectTimeout bounds the opening of a connection.
	ConnectTimeout time.Duration
	// WriteTimeout bounds the sending of a request.
	WriteTimeout time.Duration
	// FirstByteTimeout bounds the time to the first byte of the answer's body, prefill and all. IdleTimeout bounds the pause between two pieces after that; it fires up to an eighth late.
	FirstByteTimeout time.Duration
	IdleTimeout      time.Duration
	// MaxIdlePerAddr bounds the idle connections kept for one address; further ones are closed after use.
	MaxIdlePerAddr int
	// MaxAddrs bounds the addresses with idle connections; connections to further ones are closed after use.
	MaxAddrs int
	// KeepIdle bounds how long a connection waits unused. Engines close theirs after a time of their own, often 5 s;
	// that is noticed, so this need not be shorter.
	KeepIdle time.Duration
	// Addrs are the addresses that requests may go to, as Request.Addr names them; idle connections to others are closed
	// within seconds. Asked by a goroutine of the client's. nil: all of them.
	Addrs iter.Seq[string]
}

// Default returns settings for engines in the same cluster.
func Default() Config {
	return Config{
		ConnectTimeout:   2 * time.Second,
		WriteTimeout:     30 * time.Second,
		FirstByteTimeout: 10 * time.Minute,
		IdleTimeout:      time.Minute,
		MaxIdlePerAddr:   256,
		MaxAddrs:         4096,
		KeepIdle:         time.Minute,
	}
}

// Validate returns nil, or an error that names the setting and what it must be.
func (c Config) Validate() error {
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"ConnectTimeout", c.ConnectTimeout}, {"WriteTimeout", c.WriteTimeout}, {"FirstByteTimeout", c.FirstByteTimeout},
		{"IdleTimeout", c.IdleTimeout}, {"KeepIdle", c.KeepIdle},
	} {
		if d.d <= 0 {
			return fmt.Errorf("relay: %s is %v; it must be above 0", d.name, d.d)
		}
	}
	if c.MaxIdlePerAddr < 0 || c.MaxAddrs < 1 {
		return fmt.Errorf("relay: MaxIdlePerAddr is %d and MaxAddrs %d; they must be at least 0 and 1", c.MaxIdlePerAddr, c.MaxAddrs)
	}
	return nil
}

// Request is what to send. Do does not keep it.
type Request struct {
	// Addr is host:port, optionally with http:// in front and a path behind that is put before Path.
	Addr string
	// Method and Path (with query) go out as they are; the caller has checked them.
	Method, Path string
	// Header holds whole header lines, each with CRLF, without Host, Content-Length, Transfer-Encoding and Connection.
	Header []byte
	// Body is sent piece after piece with a Content-Length; it is not copied when large.
	Body [][]byte
	// Deadline ends the waiting for any byte of the answer; the zero time leaves that to the client's limits.
	Deadline time.Time
}
