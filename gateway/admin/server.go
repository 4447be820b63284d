package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// Limits of the control port.
const (
	maxBodyBytes   = 1 << 20  // of a request; more is too_large
	maxHeaderBytes = 32 << 10 // of a request
	maxStreams     = 4096     // agents, followed events and logs at once; one more is busy
	maxEventsPage  = 1000     // in one answer
	maxLogRanks    = 1024     // whose logs are followed at once; the rest is named and left out

	headerTimeout = 10 * time.Second
	bodyTimeout   = 30 * time.Second // to read a request's body
	idleTimeout   = 2 * time.Minute  // of a kept connection
	writeTimeout  = 30 * time.Second // of one write of an answer or of a line of a stream
	submitTimeout = 15 * time.Second // for the log to take a command
	agentTimeout  = 10 * time.Second // to reach an agent for its log
	beatInterval  = 15 * time.Second // an empty line on a quiet stream, so that a dead peer is noticed
)

// Config of a Server.
type Config struct {
	Controller Controller // required
	Auth       Auth       // nil: TokenAuth over Controller
	// Audit gets one JSON line before and one after each change. Required:
	// what cannot be recorded is refused.
	Audit io.Writer
	// Metrics are the process's own; written on /metrics before the gauges of
	// the floor. May be nil.
	Metrics *metrics.Set
	Log     *slog.Logger // nil: discard
	// CAHash is the SHA-256 of the cluster's CA, for new tokens. nil, or an
	// error: this server makes no tokens.
	CAHash func() ([32]byte, error)
	// Agents reaches the agents' listeners for logs. nil: plain HTTP.
	Agents AgentClient
	// Extra are further routes of the control port, by pattern of
	// http.ServeMux ("POST /v1/join"). They see requests before authentication.
	Extra   map[string]http.Handler
	Version string
	// Now is wall time for the audit log; nil: time.Now.
	Now func() time.Time
}

// AgentClient reaches the listener of an agent. The zero value speaks plain
// HTTP to the address the agent gave.
type AgentClient struct {
	Scheme string       // "" means http
	Client *http.Client // nil: one that follows no redirect
}

// Errors of a Server's life.
var (
	ErrConfig = errors.New("admin: configuration")
	ErrInUse  = errors.New("another server answers on this control socket")
)

// Server is the control port. Safe for concurrent use.
type Server struct {
	ctl     Controller
	auth    Auth
	audit   *auditLog
	set     *metrics.Set
	log     *slog.Logger
	caHash  func() ([32]byte, error)
	agents  AgentClient
	version string

	http    *http.Server
	streams chan struct{} // one place a stream
	ctx     context.Context
	stop    context.CancelFunc
	wg      sync.WaitGroup // hijacked connections
}

// New checks the config and builds the routes. It opens nothing.
func New(c Config) (*Server, error) {
	if c.Controller == nil {
		return nil, fmt.Errorf("%w: no Controller", ErrConfig)
	}
	if c.Audit == nil {
		return nil, fmt.Errorf("%w: no Audit writer: every change is recorded", ErrConfig)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Auth == nil {
		c.Auth = TokenAuth{Controller: c.Controller}
	}
	if c.Agents.Scheme == "" {
		c.Agents.Scheme = "http"
	}
	if c.Agents.Client == nil {
		c.Agents.Client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	s := &Server{ctl: c.Controller, auth: c.Auth, audit: &auditLog{w: c.Audit, now: c.Now}, set: c.Metrics, log: c.Log, caHash: c.CAHash,
		agents: c.Agents, version: c.Version, streams: make(chan struct{}, maxStreams)}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.http = &http.Server{Handler: s.guard(s.routes(c.Extra)), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes, ConnContext: markLocal, ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return s.ctx }}
	return s, nil
}

// Handler is the whole control port, for tests and for other listeners. A
// request that did not come through Serve on a Unix socket needs a token.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Serve answers on ln until Shutdown or Close; several listeners may be served
// at once. It returns nil after Shutdown. It refuses a TCP listener without TLS.
func (s *Server) Serve(ln net.Listener) error {
	if t, ok := ln.(*net.TCPListener); ok {
		return fmt.Errorf("%w: the control port on %s needs TLS: wrap the listener with tls.NewListener", ErrConfig, t.Addr())
	}
	if err := s.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("control port on %s: %w", ln.Addr(), err)
	}
	return nil
}

// Shutdown ends streams, lets other requests finish until ctx ends, then cuts them.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	err := s.http.Shutdown(ctx)
	if err != nil {
		s.http.Close()
	}
	s.wg.Wait()
	return err
}

// routes lists every path of the control port.
func (s *Server) routes(extra map[string]http.Handler) http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range extra {
		mux.Handle(pattern, h)
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /{$}", dashboard)
	op := func(pattern string, h handler) { mux.Handle(pattern, s.as(RoleOperator, h)) }

	op("GET /v1/status", s.getStatus)
	op("GET /v1/books", s.getBooks)
	op("GET /v1/why/{object...}", s.getWhy)
	op("GET /v1/events", s.getEvents)
	op("GET /v1/models", s.listModels)
	op("GET /v1/models/{name}", s.getModel)
	op("PUT /v1/models/{name}", s.putModel)
	op("DELETE /v1/models/{name}", s.deleteModel)
	op("GET /v1/tenants", s.listTenants)
	op("GET /v1/tenants/{name}", s.getTenant)
	op("PUT /v1/tenants/{name}", s.putTenant)
	op("DELETE /v1/tenants/{name}", s.deleteTenant)
	op("PUT /v1/tenants/{name}/limits", s.limitTenant)
	op("GET /v1/usage", s.getUsage)
	op("GET /v1/keys", s.listKeys)
	op("POST /v1/keys", s.createKey)
	op("PUT /v1/keys/{name}/limits", s.limitKey)
	op("DELETE /v1/keys/{name}", s.deleteKey)
	op("GET /v1/tokens", s.listTokens)
	op("POST /v1/tokens", s.createToken)
	op("DELETE /v1/tokens/{name}", s.deleteToken)
	op("GET /v1/jobs", s.listJobs)
	op("POST /v1/jobs", s.submitJob)
	op("GET /v1/jobs/{name}", s.getJob)
	op("GET /v1/jobs/{name}/log", s.getJobLog)
	op("POST /v1/jobs/{name}/pause", s.wantJob("paused"))
	op("POST /v1/jobs/{name}/resume", s.wantJob(""))
	op("POST /v1/jobs/{name}/cancel", s.wantJob("cancelled"))
	op("GET /v1/nodes", s.listNodes)
	op("GET /v1/nodes/{name}", s.getNode)
	op("POST /v1/nodes/{name}/cordon", s.markNode(true, false))
	op("POST /v1/nodes/{name}/drain", s.markNode(true, true))
	op("POST /v1/nodes/{name}/uncordon", s.markNode(false, false))
	op("GET /v1/gpus", s.listGPUs)
	op("GET /v1/replicas", s.listReplicas)
	op("GET /metrics", s.getMetrics)
	op("/debug/pprof/", s.pprof)
	mux.Handle("POST /v1/agents/stream", s.as(RoleAgent, s.agentStream))
	return named(mux)
}

// named answers what the mux does not know in the shape of all other errors.
func named(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		// The mux's own answer tells 405 from 404 and sets Allow.
		probe := &headOnly{header: http.Header{}}
		mux.ServeHTTP(probe, r)
		switch allow := probe.header.Get("Allow"); {
		case probe.status == http.StatusMethodNotAllowed:
			w.Header().Set("Allow", allow)
			writeError(w, r, &Error{Status: probe.status, Code: "method_not_allowed", Message: "this path does not take " + r.Method, Remedy: "use " + allow})
		default:
			writeError(w, r, &Error{Status: http.StatusNotFound, Code: "not_found", Message: "there is no such path", Remedy: "see docs/control-api.md"})
		}
	})
}

type headOnly struct {
	header http.Header
	status int
}

func (h *headOnly) Header() http.Header         { return h.header }
func (h *headOnly) Write(b []byte) (int, error) { return len(b), nil }
func (h *headOnly) WriteHeader(status int)      { h.status = status }

// guard gives each request an id and answers a panic without its details.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := randomID()
		w.Header().Set("X-Request-Id", id)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		r = r.WithContext(context.WithValue(r.Context(), requestIDKey{}, id))
		defer func() {
			if p := recover(); p != nil {
				s.log.Error("control port: panic", "requestId", id, "path", r.URL.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				writeError(w, r, errInternal)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// handler answers with an error, or has answered.
type handler func(w http.ResponseWriter, r *http.Request, who Actor) error

// as authenticates and lets only the role (and operators) through.
func (s *Server) as(role Role, h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := s.auth.Check(r)
		if err == nil && who.Role != role && who.Role != RoleOperator {
			err = fmt.Errorf("%w: the path needs role %s", ErrForbidden, role)
		}
		if err != nil {
			s.audit.denied(r, who)
			writeError(w, r, err)
			return
		}
		// Deadlines hold for one request; streams lift them.
		rc := http.NewResponseController(w)
		rc.SetReadDeadline(time.Now().Add(bodyTimeout))
		rc.SetWriteDeadline(time.Now().Add(bodyTimeout + submitTimeout + writeTimeout))
		r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
		if err := h(w, r, who); err != nil {
			if e := shape(err); e.Status >= http.StatusInternalServerError {
				s.log.Error("control port: request failed", "requestId", requestID(r), "path", r.URL.Path, "err", err)
			}
			writeError(w, r, err)
		}
	})
}
