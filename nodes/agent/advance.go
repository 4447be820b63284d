package agent

import (
	"context"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"sluice/nodes"
	"sluice/nodes/agent/cgroup"
	"sluice/nodes/agent/hold"
)

const (
	// Proofs are tried again after a pause that doubles between these.
	proofMinMs = 4
	proofMaxMs = 1000
	// maxProofs bounds the tries of one proof: about ten minutes. After it the
	// state stays, the reason says so, and a new order begins anew.
	maxProofs = 600
	// killEveryMs is the pause between two kills of one group.
	killEveryMs = 1000
	// maxKills is how often the group is killed before its shim is, too.
	maxKills = 15

	// lastWordsMs is how long the end of a dead rank's connection is waited for.
	lastWordsMs = 1000

	never = math.MaxInt64
)

// advance does what is due for one holder, and returns when to come again.
func (o *owner) advance(h *holder, now int64) int64 {
	if h.checking || h.state == nodes.StateGone {
		return never
	}
	due := o.advanceNotes(h, now)
	switch {
	case h.rec.Exited:
		return min(due, o.advanceEnding(h, now))
	case !h.rec.Started:
		if h.rec.Want == nodes.OrderStop || h.rec.Want == nodes.OrderKill {
			o.gone(h) // it never had anything
		}
		return due
	case h.launching:
		return due
	}
	if h.rec.Spec.Kind == nodes.KindReplica {
		due = min(due, o.advanceHealth(h, now))
	}
	switch h.rec.Want {
	case nodes.OrderKill:
		return min(due, o.advanceKill(h, now))
	case nodes.OrderStop:
		return min(due, o.advanceStop(h, now))
	case nodes.OrderSleep:
		return min(due, o.advanceSleep(h, now))
	case nodes.OrderWake:
		if !h.calling {
			o.callWake(h)
		}
		return due
	}
	return min(due, o.advanceYield(h, now))
}

// drained says whether no gateway can be using the replica any more.
func (o *owner) drained(h *holder, now int64) (ok bool, due int64) {
	if now >= h.drainEndMs {
		o.cfg.Log.Warn("leases were renewed for the whole limit, going on without them", "holder", h.rec.Spec.ID)
		return true, now
	}
	left, first := h.leases.left(now)
	if left == 0 && now >= h.fencedMs {
		h.blocked = ""
		return true, now
	}
	h.blocked = fmt.Sprintf("%s waits for %d leases", h.rec.Want, left)
	if left == 0 {
		return false, h.fencedMs
	}
	return false, min(first, h.drainEndMs)
}

// serving says whether gateways may have leases on it.
func (h *holder) serving() bool {
	return h.state == nodes.StateReady || h.state == nodes.StateUnwell
}

func (o *owner) advanceStop(h *holder, now int64) int64 {
	if h.serving() {
		if ok, due := o.drained(h, now); !ok {
			return due
		}
	}
	if !h.signalled {
		h.signalled = true
		grace := h.rec.GraceMs
		if grace <= 0 {
			grace = DefaultGraceMs
		}
		h.killAtMs = now + grace
		o.set(h, nodes.StateEnding, h.rec.Reason)
		o.signal(h)
	}
	if now < h.killAtMs {
		return h.killAtMs
	}
	return o.advanceKill(h, now)
}

func (o *owner) advanceKill(h *holder, now int64) int64 {
	if h.killing {
		return never
	}
	if now < h.killAtMs {
		return h.killAtMs
	}
	o.set(h, nodes.StateEnding, h.rec.Reason)
	h.killAtMs = now + killEveryMs
	h.kills++
	if h.kills > 1 {
		h.blocked = fmt.Sprintf("killed %d times and still there", h.kills-1)
	}
	group, shim, too := h.group, h.shim, h.kills > maxKills
	h.killing = true
	o.work(o.ctx, func(context.Context) func() {
		err := group.Kill()
		if too {
			_ = shim.Signal(unix.SIGKILL)
		}
		return func() {
			h.killing = false
			if err != nil {
				h.blocked = err.Error()
			}
		}
	})
	return h.killAtMs
}

// signal sends the stop signal. With torchrun, a signal other than SIGTERM goes
// to its workers: torchrun itself dies of it and leaves them as orphans.
func (o *owner) signal(h *holder) {
	sig := unix.SIGTERM
	r := h.rec.Spec.Rank
	if r != nil && !r.Protocol && r.StopSignal != "" {
		if s := unix.SignalNum(r.StopSignal); s != 0 {
			sig = s
		}
	}
	id, child, workers := h.rec.Spec.ID, h.child, r != nil && r.Launcher == nodes.LaunchTorchrun && sig != unix.SIGTERM
	o.work(o.ctx, func(context.Context) func() {
		to := []cgroup.Process{child}
		if workers {
			to = cgroup.Children(child.PID)
		}
		for _, p := range to {
			if err := p.Signal(sig); err != nil {
				o.cfg.Log.Warn("stop signal", "holder", id, "pid", p.PID, "error", err)
			}
			// A stopped process takes the signal only when it goes on.
			_ = p.Signal(unix.SIGCONT)
		}
		return nil
	})
}

// onExit takes the end of the main process; the proof follows.
func (o *owner) onExit(h *holder, e hold.Exit) {
	if h.rec.Exited || !o.current(h) {
		return
	}
	h.cancel()
	h.launching, h.rising = false, false
	h.rec.Exited, h.rec.ExitCode = true, e.Code
	h.exitMs = o.cfg.NowMs()
	h.proofs, h.proofAtMs, h.blocked = 0, 0, ""
	reason := h.rec.Reason
	switch {
	case e.Reason != "" && reason != "":
		reason += "; " + e.Reason
	case e.Reason != "":
		reason = e.Reason
	case reason == "":
		reason = fmt.Sprintf("exited with code %d", e.Code)
	}
	h.state = nodes.StateEnding
	h.rec.Reason = reason
	o.cfg.Log.Info("holder exited", "id", h.rec.Spec.ID, "code", e.Code, "reason", reason)
	o.save(h)
}

// advanceEnding proves a holder gone whose main process has ended.
func (o *owner) advanceEnding(h *holder, now int64) int64 {
	if h.proving || h.proofs >= maxProofs {
		return never
	}
	if now < h.proofAtMs {
		return h.proofAtMs
	}
	h.proving = true
	group := h.group
	o.work(o.ctx, func(context.Context) func() {
		// What outlived its shim is ended here; the pids are listed after that.
		killErr := group.Kill()
		obs := o.observe(&group)
		if obs.pidErr == nil && len(obs.pids) == 0 {
			obs.pidErr = group.Remove() // fails while anything is in it
		}
		return func() {
			h.proving = false
			why := judgeGone(h.claim(), obs, o.claims(h), o.baseline)
			if why == "" && len(h.conns) > 0 && o.cfg.NowMs() < h.exitMs+lastWordsMs {
				why = "the last words of its ranks are being read"
			}
			if why == "" {
				o.gone(h)
				return
			}
			if killErr != nil {
				why += "; " + killErr.Error()
			}
			o.again(h, why)
		}
	})
	return never
}

// again plans the next try of a proof that failed.
func (o *owner) again(h *holder, why string) {
	h.blocked = why
	h.proofAtMs = o.cfg.NowMs() + min(int64(proofMinMs)<<min(h.proofs, 16), proofMaxMs)
	if h.proofs++; h.proofs >= maxProofs {
		h.blocked = fmt.Sprintf("%s; not looked at again after %d tries: stop or kill it once more", why, maxProofs)
	}
}

func (o *owner) gone(h *holder) {
	h.cancel()
	h.blocked = ""
	h.rec.Want = ""
	// How far it came is told before its end: the books are closed with it.
	for _, m := range h.ranks {
		if n := m.pending; n != nil {
			m.pending = nil
			o.send(nodes.Frame{Rank: n})
		}
	}
	o.set(h, nodes.StateGone, h.rec.Reason)
	if server := h.server; server != nil {
		h.server = nil
		o.work(o.ctx, func(context.Context) func() {
			_ = server.Close()
			return nil
		})
	}
}

// proveQuiet observes and judges, and calls then on success.
func (o *owner) proveQuiet(h *holder, then func()) {
	h.proving = true
	o.work(h.ctx, func(context.Context) func() {
		obs := o.observe(nil)
		return func() {
			h.proving = false
			if h.rec.Exited || !o.current(h) {
				return
			}
			if why := judgeQuiet(h.claim(), obs, o.claims(h)); why != "" {
				o.again(h, "not quiet yet: "+why)
				return
			}
			h.proofs, h.proofAtMs, h.blocked = 0, 0, ""
			then()
		}
	})
}

// advanceYield proves a rank holder quiet when all its ranks said yielded.
func (o *owner) advanceYield(h *holder, now int64) int64 {
	if h.state != nodes.StateRunning || !h.allYielded() || h.proving || h.proofs >= maxProofs {
		return never
	}
	if now < h.proofAtMs {
		return h.proofAtMs
	}
	o.proveQuiet(h, func() {
		if h.allYielded() && h.state == nodes.StateRunning && h.rec.Want == "" {
			o.set(h, nodes.StateYielded, "")
		}
	})
	return never
}
