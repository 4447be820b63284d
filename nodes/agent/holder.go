package agent

import (
	"context"
	"path/filepath"
	"slices"
	"sort"

	"sluice/nodes"
	"sluice/nodes/agent/cgroup"
	"sluice/nodes/rank"
)

// holder is one holder of this node. The owner's alone.
type holder struct {
	rec   record
	state nodes.HolderState
	dir   string

	// checking: its GPUs are being proved free; it already counts for others
	// and is not told of yet.
	checking bool
	// rising: it was let back on its GPUs (wake, resume) and still says asleep
	// or yielded; it counts as active.
	rising bool

	ctx    context.Context // ends with the main process
	cancel context.CancelFunc
	group  cgroup.Group
	shim   cgroup.Process
	child  cgroup.Process

	told    nodes.HolderStatus
	sinceMs int64

	// Workers in flight, at most one of each.
	probing, calling, proving, killing bool

	probeAtMs    int64 // next health probe; 0 is at once
	probePauseMs int64
	misses       int // failed probes in a row
	drainEndMs   int64
	signalled    bool
	killAtMs     int64
	kills        int
	proofAtMs    int64
	proofs       int // tries of the present proof
	exceeding    int
	exitMs       int64
	blocked      string // what the present change waits for; told with the reason
	toldToSleep  bool   // the engine said that it sleeps; the proof is missing
	launching    bool   // forked or about to be; the child is not known yet
	fencedMs     int64  // until when leases given before a restart may live

	leases leaseTable

	server *rank.Server
	conns  map[int]*rank.Conn  // by rank
	ranks  map[int]*rankMemory // by rank
}

func (o *owner) newHolder(rec record) *holder {
	h := &holder{
		rec: rec, state: rec.State, dir: o.holderDir(rec.Spec.ID), group: o.tree.Group(rec.Spec.ID),
		conns: map[int]*rank.Conn{}, ranks: map[int]*rankMemory{},
	}
	h.ctx, h.cancel = context.WithCancel(o.ctx)
	h.sinceMs = o.cfg.NowMs()
	return h
}

func (o *owner) holderDir(id string) string {
	return filepath.Join(o.cfg.DataDir, "holders", id)
}

func (o *owner) add(h *holder) {
	o.holders[h.rec.Spec.ID] = h
	o.list = append(o.list, h)
}

func (o *owner) drop(h *holder) {
	h.cancel()
	delete(o.holders, h.rec.Spec.ID)
	o.list = slices.DeleteFunc(o.list, func(x *holder) bool { return x == h })
}

// current says whether h is still the holder of its id; workers' reports ask.
func (o *owner) current(h *holder) bool { return o.holders[h.rec.Spec.ID] == h }

func (h *holder) has(uuid string) bool { return slices.Contains(h.rec.Spec.GPUs, uuid) }

func (h *holder) status() nodes.HolderStatus {
	s := &h.rec.Spec
	reason := h.rec.Reason
	switch {
	case reason == "":
		reason = h.blocked
	case h.blocked != "":
		reason += "; " + h.blocked
	}
	return nodes.HolderStatus{
		ID: s.ID, Generation: s.Generation, Kind: s.Kind, Owner: s.Owner, State: h.state, GPUs: s.GPUs,
		Port: h.rec.Port, Pid: h.child.PID, Exited: h.rec.Exited, ExitCode: h.rec.ExitCode,
		Reason: reason, SinceMs: h.sinceMs,
	}
}

func same(a, b nodes.HolderStatus) bool {
	return a.ID == b.ID && a.Generation == b.Generation && a.State == b.State && a.Port == b.Port &&
		a.Pid == b.Pid && a.Exited == b.Exited && a.ExitCode == b.ExitCode && a.Reason == b.Reason &&
		a.SinceMs == b.SinceMs
}

// claim is what h holds or wants of its GPUs, for the proofs.
func (h *holder) claim() claim {
	s := &h.rec.Spec
	c := claim{id: s.ID, gpus: s.GPUs, activeBytes: s.ActiveBytes, residentBytes: s.ResidentBytes}
	switch {
	case h.state == nodes.StateGone:
		c.use = useNone
	case (h.state == nodes.StateAsleep || h.state == nodes.StateYielded) && !h.rising:
		c.use = useResident
	default:
		c.use = useActive
	}
	return c
}

// claims are those of all holders but one.
func (o *owner) claims(but *holder) []claim {
	out := make([]claim, 0, len(o.list))
	for _, h := range o.list {
		if h != but && h.state != nodes.StateGone {
			out = append(out, h.claim())
		}
	}
	return out
}

// set moves h to a state and journals it.
func (o *owner) set(h *holder, state nodes.HolderState, reason string) {
	if h.state == state && h.rec.Reason == reason {
		return
	}
	if h.state != state {
		o.cfg.Log.Info("holder", "id", h.rec.Spec.ID, "state", state, "reason", reason)
	}
	h.state, h.rec.Reason = state, reason
	o.save(h)
}

// want begins a change; a stronger one replaces a weaker one.
func (o *owner) want(h *holder, kind nodes.OrderKind, graceMs int64, reason string) {
	if h.state == nodes.StateGone {
		return
	}
	if h.rec.Want != nodes.OrderKill {
		h.rec.Want, h.rec.GraceMs = kind, graceMs
		if reason != "" {
			h.rec.Reason = reason
		}
	}
	h.blocked = ""
	h.drainEndMs = o.cfg.NowMs() + DrainMs
	h.signalled, h.killAtMs, h.kills, h.proofAtMs, h.proofs = false, 0, 0, 0, 0
	h.toldToSleep = false
	o.save(h)
}

// ranksHere are the ranks that this holder stands for.
func (h *holder) ranksHere() (first, count int) {
	r := h.rec.Spec.Rank
	if r == nil {
		return 0, 0
	}
	if r.Launcher == nodes.LaunchTorchrun {
		return r.Rank, max(r.LocalWorldSize, 1)
	}
	return r.Rank, 1
}

// notes are the latest notes of all ranks, in the order in which they came.
func (h *holder) notes() []nodes.RankNote {
	var ranks []int
	for r := range h.ranks {
		ranks = append(ranks, r)
	}
	sort.Ints(ranks)
	var out []nodes.RankNote
	for _, r := range ranks {
		out = append(out, h.ranks[r].latest()...)
	}
	return out
}
