package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"sluice/nodes"
	"sluice/nodes/agent/hold"
)

// sweepWaitMs bounds the wait for unknown processes to end at the start.
const sweepWaitMs = 5000

// shimWaitMs is how long a shim that was perhaps just forked is waited for.
const shimWaitMs = 300

func digest8(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:4])
}

// The lock is tried for again for a while: a process that the last agent was just forking holds a copy of it until it
// becomes another program.
const (
	lockTries = 40
	lockPause = 25 * time.Millisecond
)

// lockData takes DATA/agent.lock; the kernel gives it back when we end.
func lockData(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "agent.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("agent: open lock: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	for try := 1; errors.Is(err, syscall.EWOULDBLOCK) && try < lockTries; try++ {
		<-time.After(lockPause)
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrLocked, dir)
		}
		return nil, fmt.Errorf("agent: lock %s: %w", dir, err)
	}
	return f, nil
}

// restore fills the table from the journal, takes living holders back, and ends
// what the journal does not know. It runs before loop, on its goroutine.
func (o *owner) restore(p *past) {
	o.term, o.baseline = p.term, p.baseline
	for _, a := range p.answers {
		o.answers.put(a)
	}
	now := o.cfg.NowMs()
	for _, id := range p.order {
		rec := p.holders[id]
		if rec == nil || o.holders[id] != nil {
			continue
		}
		h := o.newHolder(*rec)
		h.fencedMs = now + LeaseTTLMs
		for _, n := range p.notes[id] {
			o.memoryOf(h, n.Rank).remember(n)
		}
		o.add(h)
		if rec.Started && !rec.Exited && rec.State != nodes.StateGone {
			o.takeBack(h)
		}
		o.restartWant(h)
	}
	o.endUnknown()
}

// restartWant goes on with a change that was in progress.
func (o *owner) restartWant(h *holder) {
	h.rising = h.rec.Want == nodes.OrderWake || resuming(h)
	h.drainEndMs = o.cfg.NowMs() + DrainMs
}

// resuming says whether a yielded holder was told to resume.
func resuming(h *holder) bool {
	return h.state == nodes.StateYielded && h.rec.RankOrder != nil && h.rec.RankOrder.Kind == nodes.OrderRankResume
}

// takeBack finds the shim of a started holder. The shim's lock says whether it
// lives; nothing is sent to it.
func (o *owner) takeBack(h *holder) {
	if !o.shimLives(h.dir) {
		o.onExit(h, lastWord(h.dir))
		return
	}
	var l launched
	for waited := 0; waited < childWaitMs; waited += childPollMs {
		p, err := hold.ReadProcess(h.dir, hold.ShimFile)
		if err == nil {
			l.shim = p
			break
		}
		if !hold.Locked(h.dir) || !wait(o.ctx, childPollMs) {
			break
		}
	}
	l.child = awaitChild(o.ctx, h.dir, l.shim)
	spec := h.rec.Spec
	if r := spec.Rank; r != nil && r.Protocol {
		path, err := o.socketPath(h.dir, spec.ID)
		if err == nil {
			l.server, err = o.listenRanks(h, spec, path)
		}
		if err == nil {
			var id *identity
			if id, err = account(spec.User); err == nil {
				err = own(path, id)
			}
		}
		if err != nil {
			o.cfg.Log.Error("rank socket of a holder taken back", "holder", spec.ID, "error", err)
		}
	}
	o.onLaunched(h, l)
	o.cfg.Log.Info("holder taken back", "id", spec.ID, "state", h.state, "pid", l.child.PID)
	o.workers.Go(func() { o.follow(h, l) })
}

// shimLives says whether a shim has the directory. One that was forked just
// before the last agent ended may not have taken its lock yet: it gets a moment.
func (o *owner) shimLives(dir string) bool {
	for waited := 0; ; waited += childPollMs {
		if hold.Locked(dir) {
			return true
		}
		_, ran := os.Stat(filepath.Join(dir, hold.ShimFile))
		_, written := os.Stat(filepath.Join(dir, hold.RunFile))
		if ran == nil || written != nil || waited >= shimWaitMs || !wait(o.ctx, childPollMs) {
			return false
		}
	}
}

// endUnknown kills every process that carries our mark and belongs to no holder
// of the journal, and removes directories that nobody needs.
func (o *owner) endUnknown() {
	names, err := o.tree.Holders()
	if err != nil {
		o.cfg.Log.Error("sweep", "error", err)
	}
	for _, name := range names {
		if h := o.holders[name]; h != nil && h.rec.Started {
			continue
		}
		o.cfg.Log.Warn("ending what the journal does not know", "holder", name)
		g := o.tree.Group(name)
		for waited := 0; waited < sweepWaitMs; waited += childPollMs {
			_ = g.Kill()
			if pids, err := g.Pids(); err == nil && len(pids) == 0 {
				break
			}
			if !wait(o.ctx, childPollMs) {
				break
			}
		}
		if err := g.Remove(); err != nil {
			o.cfg.Log.Error("sweep", "holder", name, "error", err)
		}
	}
	_ = os.RemoveAll(filepath.Join(o.cfg.DataDir, "trash"))
	if err := os.Mkdir(filepath.Join(o.cfg.DataDir, "trash"), 0o700); err != nil {
		o.cfg.Log.Error("sweep", "error", err)
	}
	dirs, _ := os.ReadDir(filepath.Join(o.cfg.DataDir, "holders"))
	for _, d := range dirs {
		if o.holders[d.Name()] == nil {
			removeHolderDir(o.holderDir(d.Name()))
		}
	}
}

// removeHolderDir removes a holder's directory once no shim lives in it. A shim
// that is about to begin finds exit.json, or no directory.
func removeHolderDir(dir string) {
	if err := hold.Cancel(dir, "forgotten"); errors.Is(err, hold.ErrRunning) {
		return
	}
	_ = os.RemoveAll(dir)
}
