package gossip

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// Member is one living node. Comparable.
type Member struct {
	ID   string
	Addr string // host:port of its gossip
	Meta Meta
}

// Stats count since the start.
type Stats struct {
	Rejected  uint64 // packets and streams with a wrong key or label, dropped
	Conflicts uint64 // messages of a node under a taken name, dropped
	Rejoins   uint64 // joins of seeds that worked
	JoinFails uint64 // joins of seeds that did not
}

type counters struct {
	rejected, conflicts, rejoins, joinFails atomic.Uint64
}

// Gossip is this node's part. All methods are safe for concurrent use.
type Gossip struct {
	cfg     Config
	log     *slog.Logger
	list    *memberlist.Memberlist
	keys    *memberlist.Keyring // nil without a key
	meta    atomic.Pointer[[]byte]
	events  chan Event
	backlog *backlog
	stats   counters
	said    *throttle
	self    string        // this node's own address; set by Start
	stop    chan struct{} // closed once, ends both goroutines
	done    sync.WaitGroup
	once    sync.Once

	// memberlist hands out pointers to nodes that it goes on writing, so what
	// lives is copied in its callbacks, which it makes under its lock.
	mu      sync.Mutex
	members map[string]Member // guarded by mu; by ID
}

// Start begins to listen and to join the seeds; it does not wait for any of
// them, since a cluster starts in any order. Errors: ErrNoKey, ErrMeta, a bad
// field, or the network's (address in use).
func Start(cfg Config, log *slog.Logger) (*Gossip, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.Default()
	}
	cfg.Seeds = slices.Clone(cfg.Seeds)
	g := &Gossip{
		cfg: cfg, log: log, events: make(chan Event), backlog: newBacklog(),
		members: map[string]Member{}, stop: make(chan struct{}), said: newThrottle(conflictLogEvery),
	}
	if g.cfg.Pace == (Pace{}) {
		g.cfg.Pace = LAN()
	}
	meta, err := cfg.Meta.encode()
	if err != nil {
		return nil, err
	}
	g.meta.Store(&meta)
	conf, err := cfg.profile(log, g)
	if err != nil {
		return nil, err
	}
	if cfg.wire != nil {
		inner, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{cfg.Bind}, BindPort: cfg.Port, Logger: newStdLogger(conf.LogOutput),
		})
		if err != nil {
			return nil, fmt.Errorf("gossip: listening: %w", err)
		}
		conf.BindPort, conf.AdvertisePort = inner.GetAutoBindPort(), inner.GetAutoBindPort()
		conf.Transport = cfg.wire(inner)
	}
	if g.list, err = memberlist.Create(conf); err != nil {
		return nil, fmt.Errorf("gossip: listening on %s port %d: %w: choose another port, or stop the other node", cfg.Bind, cfg.Port, err)
	}
	g.mu.Lock()
	g.self = g.members[cfg.NodeID].Addr
	g.mu.Unlock()
	g.done.Add(2)
	go func() { defer g.done.Done(); g.backlog.deliver(g.events, g.stop) }()
	go func() { defer g.done.Done(); g.rejoin() }()
	return g, nil
}

// Addr is this node's own gossip address as others use it.
func (g *Gossip) Addr() string { return g.self }

// Members are the nodes that live now to this node's knowledge, this one
// included, sorted by ID. The slice is the caller's.
func (g *Gossip) Members() []Member {
	g.mu.Lock()
	out := make([]Member, 0, len(g.members))
	for _, m := range g.members {
		out = append(out, m)
	}
	g.mu.Unlock()
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Events delivers changes, this node's own join first. One reader. Closed by
// Leave and Close.
func (g *Gossip) Events() <-chan Event { return g.events }

// Stats are the counts since the start.
func (g *Gossip) Stats() Stats {
	return Stats{
		Rejected: g.stats.rejected.Load(), Conflicts: g.stats.conflicts.Load(),
		Rejoins: g.stats.rejoins.Load(), JoinFails: g.stats.joinFails.Load(),
	}
}

// SetMeta tells the others a new description. It returns when the news is on
// its way, or ctx ended.
func (g *Gossip) SetMeta(ctx context.Context, m Meta) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	g.meta.Store(&b)
	return g.list.UpdateNode(left(ctx))
}

// AddKey accepts a further key from others; UseKey, of a key that was added,
// encrypts with it from now on; RemoveKey accepts it no longer. A rotation is
// AddKey on all nodes, then UseKey on all, then RemoveKey on all: at no moment
// is anyone refused.
func (g *Gossip) AddKey(key []byte) error {
	if len(key) != KeyBytes {
		return fmt.Errorf("gossip: the key has %d bytes, it must have %d", len(key), KeyBytes)
	}
	return g.rotate("adding", func(r *memberlist.Keyring) error { return r.AddKey(key) })
}

// UseKey encrypts with key; see AddKey.
func (g *Gossip) UseKey(key []byte) error {
	return g.rotate("using", func(r *memberlist.Keyring) error { return r.UseKey(key) })
}

// RemoveKey forgets key; see AddKey. The key in use cannot be removed.
func (g *Gossip) RemoveKey(key []byte) error {
	return g.rotate("removing", func(r *memberlist.Keyring) error { return r.RemoveKey(key) })
}

// Leave says goodbye, so that nobody has to find out, and ends. Idempotent
// with Close.
func (g *Gossip) Leave(ctx context.Context) error {
	err := g.list.Leave(left(ctx))
	return firstOf(err, g.Close())
}

// Close ends without a goodbye, as a crash would.
func (g *Gossip) Close() error {
	var err error
	g.once.Do(func() {
		close(g.stop)
		err = g.list.Shutdown()
		g.done.Wait()
	})
	return err
}

// rejoin is the goroutine that calls the seeds for as long as the process
// lives. Joining is the only repair for a long partition, and the only way for
// a moved node to repeat its claim to its name.
func (g *Gossip) rejoin() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-g.stop:
			return
		}
		for _, seed := range g.round() {
			select {
			case <-g.stop:
				return
			default:
			}
			if _, err := g.list.Join([]string{seed}); err != nil {
				g.stats.joinFails.Add(1)
				if g.said.allow("seed " + seed) {
					g.log.Warn("a gossip seed cannot be reached", "seed", seed, "err", err)
				}
				continue
			}
			g.stats.rejoins.Add(1)
		}
		timer.Reset(jitter(g.cfg.Pace.Rejoin))
	}
}

// round chooses this round's seeds: up to joinsPerRound that are not members,
// and one that is.
func (g *Gossip) round() []string {
	present := map[string]bool{}
	for _, m := range g.Members() {
		present[m.Addr] = true
	}
	var absent, there []string
	for _, i := range rand.Perm(len(g.cfg.Seeds)) {
		switch s := g.cfg.Seeds[i]; {
		case s == g.self:
		case present[s]:
			there = append(there, s)
		default:
			absent = append(absent, s)
		}
	}
	return append(absent[:min(len(absent), joinsPerRound)], there[:min(len(there), 1)]...)
}

// jitter spreads d over ± a quarter, so that nodes started together do not
// call together.
func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2+1) }

// left is the time that ctx leaves, at most leaveTimeout.
func left(ctx context.Context) time.Duration {
	const leaveTimeout = 5 * time.Second
	deadline, ok := ctx.Deadline()
	if !ok {
		return leaveTimeout
	}
	// memberlist takes 0 for "for ever".
	return max(time.Millisecond, min(leaveTimeout, time.Until(deadline)))
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("gossip: leaving: %w", err)
		}
	}
	return nil
}

func member(n *memberlist.Node) Member {
	return Member{ID: n.Name, Addr: address(n), Meta: decodeMeta(n.Meta)}
}

func address(n *memberlist.Node) string {
	return net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
}
