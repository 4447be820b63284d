package fill

import (
	"fmt"
	"strings"

	"sluice/nodes"
	"sluice/nodes/registry"
)

// speechless is the remedy of a job whose ranks say nothing.
const speechless = "a program that does not speak the rank protocol needs protocol none"

func (a *advancer) job(j *registry.Job) {
	switch j.Phase {
	case registry.JobPending, registry.JobPaused:
		a.jobWaiting(j)
		return
	case registry.JobReleasing:
		a.jobReleasing(j)
		return
	}
	if j.Phase.Ended() || a.jobBroken(j) {
		return
	}
	late := a.v.deadlinePassed(j.SinceMs, j.TimeoutMs, a.nowMs)
	switch j.Phase {
	case registry.JobPreparing, registry.JobStarting, registry.JobResuming:
		a.jobComing(j, late)
	case registry.JobRunning:
		a.manifests(j)
		if a.finished(j) {
			a.endJob(j, registry.JobSucceeded, registry.RungUser, "finished", true, false)
		}
	case registry.JobStopping:
		a.jobStopping(j, late)
	}
}

func (a *advancer) jobWaiting(j *registry.Job) {
	to := registry.JobPhase("")
	switch {
	case j.Want == "cancelled":
		to = registry.JobCancelled
	case j.Want == "paused" && j.Phase == registry.JobPending:
		to = registry.JobPaused
	default:
		return
	}
	a.jobTo(j, to, 0, "asked by its owner")
}

func (a *advancer) jobTo(j *registry.Job, to registry.JobPhase, timeoutMs int64, reason string) {
	a.emit(registry.Command{JobPhase: &registry.PhaseChange{Name: j.Spec.Name, Seq: j.Seq, To: string(to), TimeoutMs: timeoutMs, Reason: reason}, Reason: reason})
}

// rankSeen finds what is known of rank i of the present generation.
func (a *advancer) rankSeen(j *registry.Job, i int) (*nodes.HolderStatus, *nodes.RankSeen) {
	p := &j.Ranks[i]
	holder := j.Holder(i)
	return a.v.Fleet.Holder(p.Node, holder), a.v.Fleet.Rank(p.Node, holder, i)
}

// every tells whether f holds for all ranks of the present generation.
func (a *advancer) every(j *registry.Job, f func(i int, h *nodes.HolderStatus, r *nodes.RankSeen) bool) bool {
	for i := range j.Ranks {
		h, r := a.rankSeen(j, i)
		if !f(i, h, r) {
			return false
		}
	}
	return len(j.Ranks) > 0
}

// jobBroken ends a generation that lost a rank, a node or a GPU.
func (a *advancer) jobBroken(j *registry.Job) bool {
	for i := range j.Ranks {
		p := &j.Ranks[i]
		if n := a.v.State.Nodes[p.Node]; n == nil || n.Lost {
			a.endJob(j, registry.JobPaused, registry.RungFailed, "node "+p.Node+" is lost", false, false)
			return true
		}
		for _, id := range p.GPUs {
			if g := a.v.State.GPUs[id]; g.Fenced != "" && !isForeign(g.Fenced) {
				a.endJob(j, registry.JobPaused, registry.RungFailed, "GPU "+id+" is fenced: "+g.Fenced, false, false)
				return true
			}
		}
		if why := a.rankBroken(j, i); why != "" {
			a.crashed(j, fmt.Sprintf("rank %d: %s", i, why))
			return true
		}
	}
	return false
}

// rankBroken says why a rank's end was not one we asked for; "" when it lives
// or ended as it should.
func (a *advancer) rankBroken(j *registry.Job, i int) string {
	h, r := a.rankSeen(j, i)
	if h == nil {
		if j.Phase != registry.JobPreparing && j.Phase != registry.JobStarting && a.v.connected(j.Ranks[i].Node) {
			return "its agent has no such holder"
		}
		return ""
	}
	if !ended(h) {
		return ""
	}
	good := h.ExitCode == 0
	switch {
	case j.Phase == registry.JobStopping && !j.Spec.SpeaksProtocol():
		return "" // the stop judges its end
	case j.Spec.SpeaksProtocol() && r != nil && (r.Finished || (j.Stop != nil && r.StoppedID == j.Stop.ID)):
		return ""
	case !j.Spec.SpeaksProtocol() && good && j.Phase == registry.JobRunning:
		return "" // done, when all are
	}
	text := endedText(h)
	if good && j.Spec.SpeaksProtocol() && strings.HasPrefix(text, "exited with code 0") {
		text += " without a word that it had finished; " + speechless
	}
	return text
}

// crashed counts a restart and gives up when there were too many.
func (a *advancer) crashed(j *registry.Job, why string) {
	recent := 0
	for _, at := range j.Restarts {
		if a.nowMs-at < restartWindowMs {
			recent++
		}
	}
	after := registry.JobPaused
	if recent >= j.Spec.MaxRestarts {
		after = registry.JobFailed
		why = fmt.Sprintf("%s; %d crashes within %d minutes, maxRestarts is %d", why, recent+1, restartWindowMs/60_000, j.Spec.MaxRestarts)
	}
	a.endJob(j, after, registry.RungFailed, why, false, true)
}

// cannotStart ends a generation that an agent refused to prepare. A lasting
// reason counts as a crash; one that passes (a GPU not free yet) is tried again
// soon and held against nobody.
func (a *advancer) cannotStart(j *registry.Job, why string, lasting bool) {
	if lasting {
		a.crashed(j, why)
		return
	}
	a.emit(registry.Command{JobEnding: &registry.JobEnding{Job: j.Spec.Name, Seq: j.Seq, After: a.afterWant(j, registry.JobPaused),
		Rung: registry.RungFailed, LastDone: a.lastDone(j), TimeoutMs: releaseTimeoutMs, BackoffToMs: a.nowMs + backoffFirstMs, Reason: why}, Reason: why})
}

// afterWant is what becomes of a job after its generation, given what its owner wants.
func (a *advancer) afterWant(j *registry.Job, after registry.JobPhase) registry.JobPhase {
	switch {
	case j.Want == "cancelled" && !after.Ended():
		return registry.JobCancelled
	case j.Want == "paused" && after == registry.JobPreparing:
		return registry.JobPaused
	}
	return after
}

// endJob closes the present generation.
func (a *advancer) endJob(j *registry.Job, after registry.JobPhase, rung registry.Rung, reason string, clean, restart bool) {
	backoff := int64(0)
	if restart && after == registry.JobPaused {
		backoff = a.nowMs + backoffMs(len(j.Restarts))
	}
	after = a.afterWant(j, after)
	a.emit(registry.Command{JobEnding: &registry.JobEnding{Job: j.Spec.Name, Seq: j.Seq, After: after, Rung: rung,
		LastDone: a.lastDone(j), Clean: clean, TimeoutMs: releaseTimeoutMs, BackoffToMs: backoff, Restart: restart, Reason: reason}, Reason: reason})
}

// lastDone is the highest step that any rank reported done; -1 when the job
// does not report steps. Ranks that synchronise differ by one at most, and a
// step that one rank has done all have contributed to.
func (a *advancer) lastDone(j *registry.Job) int64 {
	if !j.Spec.SpeaksProtocol() {
		return -1
	}
	last := j.FromStep
	for i := range j.Ranks {
		if _, r := a.rankSeen(j, i); r != nil {
			last = max(last, r.Done)
		}
	}
	return last
}

func (a *advancer) jobComing(j *registry.Job, late bool) {
	if j.Want != "" {
		a.endJob(j, registry.JobPaused, registry.RungUser, "asked by its owner", false, false)
		return
	}
	switch j.Phase {
	case registry.JobPreparing:
		for i, p := range j.Ranks {
			if ans := a.v.answer(p.Node, rankOrderID(j, i, nodes.OrderPrepare)); ans.Err != "" {
				a.cannotStart(j, fmt.Sprintf("rank %d cannot start: %s", i, ans.Err), ans.Lasting)
				return
			}
		}
		if a.every(j, func(_ int, h *nodes.HolderStatus, _ *nodes.RankSeen) bool {
			return h != nil && h.State == nodes.StatePrepared
		}) {
			h, _ := a.rankSeen(j, 0)
			host := a.v.State.Nodes[j.Ranks[0].Node].Host
			a.emit(registry.Command{JobPhase: &registry.PhaseChange{Name: j.Spec.Name, Seq: j.Seq, To: string(registry.JobStarting),
				TimeoutMs: j.Spec.StartTimeoutMs, MasterAddr: host, MasterPort: h.Port}, Reason: "all agents prepared"})
			return
		}
	case registry.JobStarting:
		if a.every(j, func(_ int, h *nodes.HolderStatus, r *nodes.RankSeen) bool {
			return h != nil && h.State == nodes.StateRunning && (!j.Spec.SpeaksProtocol() || (r != nil && r.Hello))
		}) {
			a.jobTo(j, registry.JobRunning, 0, "all ranks said hello")
			return
		}
	case registry.JobResuming:
		if a.every(j, func(_ int, h *nodes.HolderStatus, r *nodes.RankSeen) bool {
			return h != nil && h.State == nodes.StateRunning && r != nil && (j.Stop == nil || r.ResumedID == j.Stop.ID)
		}) {
			a.jobTo(j, registry.JobRunning, 0, "all ranks went on")
			return
		}
	}
	if late {
		why := fmt.Sprintf("still %s after %d ms", j.Phase, j.TimeoutMs)
		if j.Phase == registry.JobStarting && j.Spec.SpeaksProtocol() {
			why += ": a rank did not say hello; " + speechless
		}
		a.crashed(j, why)
	}
}

func (a *advancer) finished(j *registry.Job) bool {
	return a.every(j, func(_ int, h *nodes.HolderStatus, r *nodes.RankSeen) bool {
		if j.Spec.SpeaksProtocol() {
			return r != nil && r.Finished
		}
		return h != nil && h.Exited && h.ExitCode == 0
	})
}

func (a *advancer) jobStopping(j *registry.Job, late bool) {
	switch {
	case !j.Spec.SpeaksProtocol():
		a.signalStopping(j, late)
		return
	case j.Stop.Step < 0:
		a.stopPreparing(j)
	case j.Stop.Mode == nodes.StopYield:
		if a.every(j, func(_ int, h *nodes.HolderStatus, r *nodes.RankSeen) bool {
			return h != nil && h.State == nodes.StateYielded && r != nil && r.YieldedID == j.Stop.ID
		}) {
			a.jobTo(j, registry.JobYielded, 0, j.Stop.Reason)
			return
		}
	default:
		a.manifests(j)
		if a.every(j, func(_ int, _ *nodes.HolderStatus, r *nodes.RankSeen) bool {
			return r != nil && (r.StoppedID == j.Stop.ID || r.Finished)
		}) {
			a.endStopped(j)
			return
		}
	}
	if late {
		a.endJob(j, a.afterStop(j), registry.RungKill, fmt.Sprintf("did not stop within %d ms (%s)", j.TimeoutMs, j.Stop.Reason), false, false)
	}
}

// endStopped ends a generation whose ranks all stopped. If it finished in the
// meantime, it succeeded; without a manifest of the agreed step the loss is booked.
func (a *advancer) endStopped(j *registry.Job) {
	saved := int64(0)
	if m := a.complete(j); m != nil {
		saved = m.Step
	} else if m := j.Current(); m != nil {
		saved = m.Step
	}
	clean := saved >= a.lastDone(j)
	if a.finished(j) {
		a.endJob(j, registry.JobSucceeded, j.Stop.Rung, "finished while it was asked to stop", clean, false)
		return
	}
	a.endJob(j, a.afterStop(j), j.Stop.Rung, j.Stop.Reason, clean, false)
}

func (a *advancer) afterStop(j *registry.Job) registry.JobPhase {
	if len(j.Next) > 0 {
		return registry.JobPreparing
	}
	return registry.JobPaused
}

func (a *advancer) signalStopping(j *registry.Job, late bool) {
	clean := true
	if a.every(j, func(_ int, h *nodes.HolderStatus, _ *nodes.RankSeen) bool {
		clean = clean && h != nil && h.ExitCode == 0
		return h == nil || h.Exited || h.State == nodes.StateGone
	}) {
		a.endJob(j, a.afterStop(j), j.Stop.Rung, j.Stop.Reason, clean, false)
		return
	}
	if late {
		a.endJob(j, a.afterStop(j), registry.RungKill, fmt.Sprintf("ignored %s for %d ms (%s)", j.Spec.StopSignal, j.TimeoutMs, j.Stop.Reason), false, false)
	}
}

// stopPreparing commits the stop once every rank answered with the last step
// it has begun: S is the highest of them.
func (a *advancer) stopPreparing(j *registry.Job) {
	step := int64(0)
	if !a.every(j, func(_ int, _ *nodes.HolderStatus, r *nodes.RankSeen) bool {
		if r == nil {
			return false
		}
		if r.Finished {
			step = max(step, r.FinishedStep)
			return true
		}
		step = max(step, r.PreparedBegun)
		return r.PreparedID == j.Stop.ID
	}) {
		return
	}
	a.emit(registry.Command{JobCommit: &registry.JobCommit{Job: j.Spec.Name, StopID: j.Stop.ID, Step: step}, Reason: "all ranks answered"})
}

// manifests records the newest complete checkpoint, if it is newer than the current.
func (a *advancer) manifests(j *registry.Job) {
	if !j.Spec.SpeaksProtocol() {
		return
	}
	if m := a.complete(j); m != nil {
		a.emit(registry.Command{Manifest: m, Reason: "every rank's shards are there"})
	}
}

// complete finds the highest step, above the current manifest's, of which every
// rank has reported its shards and is no longer writing.
func (a *advancer) complete(j *registry.Job) *registry.Manifest {
	floor := int64(0)
	if m := j.Current(); m != nil {
		floor = m.Step
	}
	var steps []int64
	_, r0 := a.rankSeen(j, 0)
	if r0 == nil {
		return nil
	}
	for _, sh := range r0.Shards {
		if sh.Step > floor {
			steps = append(steps, sh.Step)
		}
	}
	var best *registry.Manifest
	for _, step := range steps {
		if best != nil && step <= best.Step {
			continue
		}
		if m := a.gather(j, step); m != nil {
			best = m
		}
	}
	return best
}

func (a *advancer) gather(j *registry.Job, step int64) *registry.Manifest {
	m := &registry.Manifest{Job: j.Spec.Name, Generation: j.Generation, Step: step, World: len(j.Ranks)}
	for i := range j.Ranks {
		_, r := a.rankSeen(j, i)
		if r == nil || (r.Phase == "save" && r.Begun <= step && r.StoppedID == "" && !r.Finished) {
			return nil
		}
		have := false
		for _, sh := range r.Shards {
			if sh.Step == step {
				sh.Rank, sh.Node = i, j.Ranks[i].Node
				m.Shards = append(m.Shards, sh)
				m.Samples = max(m.Samples, sh.Samples)
				have = true
			}
		}
		if !have {
			return nil
		}
	}
	return m
}

// jobReleasing reports the ranks that are proved gone, and gives up those on
// nodes that are lost.
func (a *advancer) jobReleasing(j *registry.Job) {
	var gone, abandoned []int
	for i, p := range j.Ranks {
		if p.Gone {
			continue
		}
		n := a.v.State.Nodes[p.Node]
		switch {
		case a.v.gone(p.Node, j.Holder(i), rankOrderID(j, i, nodes.OrderStop), rankOrderID(j, i, nodes.OrderKill)):
			gone = append(gone, i)
		case n == nil || n.Lost:
			if j.Spec.SpeaksProtocol() || n == nil || a.nowMs-n.LastSeenMs >= abandonSignalMs {
				abandoned = append(abandoned, i)
			}
		}
	}
	if len(gone) > 0 {
		a.emit(registry.Command{RankGone: &registry.RankGone{Job: j.Spec.Name, Generation: j.Generation, Ranks: gone, LastDone: a.lastDone(j)}, Reason: "proved gone"})
	}
	if len(abandoned) > 0 {
		a.emit(registry.Command{RankGone: &registry.RankGone{Job: j.Spec.Name, Generation: j.Generation, Ranks: abandoned, LastDone: a.lastDone(j), Abandon: true}, Reason: "its node is lost"})
	}
}
