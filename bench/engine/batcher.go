package engine

import (
	"context"
	"sync"
	"time"
)

// maxLag is how far behind its deadlines the loop may run before it starts
// again from now. Below it, late iterations catch up; a process that was
// stopped for a minute must not owe a minute of tokens at once.
const maxLag = 250 * time.Millisecond

// batcher gives the scheduler its clock. One goroutine (run) begins and ends
// iterations; handlers add and remove sequences under the lock.
type batcher struct {
	speed float64
	stats *stats
	kick  chan struct{} // room for one: there is work for an idle loop

	mu      sync.Mutex
	sched   scheduler     // guarded by mu
	refuse  error         // guarded by mu; nil while sequences are accepted
	emptied chan struct{} // guarded by mu; closed when the last sequence leaves, nil if nobody waits
}

func newBatcher(sched scheduler, speed float64, st *stats) *batcher {
	return &batcher{speed: speed, stats: st, kick: make(chan struct{}, 1), sched: sched, refuse: errAsleep}
}

// submit queues a sequence or says why not.
func (b *batcher) submit(s *sequence) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse != nil {
		return b.refuse
	}
	s.submitted = time.Now()
	if err := b.sched.add(s); err != nil {
		return err
	}
	b.stats.promptTokens.Add(int64(s.promptTokens))
	select {
	case b.kick <- struct{}{}:
	default:
	}
	return nil
}

// cancel takes a sequence out at once; after its end it does nothing.
func (b *batcher) cancel(s *sequence) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sched.remove(s) {
		b.stats.aborted.Add(1)
		b.checkEmptyLocked()
	}
}

func (b *batcher) checkEmptyLocked() {
	if b.emptied != nil && b.sched.empty() {
		close(b.emptied)
		b.emptied = nil
	}
}

// open accepts sequences from now on.
func (b *batcher) open() { b.setRefuse(nil) }

func (b *batcher) setRefuse(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse = err
}

// drain refuses new sequences with err and waits until those accepted have
// ended or ctx has.
func (b *batcher) drain(ctx context.Context, err error) error {
	b.mu.Lock()
	b.refuse = err
	if b.sched.empty() {
		b.mu.Unlock()
		return nil
	}
	if b.emptied == nil {
		b.emptied = make(chan struct{})
	}
	emptied := b.emptied
	b.mu.Unlock()
	select {
	case <-emptied:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// load is what is in the engine now.
func (b *batcher) load() (running, waiting int, kvUsage float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := &b.sched
	return len(d.running) + len(d.filling), len(d.waiting), float64(d.kvUsed) / float64(d.kvLimit)
}

// run begins and ends iterations until ctx ends; then it stops what is left.
func (b *batcher) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	var deadline time.Time
	busy := false
	for {
		select {
		case <-ctx.Done():
			b.stopAll()
			return
		case <-b.kick:
			if busy {
				continue
			}
			deadline = time.Now()
		case <-timer.C:
			b.end()
		}
		deadline, busy = b.begin(deadline)
		if busy {
			timer.Reset(time.Until(deadline))
		}
	}
}

// begin plans the iteration that starts at start and returns its end.
func (b *batcher) begin(start time.Time) (time.Time, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ms, ok := b.sched.plan()
	if !ok {
		return time.Time{}, false
	}
	if now := time.Now(); now.Sub(start) > maxLag {
		b.stats.lagged.Add(1)
		start = now
	}
	return start.Add(time.Duration(ms / b.speed * float64(time.Millisecond))), true
}

// end applies the iteration whose time is over.
func (b *batcher) end() {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sched.filling {
		if s.outTokens > 0 {
			b.stats.ttft.observe(now.Sub(s.submitted).Seconds())
		}
	}
	tokens := b.sched.complete(func(s *sequence) {
		b.stats.e2e.observe(now.Sub(s.submitted).Seconds())
		if s.cut {
			b.stats.cut.Add(1)
		} else {
			b.stats.ended.Add(1)
		}
	})
	b.stats.iterations.Add(1)
	b.stats.generationTokens.Add(int64(tokens))
	b.checkEmptyLocked()
}

// stopAll ends every sequence that is left, unfinished.
func (b *batcher) stopAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse = errStopped
	d := &b.sched
	for _, list := range [][]*sequence{d.waiting, d.filling, d.running} {
		for _, s := range list {
			s.stopped.Store(true)
			close(s.finished)
		}
	}
	d.waiting, d.filling, d.running = nil, nil, nil
	d.kvUsed, d.contextSum = 0, 0
	b.checkEmptyLocked()
}
