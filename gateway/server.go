package gateway

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"

	"sluice/gateway/hangup"
	"sluice/gateway/relay"
)

// Errors of the start.
var (
	// ErrOpenWithoutKeys: the listener can be reached from other machines, and there are no keys.
	ErrOpenWithoutKeys = errors.New("gateway: without keys the data port must be on a loopback address; create a key or listen on 127.0.0.1")
	// ErrServing: Serve was called twice.
	ErrServing = errors.New("gateway: already serving")
)

// Server is the data port. Make it with New, run it with Serve, end it with Shutdown. Safe for concurrent use.
type Server struct {
	cfg      Config
	deps     Deps
	http     fasthttp.Server
	client   *relay.Client
	conns    connSet
	bodies   bodies
	watch    *hangup.Watcher
	ledgers  ledgers
	budget   *budget
	hedges   *budget
	books    *books
	kept     keptBook
	calls    sync.Pool // of *call
	attempts sync.Pool // of *attempt: second tries
	serving  atomic.Bool
	draining atomic.Bool
	loopback atomic.Bool
	ending   sync.Once
	startS   int64 // Unix seconds, for /v1/models
}

// New returns a server that does not listen yet, or an error that names the setting at fault.
func New(cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Router == nil {
		return nil, fmt.Errorf("%w: there is no router", ErrConfig)
	}
	deps.fill()
	s := &Server{cfg: cfg, deps: deps, budget: newBudget(cfg.RetryRatio, cfg.RetryBurst), hedges: emptyBudget(cfg.HedgeRatio, hedgeBurst)}
	s.startS = deps.NowMs() / 1000
	s.conns.conns, s.conns.max = make(map[uint64]*clientConn), cfg.MaxConns
	s.bodies.limit, s.bodies.held = cfg.MaxBodiesBytes, make(map[*fasthttp.RequestHeader]int64)
	s.ledgers.open()
	s.attempts.New = func() any { return new(attempt) }
	s.calls.New = func() any { return newCall(s) }
	s.http = fasthttp.Server{
		Handler:            s.handle,
		ErrorHandler:       s.unreadable,
		ExpectHandler:      s.expect,
		HeaderReceived:     s.bodyLimit,
		Concurrency:        2 * cfg.MaxConns, // never reached: the listener counts, and says so in JSON
		ReadBufferSize:     cfg.MaxHeaderBytes,
		ReadTimeout:        ms(cfg.ReadTimeoutMs),
		IdleTimeout:        ms(cfg.ClientIdleMs),
		MaxRequestBodySize: cfg.MaxBodyBytes,
		// Handlers set the write deadline themselves; see clientConn.
		CloseOnShutdown:              true,
		DisablePreParseMultipartForm: true,
		NoDefaultServerHeader:        true,
		NoDefaultContentType:         true,
		SecureErrorLogMessage:        true,
		Logger:                       quiet{},
	}
	var err error
	rc := cfg.relay()
	rc.Addrs = engineAddrs(deps.Router)
	if s.client, err = relay.New(rc); err != nil {
		return nil, err
	}
	if s.watch, err = hangup.New(); err != nil {
		s.client.Close()
		return nil, err
	}
	s.books = newBooks(deps.Metrics, s)
	return s, nil
}

// engineAddrs yields where the engines of the table are.
func engineAddrs(r Router) iter.Seq[string] {
	return func(yield func(addr string) bool) {
		models := r.Table().Models()
		for i := range models {
			for j := range models[i].Replicas {
				if !yield(models[i].Replicas[j].Addr) {
					return
				}
			}
		}
	}
}

// quiet drops fasthttp's own log lines: they hold bytes of requests.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// Metrics returns the set with the server's metrics.
func (s *Server) Metrics() *metrics.Set { return s.deps.Metrics }

// InFlight returns the requests that are being handled.
func (s *Server) InFlight() int { return int(s.books.inFlight.Load()) }

// ListenAndServe listens on Config.Addr and serves.
func (s *Server) ListenAndServe() error {
	ln, err := net.Listen("tcp", s.cfg.Addr)
	if err != nil {
		return fmt.Errorf("gateway: listen for clients: %w", err)
	}
	return s.Serve(ln)
}

// Serve accepts clients until Shutdown, and owns ln. It returns nil after Shutdown.
func (s *Server) Serve(ln net.Listener) error {
	s.loopback.Store(isLoopback(ln.Addr()))
	if s.deps.Keys.Empty() && !s.loopback.Load() {
		ln.Close()
		return fmt.Errorf("%w (it is %s)", ErrOpenWithoutKeys, ln.Addr())
	}
	if !s.serving.CompareAndSwap(false, true) {
		ln.Close()
		return ErrServing
	}
	if s.draining.Load() {
		ln.Close()
		return nil
	}
	if err := s.http.Serve(s.listen(ln)); err != nil {
		return fmt.Errorf("gateway: serve clients: %w", err)
	}
	return nil
}

func isLoopback(addr net.Addr) bool {
	switch a := addr.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	return false
}

// Steps of a shutdown.
const (
	// halfSentGrace is how long a connection without a whole request may go on.
	halfSentGrace = 500 * time.Millisecond
	// cutGrace is how long handlers get to tell their clients that they were cut.
	cutGrace = time.Second
)

// Shutdown ends the server: /readyz says no, after ReadinessLagMs nothing is accepted any more, idle connections are
// closed, requests under way may finish until ctx ends. What is left then is cut: clients in mid-stream get an error
// event, others an error. It returns nil when nothing had to be cut, else ctx's error. Later calls return nil.
func (s *Server) Shutdown(ctx context.Context) error {
	err := error(nil)
	s.ending.Do(func() { err = s.shutdown(ctx) })
	return err
}

func (s *Server) shutdown(ctx context.Context) error {
	s.draining.Store(true)
	defer s.watch.Close()
	defer s.client.Close()
	wait(ctx, ms(s.cfg.ReadinessLagMs))
	over, giveUp := context.WithCancel(context.Background())
	defer giveUp()
	drained := make(chan error, 1)
	go func() { drained <- s.http.ShutdownWithContext(over) }()
	half := time.NewTimer(halfSentGrace)
	defer half.Stop()
	for cut := (<-chan time.Time)(nil); ; {
		select {
		case err := <-drained:
			if cut != nil {
				return ctx.Err()
			}
			return err
		case <-half.C:
			for _, c := range s.conns.all() {
				if !c.busy.Load() {
					c.Close()
				}
			}
		case <-ended(ctx, cut):
			for _, c := range s.conns.all() {
				c.leave(true)
			}
			cut = time.After(cutGrace)
		case <-cut:
			for _, c := range s.conns.all() {
				c.Close()
			}
			giveUp()
			<-drained
			return ctx.Err()
		}
	}
}

// ended is ctx's channel until the cut has been made.
func ended(ctx context.Context, cut <-chan time.Time) <-chan struct{} {
	if cut != nil {
		return nil
	}
	return ctx.Done()
}

func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// strangerBodyBytes is what is read of a request whose key is no good, for its 401. Beyond it the connection ends, so
// that nobody without a key can fill the memory.
const strangerBodyBytes = 64 << 10

// bodyLimit says how large a body may be, before any of it is read.
func (s *Server) bodyLimit(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	limit := fasthttp.RequestConfig{MaxRequestBodySize: s.cfg.MaxBodyBytes}
	if oddExpectation(h) {
		limit.MaxRequestBodySize = 1 // the client waits for an answer before it sends: 0 would mean no limit
		return limit
	}
	if n := h.ContentLength(); n >= 0 && n <= strangerBodyBytes {
		return limit // the usual case: the key is looked at once, by the handler
	}
	if _, ok := s.keyOf(h, &keyHash{}); !ok {
		limit.MaxRequestBodySize = min(strangerBodyBytes, s.cfg.MaxBodyBytes)
	} else if n := h.ContentLength(); n > 0 && n <= s.cfg.MaxBodyBytes && !s.bodies.reserve(h, int64(n)) {
		limit.MaxRequestBodySize = strangerBodyBytes // less than it is, so it is not read: see unreadable
	}
	return limit
}
