package own

import (
	"math"
	"sync/atomic"
	"time"

	"sluice/router"
	"sluice/slo"
)

// tickMs is how often a line with someone waiting looks again by itself: replicas come back from being busy, ejected or
// without a lease by the clock alone.
const tickMs = 25

// maxAside bounds how many heads that only excluded replicas could take are passed over in one round.
const maxAside = 8

// waiter is one request in a line. It belongs to the line's goroutine from when it was sent in until its answer is in
// result; then it belongs to Acquire again.
type waiter struct {
	item   router.Item
	req    *router.Request
	ticket *Ticket
	result chan error // one answer; nil: ticket is charged
}

// message to a line: a newcomer, or one that leaves.
type message struct {
	w     *waiter
	leave bool
}

// line is the waiting of one model. Its goroutine alone touches queue; the atomics are read by everyone.
type line struct {
	router *Router
	model  string

	queued   atomic.Int64 // sent in and not answered; above 0 the fast path is closed
	inFlight atomic.Int64
	classes  [slo.NumClasses]atomic.Int64 // published after each round
	oldestMs atomic.Int64
	heldMs   floatCell // how long a request holds its slot
	ratio    floatCell // mean of the counters' ratio

	inbox chan message // not buffered: what was sent has been received, or the line is done
	wake  chan struct{}
	stop  chan struct{}
	done  chan struct{}

	queue  *router.Queue
	nextMs int64 // earliest deadline inside
}

func newLine(r *Router, model string) *line {
	l := &line{
		router: r, model: model, queue: router.NewQueue(r.cfg.QueueLimit),
		inbox: make(chan message), wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go l.run()
	return l
}

func (l *line) poke() {
	select {
	case l.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// run owns the queue.
func (l *line) run() {
	defer close(l.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case m := <-l.inbox:
			l.receive(m)
		case <-l.wake:
		case <-timer.C:
		case <-l.stop:
			l.refuseAll()
			return
		}
		l.round(l.router.cfg.NowMs())
		wait := time.Hour
		if l.queue.Len() > 0 {
			wait = tickMs * time.Millisecond
		}
		timer.Reset(wait)
	}
}

// receive takes a newcomer in, or one that leaves out.
func (l *line) receive(m message) {
	if m.leave {
		// Not in the queue any more: its answer is on the way already.
		if l.queue.Contains(&m.w.item) {
			l.queue.Remove(&m.w.item)
			l.answer(m.w, ErrGone)
		}
		return
	}
	nowMs := l.router.cfg.NowMs()
	m.w.item.EnqueuedMs = nowMs
	if refusal := l.hopeless(m.w, nowMs); refusal != nil {
		l.answer(m.w, refusal)
		return
	}
	displaced, ok := l.queue.Push(&m.w.item)
	if displaced != nil {
		l.answer(displaced.Ref.(*waiter), l.refuse(slo.RefusedQueueFull, "A more urgent request took the last place in the queue of this model. Wait as Retry-After says."))
	}
	if !ok {
		l.answer(m.w, l.refuse(slo.RefusedQueueFull, "The queue of this model is full. Wait as Retry-After says."))
		return
	}
	if at := m.w.item.DeadlineMs; l.nextMs == 0 || at < l.nextMs {
		l.nextMs = at
	}
}

// hopeless refuses at once what could only wait to be refused. It also sets the deadline the request waits under.
func (l *line) hopeless(w *waiter, nowMs int64) error {
	lv := l.router.live.Load()
	var m *router.Model
	replicas, slots := 0, 0
	for { // ends: when the table did not change meanwhile. The replicas of one that is replaced are closed
		var ok bool
		if m, ok = lv.table.Lookup(l.model); !ok {
			return router.ErrUnknownModel
		}
		if replicas, slots = l.usable(lv, m, w.req, nowMs); replicas > 0 {
			break
		}
		now := l.router.live.Load()
		if now == lv {
			break
		}
		lv = now
	}
	limitMs := l.router.cfg.MaxWaitMs
	if replicas == 0 {
		limitMs = l.router.cfg.EmptyWaitMs
		if limitMs == 0 || allExcluded(m, w.req) {
			return l.refuse(slo.NoReplica, "No replica of this model can take the request. Wait as Retry-After says.")
		}
	}
	w.item.DeadlineMs = nowMs + limitMs
	if d := w.req.DeadlineMs; d > 0 && d < w.item.DeadlineMs {
		w.item.DeadlineMs = d
	}
	drain := l.drainPerS(slots)
	ahead, _ := l.queue.AheadOf(w.item.Class)
	waitMs := router.WaitMs(ahead+1, drain, replicas, l.coming())
	if w.item.DeadlineMs <= nowMs || (drain > 0 && float64(nowMs)+waitMs > float64(w.item.DeadlineMs)) {
		return l.refuse(slo.RefusedDeadline, "The queue of this model is longer than the request can wait. Wait as Retry-After says, or allow more time.")
	}
	return nil
}

// allExcluded: every replica was tried by this request already.
func allExcluded(m *router.Model, req *router.Request) bool {
	if len(req.Exclude) == 0 || len(m.Replicas) == 0 {
		return false
	}
	for i := range m.Replicas {
		tried := !req.Allows(&m.Replicas[i])
		for _, id := range req.Exclude {
			tried = tried || id == m.Replicas[i].ID
		}
		if !tried {
			return false
		}
	}
	return true
}

// usable counts the replicas that could serve the request, and their slots.
func (l *line) usable(lv *live, m *router.Model, req *router.Request, nowMs int64) (replicas, slots int) {
	for i := range m.Replicas {
		r := &m.Replicas[i]
		out := lv.counters[r.Slot].standing(nowMs) == router.Out || !req.Allows(r)
		for _, id := range req.Exclude {
			out = out || id == r.ID
		}
		if !out {
			replicas++
			slots += r.MaxInFlight
		}
	}
	return replicas, slots
}

// drainPerS is how many requests a second leave so many slots when all are held; 0 while unknown. Counting endings
// instead would measure arrivals whenever there is no queue.
func (l *line) drainPerS(slots int) float64 {
	held := l.heldMs.load()
	if held <= 0 {
		return 0
	}
	return float64(slots) / held * 1000
}

func (l *line) coming() router.Coming {
	if l.router.cfg.Coming == nil {
		return router.Coming{}
	}
	return l.router.cfg.Coming(l.model)
}

// refuse builds a refusal with an honest time to come back.
func (l *line) refuse(outcome slo.Outcome, message string) error {
	lv, nowMs := l.router.live.Load(), l.router.cfg.NowMs()
	replicas, slots := 0, 0
	if m, ok := lv.table.Lookup(l.model); ok {
		replicas, slots = l.usable(lv, m, &router.Request{}, nowMs)
	}
	waitMs := router.WaitMs(l.queue.Len()+1, l.drainPerS(slots), replicas, l.coming())
	if math.IsInf(waitMs, 1) && replicas > 0 {
		waitMs = 1000 // nothing has ended yet to learn from
	}
	return router.Refuse(outcome, router.BoundRetryMs(waitMs), message)
}

func (l *line) answer(w *waiter, err error) {
	l.queued.Add(-1)
	w.result <- err
}

// round lets in as many as there is room for and refuses the late.
func (l *line) round(nowMs int64) {
	if l.nextMs > 0 && l.nextMs <= nowMs {
		l.nextMs = l.queue.Expire(nowMs, func(it *router.Item) { l.late(it, nowMs) })
	}
	lv := l.router.live.Load()
	var aside [maxAside]*router.Item
	n := 0
	for l.queue.Len() > 0 {
		head := l.queue.Head()
		w := head.Ref.(*waiter)
		verdict := l.router.try(lv, l, w.ticket, w.req)
		if verdict == router.Picked {
			w.ticket.queueMs = nowMs - head.EnqueuedMs
			l.queue.Take(head)
			l.answer(w, nil)
			continue
		}
		// Only replicas that it may not use have room: it must not hold up those behind it. All else waits in order.
		if len(w.req.Exclude) == 0 && w.req.Version == "" && w.req.Only == "" || n == maxAside {
			break
		}
		l.queue.Remove(head)
		aside[n] = head
		n++
	}
	for _, it := range aside[:n] {
		l.queue.PutBack(it)
	}
	l.publish()
}

func (l *line) late(it *router.Item, nowMs int64) {
	outcome, message := slo.RefusedDeadline, "The request waited for a replica until its deadline. Wait as Retry-After says, or allow more time."
	lv := l.router.live.Load()
	if m, ok := lv.table.Lookup(l.model); ok {
		if replicas, _ := l.usable(lv, m, &router.Request{}, nowMs); replicas == 0 {
			outcome, message = slo.NoReplica, "No replica of this model became ready in time. Wait as Retry-After says."
		}
	}
	l.answer(it.Ref.(*waiter), l.refuse(outcome, message))
}

func (l *line) publish() {
	for c := range l.classes {
		l.classes[c].Store(int64(l.queue.LenClass(slo.Class(c))))
	}
	l.oldestMs.Store(l.queue.OldestMs())
}

// refuseAll empties the line for good.
func (l *line) refuseAll() {
	err := error(router.ErrUnknownModel)
	if l.router.closed.Load() {
		err = ErrClosed
	}
	for head := l.queue.Head(); head != nil; head = l.queue.Head() {
		l.queue.Remove(head)
		l.answer(head.Ref.(*waiter), err)
	}
	l.publish()
}

// wait sends a request into the line and stays until it is answered. retry: the line is done, look the model up again.
func (l *line) wait(w *waiter, gone <-chan struct{}) (err error, retry bool) {
	l.queued.Add(1)
	select {
	case l.inbox <- message{w: w}:
	case <-l.done:
		l.queued.Add(-1)
		return nil, true
	}
	select {
	case err = <-w.result:
		return err, false
	case <-gone:
	}
	select {
	case l.inbox <- message{w: w, leave: true}:
	case <-l.done: // it answered everyone before
	}
	if err = <-w.result; err == nil { // let in at the same moment
		w.ticket.Release(Result{Outcome: slo.ClientGone})
		err = ErrGone
	}
	return err, false
}
