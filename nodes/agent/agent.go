package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"

	"sluice/nodes"
	"sluice/nodes/agent/cgroup"
)

// Run runs the agent until ctx ends, and returns nil then; its holders go on.
// An error is one of start, or of a journal that cannot be written. It blocks,
// and leaves no goroutine behind.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return fmt.Errorf("%w: data directory: %w", ErrConfig, err)
	}
	cfg.DataDir = dir
	// Others may pass through, to the sockets of ranks that run as other users;
	// what lies there is for the agent's eyes.
	if err := os.MkdirAll(filepath.Join(dir, "holders"), 0o711); err != nil {
		return fmt.Errorf("agent: make data directory: %w", err)
	}
	lock, err := lockData(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	j, past, err := openJournal(dir)
	if err != nil {
		return err
	}
	defer func() { j.close() }()
	ln, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("agent: listen: %w", err)
	}
	defer ln.Close()
	if d, ok := cfg.Devices.(interface{ Remember(uuids ...string) }); ok {
		d.Remember(slices.Collect(maps.Keys(past.baseline))...)
	}
	o, err := newOwner(ctx, cfg, j, ln)
	if err != nil {
		return err
	}
	return o.run(ctx, past, ln)
}

func newOwner(ctx context.Context, cfg Config, j *journal, ln net.Listener) (*owner, error) {
	mark := cfg.NodeID + "-" + digest8(cfg.DataDir)
	tree := cgroup.Marks(mark)
	if !cfg.NoCgroup {
		tree = cgroup.Find(mark)
	}
	node, err := inventory(&cfg, advertised(&cfg, ln))
	if err != nil {
		return nil, fmt.Errorf("agent: devices: %w", err)
	}
	if !tree.Real() {
		node.Missing = append(node.Missing, "cgroups: none can be written, holders are known by environment marks")
	}
	o := &owner{
		cfg: cfg, tree: tree, client: newClient(), events: make(chan func(), maxEvents), journal: j, node: node,
		gpus: map[string]nodes.GPU{}, holders: map[string]*holder{}, pending: map[string]bool{},
		ports: portPicker{min: cfg.PortMin, max: cfg.PortMax}, baseline: map[string]int64{},
	}
	for _, g := range node.GPUs {
		o.gpus[g.UUID] = g
	}
	o.ctx, o.fail = context.WithCancelCause(ctx)
	return o, nil
}

// advertised is the listener's address as others reach it.
func advertised(cfg *Config, ln net.Listener) string {
	host, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		return ln.Addr().String()
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = cfg.Host
	}
	return net.JoinHostPort(host, port)
}

func (o *owner) run(ctx context.Context, p *past, ln net.Listener) error {
	defer o.client.CloseIdleConnections()
	// Without holders nothing of us stays; with some, this fails, as it should.
	defer func() { _ = o.tree.Remove() }()
	defer o.workers.Wait()
	defer o.fail(nil)
	o.seen = o.observe(nil)
	o.leaderMs = o.cfg.NowMs()
	// Reports of workers started here wait in the inbox until loop runs.
	o.restore(p)
	o.compact()
	if err := context.Cause(o.ctx); err != nil && ctx.Err() == nil {
		return err
	}
	o.serve(o.ctx, ln)
	o.workers.Go(func() { o.keepReading(o.ctx) })
	o.workers.Go(func() { o.keepStream(o.ctx) })
	o.cfg.Log.Info("agent runs", "node", o.cfg.NodeID, "listen", o.node.AgentAddr, "gpus", len(o.node.GPUs), "cgroups", o.tree.Real(), "holders", len(o.list))
	o.loop()
	if err := context.Cause(o.ctx); err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
