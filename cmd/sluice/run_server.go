package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice/fill"
	"sluice/fill/exec"
	"sluice/gateway"
	"sluice/gateway/admin"
	"sluice/gateway/sink"
	"sluice/nodes"
	"sluice/nodes/gossip"
	"sluice/nodes/registry"
	"sluice/nodes/trust"
	"sluice/router"
	"sluice/router/own"
	"sluice/slo"
)

// serverOptions are what `sluice serve`, `sluice up` and the demo decide about
// a server.
type serverOptions struct {
	DataDir string
	Node    string
	Listen  string // data port
	Control string // TCP control port; empty means the Unix socket only
	Hosts   []string
	Gossip  string
	Seeds   []string
	// Speed is how many times faster than real the load is played (demo).
	Speed  float64
	Strict bool
	// UsesTLS says where agents' listeners speak TLS; nil means
	// trust.AgentUsesTLS.
	UsesTLS func(addr string) bool
	// Records is what is told of requests; CORSOrigins whose pages may send them.
	Records     sink.Config
	CORSOrigins []string
	// Grace is how long requests under way may take when the server stops; 0 reads as defaultGrace, below 0 is refused.
	Grace time.Duration
	Log   *slog.Logger
}

// Periods and limits of a server, in milliseconds.
const (
	tableRefreshMs   = 250
	firstHorizonMs   = 20_000 // until a start was seen: a small engine loads in about that
	afterGraceMs     = 5000   // for what is not a request: the last log lines, agents' streams
	leaseTimeoutMs   = 5000   // of one call to an agent
	tokenLifeMs      = 0      // join tokens made at start do not expire
	historyFileBytes = 64 << 20
	auditFileBytes   = 256 << 20
)

// defaultGrace is what most things that stop a process wait before they kill it.
const defaultGrace = 30 * time.Second

// server is a running server: gateway, controller and control port.
type server struct {
	opts      serverOptions
	ctl       *exec.Controller
	meter     *gateway.Meter
	route     *own.Router
	table     atomic.Pointer[router.Table] // given to the route last
	coming    atomic.Pointer[map[string]router.Coming]
	data      *gateway.Server
	records   *sink.Sink // nil: nothing is told of requests
	admin     *admin.Server
	audit     *lineFile
	history   *history
	authority *trust.Authority
	gossip    *gossip.Gossip
	horizon   *horizons
	keys      *keyTable
	stop      chan struct{}
	wg        sync.WaitGroup
	failed    chan error
}

func socketPath(dataDir string) string { return filepath.Join(dataDir, "control.sock") }

// startServer opens the facts and starts everything; what was started is
// closed again when a later part fails.
func startServer(o serverOptions) (*server, error) {
	if o.Grace < 0 {
		return nil, fmt.Errorf("--grace %s: must not be below 0", o.Grace)
	}
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	s := &server{opts: o, stop: make(chan struct{}), failed: make(chan error, 4)}
	if err := s.start(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *server) start() error {
	o := &s.opts
	speed := max(o.Speed, 1)
	s.meter = gateway.NewMeter(slo.Default().Scale(speed))
	s.horizon = newHorizons(int64(firstHorizonMs / speed))
	checkpoints, err := filepath.Abs(filepath.Join(o.DataDir, "checkpoints"))
	if err != nil {
		return fmt.Errorf("name the checkpoint directory: %w", err)
	}
	s.ctl, err = exec.Open(exec.Config{Dir: filepath.Join(o.DataDir, "raft"), CheckpointRoot: checkpoints,
		Planner: fill.Default().Scale(speed), Headroom: s.meter.Headroom, Strict: o.Strict, Log: o.Log})
	if err != nil {
		return err
	}
	if s.history, err = openHistory(filepath.Join(o.DataDir, "history.jsonl"), historyFileBytes); err != nil {
		return err
	}
	if s.authority, err = trust.Open(filepath.Join(o.DataDir, "tls")); err != nil {
		return err
	}
	cfg := own.Default()
	cfg.NowMs = s.ctl.NowMs
	agents, err := s.agents()
	if err != nil {
		return err
	}
	agents.Timeout = leaseTimeoutMs * time.Millisecond
	cfg.Leaser = &agentLeases{gateway: o.Node, scheme: trust.AgentScheme, client: agents}
	cfg.Coming = s.comingNow
	s.route = own.New(cfg)
	s.keys = &keyTable{}
	s.refresh()
	s.wg.Add(2)
	go s.follow()
	go s.watchHorizon()
	if err := s.startData(); err != nil {
		return err
	}
	return s.startControl()
}

func (s *server) startData() error {
	cfg := gateway.Default()
	cfg.Addr, cfg.CORSOrigins = s.opts.Listen, s.opts.CORSOrigins
	boundConns(&cfg, s.opts.Log)
	err := s.openRecords()
	if err != nil {
		return err
	}
	s.data, err = gateway.New(cfg, gateway.Deps{Router: gateway.FromOwn(s.route, s.table.Load), Keys: s.keys, Observer: s.meter,
		NowMs: s.ctl.NowMs, Log: s.opts.Log, Records: s.records})
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", s.opts.Listen)
	if err != nil {
		return fmt.Errorf("open the data port: %w", err)
	}
	s.opts.Listen = ln.Addr().String()
	usage := newUsagePoster(s)
	usage.tell() // before the first request: budgets survive a restart
	s.run("usage", func() error { return usage.run(s.stop) })
	s.run("data port", func() error { return s.data.Serve(ln) })
	return nil
}

func (s *server) startControl() error {
	o := &s.opts
	var err error
	if s.audit, err = openLineFile(filepath.Join(o.DataDir, "audit.jsonl"), auditFileBytes); err != nil {
		return err
	}
	logs, err := s.agents()
	if err != nil {
		return err
	}
	ctl := controlled{s.ctl}
	s.admin, err = admin.New(admin.Config{Controller: ctl, Audit: s.audit, Metrics: s.data.Metrics(), Log: o.Log,
		CAHash: func() ([32]byte, error) { return s.authority.CAHash(), nil }, Version: version,
		Agents: admin.AgentClient{Scheme: trust.AgentScheme, Client: logs},
		Extra: map[string]http.Handler{
			"POST " + trust.JoinPath: trust.JoinHandler(s.authority, admin.Tokens(ctl), s.ctl.NowMs, o.Log),
			"GET " + invariantsPath:  http.HandlerFunc(s.invariants),
		}})
	if err != nil {
		return err
	}
	ln, err := admin.ListenUnix(socketPath(o.DataDir))
	if err != nil {
		return err
	}
	s.run("control socket", func() error { return s.admin.Serve(ln) })
	if o.Control == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(o.Control)
	if err != nil {
		return fmt.Errorf("--control %q must be host:port: %w", o.Control, err)
	}
	hosts := slices.Clone(o.Hosts)
	if host != "" {
		hosts = append(hosts, host)
	}
	tlsConfig, err := s.authority.ServerTLS(hosts)
	if err != nil {
		return err
	}
	tcp, err := tls.Listen("tcp", o.Control, tlsConfig)
	if err != nil {
		return fmt.Errorf("open the control port: %w", err)
	}
	o.Control = tcp.Addr().String()
	s.run("control port", func() error { return s.admin.Serve(tcp) })
	w := trust.Welcome{Label: s.authority.Label(), GossipKey: s.authority.GossipKey()}
	s.gossip, err = startGossip(o.Node, o.Gossip, o.Seeds, w, gossip.Meta{Role: "serve", ControlAddr: o.Control, Version: version}, o.Log)
	return err
}

// agents is a client, with connections of its own, for the agents' listeners.
func (s *server) agents() (*http.Client, error) {
	usesTLS := s.opts.UsesTLS
	if usesTLS == nil {
		usesTLS = trust.AgentUsesTLS
	}
	return s.authority.AgentClient(usesTLS)
}

// run runs one part in a goroutine of its own; its failure ends the server.
func (s *server) run(what string, f func() error) {
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		if err := f(); err != nil && !errors.Is(err, http.ErrServerClosed) {
			select {
			case s.failed <- fmt.Errorf("%s: %w", what, err):
			default:
			}
		}
	}()
}

// follow rebuilds the routing table, the meter's models and the keys whenever
// facts change, and refreshes them now and then.
func (s *server) follow() {
	defer s.wg.Done()
	tick := time.NewTicker(tableRefreshMs * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	changed := make(chan struct{}, 1)
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		s.record(ctx, changed)
	}()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		case <-changed:
		}
		s.refresh()
	}
}

// record writes events to the history and tells follow of changes.
func (s *server) record(ctx context.Context, changed chan<- struct{}) {
	_, seq := s.ctl.Events(1<<62, 1)
	for ctx.Err() == nil {
		s.ctl.WaitEvents(ctx, seq)
		var events []exec.Recorded
		events, seq = s.ctl.Events(seq, 1024)
		if err := s.history.add(events); err != nil {
			s.opts.Log.Error("cannot write the history", "error", err)
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// invariantsPath tells which invariants a strict server found broken, to peers
// of the control socket only: it names objects, and further routes are served
// before anybody is asked who he is.
const invariantsPath = "/v1/invariants"

func (s *server) invariants(w http.ResponseWriter, r *http.Request) {
	if _, local := admin.LocalPeer(r); !local {
		http.Error(w, `{"error":{"code":"forbidden","message":"invariants are told on the Unix socket only","remedy":"log in to the server's machine"}}`, http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	broken := s.ctl.Broken()
	s.ctl.Read(func(st *registry.State, _ *nodes.Fleet, _ int64) { broken = append(broken, st.Check()...) })
	json.NewEncoder(w).Encode(map[string][]string{"broken": broken}) // the client may have left
}

func (s *server) refresh() {
	var table *router.Table
	var models []gateway.MeterModel
	var err error
	s.ctl.Read(func(st *registry.State, _ *nodes.Fleet, nowMs int64) {
		table, err = tableOf(st)
		models = meterModels(st, s.horizon.ms)
		coming := s.comingOf(st, nowMs)
		s.coming.Store(&coming)
		s.keys.set(st)
	})
	for i := range models { // not under the controller's lock: the router has its own
		models[i].QueueDepth = s.route.Depth(models[i].Name)
	}
	if err != nil {
		s.opts.Log.Error("cannot build the routing table", "error", err)
		return
	}
	s.table.Store(table)
	s.route.SetTable(table)
	if err := s.meter.SetModels(models); err != nil {
		s.opts.Log.Error("cannot measure a model", "error", err)
	}
}

// watchHorizon learns from events how long a replica takes to come.
func (s *server) watchHorizon() {
	defer s.wg.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-s.stop
		cancel()
	}()
	_, seq := s.ctl.Events(1<<62, 1)
	for ctx.Err() == nil {
		s.ctl.WaitEvents(ctx, seq)
		var events []exec.Recorded
		events, seq = s.ctl.Events(seq, 1024)
		for i := range events {
			s.horizon.observe(&events[i].Event)
		}
	}
}

// comingOf says what capacity of each model is on its way.
func (s *server) comingOf(st *registry.State, nowMs int64) map[string]router.Coming {
	out := map[string]router.Coming{}
	for _, r := range st.Replicas {
		switch r.Phase {
		case registry.ReplicaWaiting, registry.ReplicaStarting, registry.ReplicaWaking:
		default:
			continue
		}
		eta, coldMs := s.horizon.ms(r.Model)
		if !r.Wake {
			eta = coldMs
		}
		eta = max(1, eta-(nowMs-max(r.DecidedMs, r.CreatedMs)))
		c := out[r.Model]
		if c.Replicas == 0 || eta < c.EtaMs {
			c.EtaMs = eta
		}
		c.Replicas++
		out[r.Model] = c
	}
	return out
}

// coming answers the router from the latest refresh: it must not wait for the
// controller's lock.
func (s *server) comingNow(model string) router.Coming {
	if m := s.coming.Load(); m != nil {
		return (*m)[model]
	}
	return router.Coming{}
}

// close ends everything in the reverse order. Holders go on.
func (s *server) close() {
	if s.data != nil {
		grace, cancel := context.WithTimeout(context.Background(), cmp.Or(s.opts.Grace, defaultGrace))
		s.data.Shutdown(grace)
		cancel()
	}
	ctx, cancel := context.WithTimeout(context.Background(), afterGraceMs*time.Millisecond)
	defer cancel()
	if s.records != nil {
		s.records.Close(ctx)
	}
	if s.admin != nil {
		s.admin.Shutdown(ctx)
	}
	close(s.stop)
	if s.gossip != nil {
		s.gossip.Leave(ctx)
	}
	if s.route != nil {
		s.route.Close()
	}
	s.wg.Wait()
	if s.ctl != nil {
		s.ctl.Close()
	}
	if s.history != nil {
		s.history.close()
	}
	if s.audit != nil {
		s.audit.Close()
	}
}
