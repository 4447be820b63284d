package exec

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"sluice/fill"
	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/nodes/replog"
	"sluice/slo"
)

// Defaults of the loop, in milliseconds.
const (
	tickMs         = 50    // the loop looks at everything this often at least
	leaseMs        = 5_000 // silence after which an agent counts as lost
	firstLeaseMs   = 20_000
	resendMs       = 3_000 // an order without effect is sent again
	inboxFrames    = 4096  // frames waiting for the loop; a full inbox slows the agents' readers
	outboxLines    = 1024  // lines waiting for one agent; a full outbox ends its stream
	planEveryMs    = 100
	submitTimeout  = 10 * time.Second
	maxRoundPasses = 4 // rounds in a row without waiting for a tick
)

// ErrNotLeader is returned by Submit on a server that does not lead.
var ErrNotLeader = errors.New("this server does not lead; send the change to the leader")

// Config of a Controller.
type Config struct {
	// Dir holds the log; DataDir/raft as a rule.
	Dir string
	// CheckpointRoot is the default directory under which generations write.
	CheckpointRoot string
	Planner        fill.Config
	// Headroom gives the latest by model; nil means no traffic.
	Headroom func(nowMs int64) map[string]slo.Headroom
	// Strict verifies all invariants after every command (demo and tests).
	Strict bool
	// LeaseMs overrides the lease of agents; 0 means the default.
	LeaseMs int64
	Log     *slog.Logger
}

// Controller is the running controller. All exported methods are safe for
// concurrent use.
type Controller struct {
	cfg   Config
	store *store
	log   *replog.Log
	clock fleetClock

	inbox   chan inbound
	poke    chan struct{}
	stop    chan struct{}
	stopped chan struct{}

	cmdSeq   atomic.Int64
	bootID   string
	leaderMs int64 // set once, before the loop starts
	leasesMs int64 // the loop's: when it last looked at the leases
	backMs   int64 // the loop's: when it came back after it had been away
	waitMu   sync.Mutex
	waiting  []fill.Waiting // guarded by waitMu
	actions  []fill.Action  // guarded by waitMu; of the last plan that acted
	agents   map[string]*agentStream
	planner  *fill.Planner
	lastPlan int64
}

// fleetClock gives fleet time: unix milliseconds at the start, raised above
// all that the log has seen, then the monotonic clock.
type fleetClock struct {
	baseMs int64
	start  time.Time
}

func (c fleetClock) nowMs() int64 { return c.baseMs + time.Since(c.start).Milliseconds() }

// Open opens the log, replays it and starts the loop.
func Open(cfg Config) (*Controller, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.LeaseMs == 0 {
		cfg.LeaseMs = leaseMs
	}
	c := &Controller{
		cfg:     cfg,
		store:   &store{state: registry.New(), fleet: nodes.NewFleet(), events: newRing(time.Now().UnixMilli()), strict: cfg.Strict},
		inbox:   make(chan inbound, inboxFrames),
		poke:    make(chan struct{}, 1),
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
		agents:  map[string]*agentStream{},
		planner: fill.NewPlanner(cfg.Planner),
		bootID:  newBootID(),
	}
	l, err := replog.Open(replog.Config{Dir: filepath.Clean(cfg.Dir), ID: "server", Logger: cfg.Log}, c.store)
	if err != nil {
		return nil, err
	}
	c.log = l
	start := time.Now()
	c.clock = fleetClock{baseMs: max(start.UnixMilli(), c.store.state.LastMs+1), start: start}
	c.leaderMs = c.clock.nowMs()
	go c.loop()
	return c, nil
}

func newBootID() string {
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic("no randomness: " + err.Error())
	}
	return hex.EncodeToString(b[:])
}

// Close ends the loop and the streams and closes the log. Holders go on.
func (c *Controller) Close() error {
	select {
	case <-c.stop:
	default:
		close(c.stop)
	}
	<-c.stopped
	return c.log.Close()
}

// NowMs is fleet time.
func (c *Controller) NowMs() int64 { return c.clock.nowMs() }

// Read calls f with the facts and the fleet under the read lock.
func (c *Controller) Read(f func(s *registry.State, fleet *nodes.Fleet, nowMs int64)) {
	c.store.mu.RLock()
	defer c.store.mu.RUnlock()
	f(c.store.state, c.store.fleet, c.clock.nowMs())
}

// Submit applies one command. Empty ID, AtMs and Term are filled in.
func (c *Controller) Submit(ctx context.Context, cmd registry.Command) ([]registry.Event, error) {
	out, err := c.submit(ctx, []registry.Command{cmd})
	if err != nil {
		return nil, err
	}
	c.wake()
	return out[0].events, out[0].err
}

func (c *Controller) submit(ctx context.Context, cmds []registry.Command) ([]applied, error) {
	if !c.log.Leader() {
		return nil, ErrNotLeader
	}
	now, term := c.clock.nowMs(), c.log.Term()
	for i := range cmds {
		if cmds[i].ID == "" {
			cmds[i].ID = c.bootID + "-" + strconv.FormatInt(c.cmdSeq.Add(1), 10)
		}
		if cmds[i].AtMs == 0 {
			cmds[i].AtMs = now
		}
		cmds[i].Term = term
	}
	data, err := json.Marshal(cmds)
	if err != nil {
		return nil, fmt.Errorf("encode commands: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, submitTimeout)
	defer cancel()
	res, err := c.log.Apply(ctx, data)
	if err != nil {
		return nil, err
	}
	return res.([]applied), nil
}

// wake makes the loop look at once.
func (c *Controller) wake() {
	select {
	case c.poke <- struct{}{}:
	default:
	}
}

// Events returns up to limit events after sinceSeq, oldest first.
func (c *Controller) Events(sinceSeq int64, limit int) ([]Recorded, int64) {
	return c.store.events.since(sinceSeq, limit)
}

// WaitEvents returns when there is an event after sinceSeq, or ctx ends.
func (c *Controller) WaitEvents(ctx context.Context, sinceSeq int64) {
	c.store.events.wait(ctx, sinceSeq)
}

// Headroom is the latest by model.
func (c *Controller) Headroom() map[string]slo.Headroom {
	if c.cfg.Headroom == nil {
		return nil
	}
	return c.cfg.Headroom(c.clock.nowMs())
}

// Waiting lists what does not run and why, as of the last plan.
func (c *Controller) Waiting() []fill.Waiting {
	c.waitMu.Lock()
	defer c.waitMu.Unlock()
	return append([]fill.Waiting(nil), c.waiting...)
}

// Actions are what the last plan that acted did, with prices.
func (c *Controller) Actions() []fill.Action {
	c.waitMu.Lock()
	defer c.waitMu.Unlock()
	return append([]fill.Action(nil), c.actions...)
}

// Broken lists invariants found broken (Strict only).
func (c *Controller) Broken() []string {
	c.store.mu.RLock()
	defer c.store.mu.RUnlock()
	return append([]string(nil), c.store.broken...)
}
