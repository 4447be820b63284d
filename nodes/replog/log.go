package replog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// localAddr is the address of a single voter without a port.
	localAddr = "local"
	// openTimeout is how long Open of a single voter waits until it leads and
	// has replayed all: far above the 30 ms an election takes and the seconds
	// that replaying SnapshotThreshold commands could.
	openTimeout = 30 * time.Second
	// enqueueTimeout is how long raft may take to accept a command before the
	// call is answered with ErrBusy (or with the disk's fault).
	enqueueTimeout = 5 * time.Second
	// drainLimit is how long Close waits for commands on their way.
	drainLimit = 2 * time.Second
	// configTimeout bounds a change of membership.
	configTimeout = 10 * time.Second
)

// Log is an open replicated log. All methods are safe for concurrent use.
type Log struct {
	dir     string
	log     *slog.Logger
	raft    *raft.Raft
	store   *guardedStore
	hangUp  func() error   // closes the transport; nil before there is one
	closers []func() error // in the order in which Close calls them
	slots   chan struct{}  // one for each waiting Apply, MaxInFlight of them
	closing chan struct{}  // closed by Close once the transport is shut
	closed  atomic.Bool
	once    sync.Once
	err     error // of Close; written once inside once
}

// Open opens or makes the log in cfg.Dir. A single voter is leader, and its
// machine complete, when Open returns; see the package comment for a cluster.
// Errors: ErrCorrupt, ErrLocked, ErrWrongID, ErrNoAccess, ErrDiskFull, each
// with what to do.
func Open(cfg Config, machine Machine) (*Log, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if machine == nil {
		return nil, errors.New("replog: the machine is nil")
	}
	logger := cfg.Logger
	if logger == nil {
		logger = slog.Default()
	}
	l := &Log{
		dir: cfg.Dir, log: logger,
		slots: make(chan struct{}, MaxInFlight), closing: make(chan struct{}),
	}
	if err := l.start(cfg, machine); err != nil {
		l.Close()
		return nil, openError(cfg.Dir, err)
	}
	if cfg.alone() {
		if err := l.lead(); err != nil {
			l.Close()
			return nil, err
		}
	}
	return l, nil
}

// start opens the stores and starts raft. What was opened is in l.closers
// even when it fails.
func (l *Log) start(cfg Config, machine Machine) (err error) {
	// bolt and raft panic on some kinds of damage, and a file cut short faults
	// where it is mapped. At start that is an answer to report, not a reason
	// to die.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = corrupt(cfg.Dir, p)
		}
	}()
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return err
	}
	claimed, err := checkOwner(cfg.Dir, cfg.ID)
	if err != nil {
		return err
	}
	hlog := newHclog(l.log, cfg.alone())
	bolt, err := openBolt(filepath.Join(cfg.Dir, "log.db"))
	if err != nil {
		return err
	}
	l.closers = append(l.closers, bolt.Close)
	var inner durable = bolt
	if cfg.store != nil {
		inner = cfg.store(inner)
	}
	l.store = &guardedStore{durable: inner, dir: cfg.Dir, log: l.log, stop: l.closing}
	if err := verify(bolt); err != nil {
		return corrupt(cfg.Dir, err)
	}
	snaps, err := openSnapshots(cfg.Dir, hlog)
	if err != nil {
		return err
	}
	trans, closeTrans, err := openTransport(cfg, hlog)
	if err != nil {
		return err
	}
	l.hangUp = closeTrans
	conf := raftConfig(cfg, hlog)
	if err := bootstrap(cfg, conf, l.store, snaps, trans); err != nil {
		return err
	}
	if !claimed {
		if err := claim(cfg.Dir, cfg.ID); err != nil {
			return err
		}
	}
	l.raft, err = raft.NewRaft(conf, &fsm{machine: machine}, l.store, l.store, snaps, trans)
	if err != nil {
		return err
	}
	l.closers = append([]func() error{func() error { return l.raft.Shutdown().Error() }}, l.closers...)
	return nil
}

// raftConfig is a profile with a reason on every line.
func raftConfig(cfg Config, hlog *hclogger) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(cfg.ID)
	c.Logger = hlog
	c.BatchApplyCh = true         // group commit: one fsync for all that wait
	c.MaxAppendEntries = maxGroup // the size of such a group
	c.TrailingLogs = trailingLogs
	c.SnapshotThreshold = uint64(cfg.SnapshotThreshold)
	if cfg.SnapshotThreshold == 0 {
		c.SnapshotThreshold = DefaultSnapshotThreshold
	}
	c.SnapshotInterval = 30 * time.Second // looks at the threshold this often
	c.ShutdownOnRemove = false            // a removed server still serves its last table
	c.NoLegacyTelemetry = true
	if cfg.alone() {
		// Nobody else can lead, so there is little to wait for: a restart is
		// back in about 100 ms. The leader looks at its lease this often, for
		// nothing: at 10 ms that was half of what an idle server used.
		c.HeartbeatTimeout = 50 * time.Millisecond
		c.ElectionTimeout = 50 * time.Millisecond
		c.LeaderLeaseTimeout = 50 * time.Millisecond
		c.CommitTimeout = 10 * time.Millisecond
	}
	return c
}

func bootstrap(cfg Config, conf *raft.Config, store *guardedStore, snaps raft.SnapshotStore, trans raft.Transport) error {
	has, err := raft.HasExistingState(store, store, snaps)
	if err != nil || has || cfg.Join {
		return err
	}
	var servers []raft.Server
	for _, p := range cfg.Peers {
		servers = append(servers, raft.Server{ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.Addr)})
	}
	if len(servers) == 0 {
		servers = []raft.Server{{ID: conf.LocalID, Address: trans.LocalAddr()}}
	}
	return raft.BootstrapCluster(conf, store, store, snaps, trans, raft.Configuration{Servers: servers})
}

// lead waits until a single voter leads and its machine is complete.
func (l *Log) lead() error {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !l.Leader() {
		if fault := l.fault(); fault != nil {
			return fault
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("replog: %s: no leader after %v: the stored configuration has other voters; start with Bind and Peers as before", l.dir, openTimeout)
		}
	}
	return l.Barrier(ctx)
}

// Apply commits data and returns what Machine.Apply made of it. It returns
// after the command is on disk at a majority. When ctx ends first the error
// is ErrUncertain (with the context's error beside it) and the command may
// still be applied. Errors: ErrNotLeader, ErrBusy, ErrTooLarge, ErrDiskFull,
// ErrDisk, ErrClosed: the command was not acknowledged; ErrDiskFull and
// ErrDisk are as uncertain as ErrUncertain in theory, since a write that
// failed may have reached the disk.
func (l *Log) Apply(ctx context.Context, data []byte) (any, error) {
	if len(data) > MaxCommandBytes {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(data), MaxCommandBytes)
	}
	if err := l.enter(ctx); err != nil {
		return nil, err
	}
	f := l.raft.Apply(seal(data), enqueueTimeout)
	if ctx.Done() == nil {
		defer l.leave()
		err := f.Error()
		return f.Response(), l.applyError(err)
	}
	done := make(chan error, 1)
	go func() {
		defer l.leave()
		done <- f.Error()
	}()
	select {
	case err := <-done:
		return f.Response(), l.applyError(err)
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: repeat it with the same command id: %w", ErrUncertain, ctx.Err())
	}
}

// Barrier returns when everything committed before it is in the machine.
// Only the leader can answer. Errors as Apply.
func (l *Log) Barrier(ctx context.Context) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	f := l.raft.Barrier(enqueueTimeout)
	done := make(chan error, 1)
	go func() {
		defer l.leave()
		done <- f.Error()
	}()
	select {
	case err := <-done:
		return l.applyError(err)
	case <-ctx.Done():
		return fmt.Errorf("replog: waiting for the barrier: %w", ctx.Err())
	}
}

// enter takes a slot, or says why there is none.
func (l *Log) enter(ctx context.Context) error {
	if l.closed.Load() {
		return ErrClosed
	}
	if fault := l.fault(); fault != nil {
		return fault
	}
	select {
	case l.slots <- struct{}{}:
		return nil
	default:
	}
	select {
	case l.slots <- struct{}{}:
		return nil
	case <-l.closing:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	}
}

func (l *Log) leave() { <-l.slots }

// drain takes all slots, so that what was handed to raft is answered: raft forgets to when it shuts down. A log that
// cannot commit any more is waited for up to drainLimit.
func (l *Log) drain() {
	limit := time.NewTimer(drainLimit)
	defer limit.Stop()
	for range cap(l.slots) {
		select {
		case l.slots <- struct{}{}:
		case <-limit.C:
			return
		}
	}
}

// fault is the disk's present fault, nil when the last write worked.
func (l *Log) fault() error {
	if l.store == nil {
		return nil
	}
	return l.store.fault()
}

// Leader says whether this server leads now, to its own knowledge.
func (l *Log) Leader() bool { return l.raft.State() == raft.Leader }

// LeaderAddr is the present leader's id and address, empty when none is known.
func (l *Log) LeaderAddr() (id, addr string) {
	a, i := l.raft.LeaderWithID()
	return string(i), string(a)
}

// Term is the present raft term; it grows with every election and is what
// orders carry.
func (l *Log) Term() uint64 { return l.raft.CurrentTerm() }

// LeaderCh says when this server gains or loses leadership. It holds the
// latest value only: a slow reader misses pairs, never the last change. One
// reader.
func (l *Log) LeaderCh() <-chan bool { return l.raft.LeaderCh() }

// Snapshot writes one now. The log does so by itself every SnapshotThreshold
// commands; this is for a backup or an orderly stop.
func (l *Log) Snapshot() error {
	err := l.raft.Snapshot().Error()
	if err == nil || errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	return fmt.Errorf("replog: taking a snapshot: %w", err)
}

// AddVoter adds or moves a voter; AddFollower a server that applies the log
// without a vote; Remove ends either. Leader only.
func (l *Log) AddVoter(id, addr string) error {
	return l.applyError(l.raft.AddVoter(raft.ServerID(id), raft.ServerAddress(addr), 0, configTimeout).Error())
}

// AddFollower adds a server without a vote; see AddVoter.
func (l *Log) AddFollower(id, addr string) error {
	return l.applyError(l.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(addr), 0, configTimeout).Error())
}

// Remove takes a server out; see AddVoter.
func (l *Log) Remove(id string) error {
	return l.applyError(l.raft.RemoveServer(raft.ServerID(id), 0, configTimeout).Error())
}

// Transfer hands leadership to another voter, for an orderly stop.
func (l *Log) Transfer() error { return l.applyError(l.raft.LeadershipTransfer().Error()) }

// Close stops the log and closes its files; nothing acknowledged is lost by
// not calling it. Waiting Apply calls end with ErrClosed. Idempotent.
func (l *Log) Close() error {
	l.once.Do(func() {
		l.closed.Store(true)
		if l.hangUp != nil {
			// First, so that nothing leaves that the store may not hold.
			l.err = l.hangUp()
		}
		close(l.closing)
		l.drain()
		for _, c := range l.closers {
			if err := c(); err != nil && l.err == nil {
				l.err = fmt.Errorf("replog: closing: %w", err)
			}
		}
	})
	return l.err
}
