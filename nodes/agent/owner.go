package agent

import (
	"context"
	"errors"
	"math"
	"net/http"
	"sync"
	"time"

	"sluice/nodes"
	"sluice/nodes/agent/cgroup"
)

// owner has the agent's whole state. Its fields belong to the goroutine that
// runs loop; everything else reaches them by a function given to do or ask.
// Workers (go) observe and act outside, and report back the same way; they
// never read a field below the line.
type owner struct {
	cfg     Config
	tree    cgroup.Tree
	client  *http.Client // to replicas
	ctx     context.Context
	fail    context.CancelCauseFunc
	events  chan func() // bounded by maxEvents; the owner itself never sends
	workers sync.WaitGroup

	// --- the owner's alone ---

	node     nodes.Node
	gpus     map[string]nodes.GPU
	journal  *journal
	term     uint64 // highest obeyed; synced to the journal before it is used
	holders  map[string]*holder
	list     []*holder // the same, in order of arrival
	answers  answerLog
	pending  map[string]bool // orders whose answer a worker will give
	ports    portPicker
	trashed  int // directories moved away since the start
	link     *link
	leaderMs int64 // last word of a leader
	seen     observation
	baseline map[string]int64 // used bytes of a GPU without any process
}

// do gives f to the owner and returns; false when the agent is ending.
func (o *owner) do(ctx context.Context, f func()) bool {
	select {
	case o.events <- f:
		return true
	case <-ctx.Done():
		return false
	case <-o.ctx.Done():
		return false
	}
}

// ask gives f to the owner and waits until it has run.
func (o *owner) ask(ctx context.Context, f func()) bool {
	done := make(chan struct{})
	if !o.do(ctx, func() { f(); close(done) }) {
		return false
	}
	select {
	case <-done:
		return true
	case <-o.ctx.Done():
		return false
	}
}

// work runs f beside the owner, and what f returns on the owner.
func (o *owner) work(ctx context.Context, f func(context.Context) func()) {
	o.workers.Go(func() {
		if then := f(ctx); then != nil {
			o.do(o.ctx, then)
		}
	})
}

// loop runs until the agent ends.
func (o *owner) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-o.ctx.Done():
			return
		case f := <-o.events:
			f()
		case <-timer.C:
		}
		now := o.cfg.NowMs()
		due := o.advanceAll(now)
		if due < math.MaxInt64 {
			timer.Reset(time.Duration(max(due-now, 1)) * time.Millisecond)
		}
	}
}

// advanceAll does what is due for each holder, and returns when to come again.
func (o *owner) advanceAll(now int64) int64 {
	due := int64(math.MaxInt64)
	if o.leaderMs+o.cfg.LeaderlessMs <= now {
		o.endGangs(now)
	} else {
		due = o.leaderMs + o.cfg.LeaderlessMs
	}
	for _, h := range o.list {
		due = min(due, o.advance(h, now))
		o.tell(h, now)
	}
	if o.journal.full() {
		o.compact()
	}
	return due
}

// endGangs ends every gang here: no leader has been heard for so long that the
// gang may have been started elsewhere.
func (o *owner) endGangs(now int64) {
	o.leaderMs = now // the next time after another LeaderlessMs
	for _, h := range o.list {
		if h.rec.Spec.Kind == nodes.KindRank && h.state != nodes.StateGone && h.rec.Want == "" {
			o.want(h, nodes.OrderStop, DefaultGraceMs, "no leader was heard for the limit")
		}
	}
}

// write journals an entry. An agent that cannot write its journal must not act:
// it ends, and its holders go on.
func (o *owner) write(e entry, sync bool) {
	if err := o.journal.append(e, sync); err != nil {
		o.fail(err)
	}
}

func (o *owner) save(h *holder) {
	rec := h.rec
	rec.State = h.state
	o.write(entry{Holder: &rec}, false)
}

func (o *owner) compact() {
	entries := []entry{{Baseline: o.baseline}}
	if o.term != 0 {
		entries = append(entries, entry{Term: o.term})
	}
	for _, h := range o.list {
		if h.checking {
			continue
		}
		rec := h.rec
		rec.State = h.state
		entries = append(entries, entry{Holder: &rec})
		for _, n := range h.notes() {
			if kept(n.Kind) {
				entries = append(entries, entry{Note: &n})
			}
		}
	}
	for _, a := range o.answers.all() {
		entries = append(entries, entry{Answer: &a})
	}
	if err := o.journal.compact(entries); err != nil {
		o.fail(err)
	}
}

// attach makes l the stream and tells it everything.
func (o *owner) attach(l *link) {
	if o.link != nil {
		o.link.close()
	}
	o.link = l
	hello := &nodes.Hello{Node: o.node, Term: o.term, Readings: o.readings()}
	for _, h := range o.list {
		if h.checking {
			continue
		}
		h.told = h.status()
		hello.Holders = append(hello.Holders, h.told)
		for _, r := range h.ranks {
			r.pending = nil
		}
		hello.Ranks = append(hello.Ranks, h.notes()...)
	}
	l.push(nodes.Frame{Hello: hello})
}

func (o *owner) detach(l *link) {
	if o.link == l {
		o.link = nil
	}
}

func (o *owner) send(f nodes.Frame) {
	if o.link != nil {
		o.link.push(f)
	}
}

// tell sends a holder's status when it differs from the last one told.
func (o *owner) tell(h *holder, now int64) {
	if h.checking {
		return
	}
	st := h.status()
	if st.State != h.told.State {
		h.sinceMs = now
	}
	st.SinceMs = h.told.SinceMs
	if same(st, h.told) {
		return
	}
	st.SinceMs = h.sinceMs
	h.told = st
	o.send(nodes.Frame{Holder: &st})
}

// onDown takes one line from the leader.
func (o *owner) onDown(l *link, d nodes.Down) {
	if l != o.link {
		return // of a connection that has been replaced
	}
	switch {
	case d.Order != nil:
		o.leaderMs = o.cfg.NowMs()
		o.onOrder(*d.Order)
	case d.Welcome != nil:
		o.onTerm(l, d.Welcome.Term)
	case d.Beat != nil:
		o.onTerm(l, d.Beat.Term)
	}
}

// onTerm drops the connection to a leader that has been succeeded.
func (o *owner) onTerm(l *link, term uint64) {
	if term < o.term {
		o.cfg.Log.Warn("a leader of an older term is not obeyed; if the cluster was founded anew, stop this agent's holders and empty its data directory", "term", term, "obeyed", o.term)
		l.close()
		return
	}
	o.leaderMs = o.cfg.NowMs()
	o.raise(term)
}

func (o *owner) raise(term uint64) {
	if term > o.term {
		o.term = term
		o.write(entry{Term: term}, true)
	}
}

// onSeen takes the periodic observation of the devices.
func (o *owner) onSeen(obs observation) {
	if obs.devErr != nil && !errors.Is(obs.devErr, context.Canceled) {
		o.cfg.Log.Warn("devices cannot be read", "error", obs.devErr)
	}
	o.seen = obs
	o.learnBaseline(obs)
	o.guardResidents(obs)
	o.send(nodes.Frame{Readings: &nodes.Readings{GPUs: o.readings()}})
}

// learnBaseline remembers what a GPU uses beyond its processes, where the device
// gives figures for all of them. While a holder comes or goes there, what it has
// mapped and what is its own differ for moments.
func (o *owner) learnBaseline(obs observation) {
	changed := false
	for _, r := range obs.devices {
		own, ok := ownBytes(r)
		if !ok || r.UsedBytes == nil || o.moving(r.UUID) {
			continue
		}
		rest := max(0, *r.UsedBytes-own)
		if old, known := o.baseline[r.UUID]; !known || rest < old {
			o.baseline[r.UUID] = rest
			changed = true
		}
	}
	if changed {
		o.write(entry{Baseline: o.baseline}, false)
	}
}

// moving says whether a holder of the GPU is coming or going.
func (o *owner) moving(uuid string) bool {
	for _, h := range o.list {
		if h.has(uuid) && (h.state == nodes.StateStarting || h.state == nodes.StateEnding || h.rec.Want != "") {
			return true
		}
	}
	return false
}

// maxExceeding is how many readings in a row a resident may exceed what it
// declared, or compute, before it is ended.
const maxExceeding = 2

// guardResidents ends a sleeping or yielded holder that does not keep to it.
func (o *owner) guardResidents(obs observation) {
	for _, h := range o.list {
		settled := (h.state == nodes.StateAsleep || h.state == nodes.StateYielded) && !h.rising && h.rec.Want == ""
		if !settled {
			h.exceeding = 0
			continue
		}
		why := judgeQuiet(h.claim(), obs, o.claims(h))
		if why == "" {
			h.exceeding = 0
			continue
		}
		if h.exceeding++; h.exceeding >= maxExceeding {
			o.want(h, nodes.OrderKill, 0, "resident ended: "+why)
		}
	}
}
