package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sluice/nodes"
	"sluice/nodes/rank"
)

// lostAfterMs is how long a rank may be without its connection before the
// controller is told: it comes again within that, as a rule.
const lostAfterMs = 1000

var (
	errNotOurs  = errors.New("this process does not belong to the holder")
	errMismatch = errors.New("hello does not match what was started")
	errTornFile = errors.New("shard does not match its file")
)

// rankHandler carries the ranks of one holder to the owner.
type rankHandler struct {
	o    *owner
	h    *holder
	spec nodes.HolderSpec
	node string
}

// Hello accepts a rank that is a process of this holder and says who it is.
func (r *rankHandler) Hello(c *rank.Conn, m rank.Message) error {
	s := &r.spec
	if holder, ok := r.o.tree.HolderOf(c.Peer().PID); !ok || holder != s.ID {
		return fmt.Errorf("%w: pid %d", errNotOurs, c.Peer().PID)
	}
	first, count := s.Rank.Rank, 1
	if s.Rank.Launcher == nodes.LaunchTorchrun {
		count = max(s.Rank.LocalWorldSize, 1)
	}
	if m.Job != s.Rank.Job || m.Generation != s.Generation || m.WorldSize != s.Rank.WorldSize ||
		m.Rank < first || m.Rank >= first+count {
		return fmt.Errorf("%w: job %q generation %d rank %d of %d", errMismatch, m.Job, m.Generation, m.Rank, m.WorldSize)
	}
	if !r.o.ask(r.o.ctx, func() { r.o.onRankHello(r.h, c, r.note(m)) }) {
		return rank.ErrClosed
	}
	return nil
}

// Message returns when the owner has the note, and for those that are
// acknowledged, when the journal has it.
func (r *rankHandler) Message(c *rank.Conn, m rank.Message) {
	switch m.Type {
	case rank.TypeRefused:
		r.o.cfg.Log.Warn("a rank refused an order", "holder", r.spec.ID, "rank", c.Hello().Rank, "order", m.Order, "reason", m.Reason)
		return
	case rank.TypeShard:
		file, err := r.checkShard(m)
		if err != nil {
			r.o.cfg.Log.Warn("a shard is not passed on", "holder", r.spec.ID, "rank", c.Hello().Rank, "error", err)
			return
		}
		m.File = file
	}
	m.Rank = c.Hello().Rank
	n := r.note(m)
	post := r.o.do
	if kept(n.Kind) {
		post = r.o.ask
	}
	post(r.o.ctx, func() { r.o.onRankNote(r.h, n) })
}

// Gone is told when the connection has ended.
func (r *rankHandler) Gone(c *rank.Conn, _ error) {
	r.o.do(r.o.ctx, func() { r.o.onRankGone(r.h, c) })
}

// checkShard compares a shard with its file, and returns the absolute path. It
// must lie in the generation's own directory.
func (r *rankHandler) checkShard(m rank.Message) (string, error) {
	dir := r.spec.Rank.CheckpointDir
	file := m.File
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	file = filepath.Clean(file)
	if dir != "" && !strings.HasPrefix(file, filepath.Clean(dir)+string(filepath.Separator)) {
		return "", fmt.Errorf("%w: %s is outside of %s", errTornFile, file, dir)
	}
	st, err := os.Stat(file)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", errTornFile, err)
	case !st.Mode().IsRegular():
		return "", fmt.Errorf("%w: %s is not a file", errTornFile, file)
	case st.Size() != m.Bytes:
		return "", fmt.Errorf("%w: %s has %d bytes, told were %d", errTornFile, file, st.Size(), m.Bytes)
	}
	return file, nil
}

// note turns a message of the protocol into one of the fleet.
func (r *rankHandler) note(m rank.Message) nodes.RankNote {
	n := nodes.RankNote{
		Holder: r.spec.ID, Job: r.spec.Rank.Job, Generation: r.spec.Generation, Rank: m.Rank,
		Kind: string(m.Type), StopID: m.ID, Sync: string(m.Sync), Begun: m.Begun, Done: m.Done,
		Step: m.Step, Samples: m.Samples, Phase: string(m.Phase),
	}
	if m.Loss != nil {
		n.Loss = *m.Loss
	}
	if m.Type == rank.TypeShard {
		n.Shard = &nodes.Shard{Rank: m.Rank, Step: m.Step, File: m.File, Bytes: m.Bytes, Digest: m.Digest, Scope: string(m.Scope), Samples: m.Samples}
		if m.Scope == rank.ScopeNode {
			n.Shard.Node = r.node
		}
	}
	return n
}

// listenRanks opens the holder's socket; it is closed with the holder or the
// agent.
func (o *owner) listenRanks(h *holder, spec nodes.HolderSpec, path string) (*rank.Server, error) {
	srv, err := rank.Listen(path, 0o600)
	if err != nil {
		return nil, err
	}
	handler := &rankHandler{o: o, h: h, spec: spec, node: o.cfg.NodeID}
	o.workers.Go(func() {
		closed := make(chan struct{})
		stop := context.AfterFunc(o.ctx, func() {
			defer close(closed)
			_ = srv.Close()
		})
		if err := srv.Serve(handler); err != nil {
			o.cfg.Log.Error("rank socket", "holder", spec.ID, "error", err)
		}
		if !stop() {
			<-closed
		}
	})
	return srv, nil
}

// --- on the owner ---

func (o *owner) memoryOf(h *holder, r int) *rankMemory {
	m := h.ranks[r]
	if m == nil {
		m = &rankMemory{}
		h.ranks[r] = m
	}
	return m
}

func (o *owner) onRankHello(h *holder, c *rank.Conn, n nodes.RankNote) {
	if old := h.conns[n.Rank]; old != nil && old != c {
		old.Close()
	}
	h.conns[n.Rank] = c
	o.memoryOf(h, n.Rank).lostAtMs = 0
	o.onRankNote(h, n)
	if h.state == nodes.StateStarting && h.allHello() {
		o.set(h, nodes.StateRunning, "")
	}
	if h.rec.RankOrder != nil {
		o.sendRank(h, c, rankMessage(*h.rec.RankOrder))
	}
}

func (o *owner) sendRank(h *holder, c *rank.Conn, m rank.Message) {
	if err := c.Send(m); err != nil && !errors.Is(err, rank.ErrClosed) {
		o.cfg.Log.Warn("rank order", "holder", h.rec.Spec.ID, "rank", c.Hello().Rank, "error", err)
	}
}

func (o *owner) onRankNote(h *holder, n nodes.RankNote) {
	if !o.current(h) {
		return
	}
	if kept(n.Kind) {
		o.write(entry{Note: &n}, false)
	}
	for _, out := range o.memoryOf(h, n.Rank).take(n, o.cfg.NowMs()) {
		o.send(nodes.Frame{Rank: &out})
	}
	if n.Kind == "yielded" {
		h.proofs, h.proofAtMs = 0, 0
	}
	if n.Kind == "resumed" && h.allResumed() {
		h.rising = false
		if h.state == nodes.StateYielded {
			o.set(h, nodes.StateRunning, "")
		}
	}
}

func (o *owner) onRankGone(h *holder, c *rank.Conn) {
	r := c.Hello().Rank
	if h.conns[r] != c {
		return
	}
	delete(h.conns, r)
	o.memoryOf(h, r).lostAtMs = o.cfg.NowMs() + lostAfterMs
}

// advanceNotes sends what thinning held back, and tells of lost ranks.
func (o *owner) advanceNotes(h *holder, now int64) int64 {
	due := int64(never)
	for r, m := range h.ranks {
		n, at := m.due(now)
		if n != nil {
			o.send(nodes.Frame{Rank: n})
		}
		due = min(due, at)
		switch {
		case m.lostAtMs == 0:
		case h.rec.Exited:
			m.lostAtMs = 0 // the holder's end says it
		case now < m.lostAtMs:
			due = min(due, m.lostAtMs)
		default:
			m.lostAtMs = 0
			s := &h.rec.Spec
			o.onRankNote(h, nodes.RankNote{Holder: s.ID, Job: s.Rank.Job, Generation: s.Generation, Rank: r, Kind: "lost"})
		}
	}
	return due
}

// every says whether f holds for all ranks of this holder.
func (h *holder) every(f func(*rankMemory) bool) bool {
	first, count := h.ranksHere()
	for r := first; r < first+count; r++ {
		if m := h.ranks[r]; m == nil || !f(m) {
			return false
		}
	}
	return count > 0
}

func (h *holder) allHello() bool {
	return h.every(func(m *rankMemory) bool { return m.said("hello") })
}

// allYielded says whether all ranks yielded at the stop of the last order.
func (h *holder) allYielded() bool {
	ord := h.rec.RankOrder
	return ord != nil && ord.Kind != nodes.OrderRankResume && ord.Mode == nodes.StopYield &&
		h.every(func(m *rankMemory) bool { return m.answered("yielded", ord.StopID) })
}

func (h *holder) allResumed() bool {
	ord := h.rec.RankOrder
	return ord != nil && ord.Kind == nodes.OrderRankResume &&
		h.every(func(m *rankMemory) bool { return m.answered("resumed", ord.StopID) })
}
