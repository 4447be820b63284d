package engine

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"sluice/bench/perf"
)

var (
	errQueueFull = errors.New("engine: waiting queue is full")
	errAsleep    = errors.New("engine: not awake")
	errStopped   = errors.New("engine: stopping")
)

// sequence is one request in the engine.
type sequence struct {
	promptTokens int
	outTokens    int  // 0 for embeddings: done after the prefill
	interval     int  // tokens a notification after the first
	cut          bool // the limit ends it, not the text
	submitted    time.Time

	// produced is written by the scheduler and read by the handler.
	produced atomic.Int64
	// stopped is set when the engine ended before the sequence did.
	stopped atomic.Bool
	// notify has room for one: a reader that was told looks at everything there is.
	notify chan struct{}
	// finished is closed after the last token.
	finished chan struct{}
}

func newSequence(promptTokens, outTokens, interval int) *sequence {
	return &sequence{
		promptTokens: promptTokens, outTokens: outTokens, interval: interval,
		notify: make(chan struct{}, 1), finished: make(chan struct{}),
	}
}

// kvTokens is what the sequence reserves from admission to its end.
func (s *sequence) kvTokens() int { return s.promptTokens + s.outTokens }

func (s *sequence) tell() {
	select {
	case s.notify <- struct{}{}:
	default:
	}
}

// scheduler decides what each iteration does. It has no clock and no lock; its
// owner calls plan, lets that time pass, and calls complete.
//
// A sequence is in at most one of waiting, filling and running.
type scheduler struct {
	profile       *perf.Profile
	maxBatch      int
	maxWaiting    int
	kvLimit       int
	prefillTokens int

	waiting []*sequence // in order of arrival
	filling []*sequence // of the prefill under way
	running []*sequence

	kvUsed     int // sum of kvTokens over filling and running; <= kvLimit
	contextSum int // tokens in the cache of the running ones
	step       iteration
}

// iteration is what is under way.
type iteration int

const (
	nothing iteration = iota
	prefill
	decode
)

// add queues a sequence.
func (d *scheduler) add(s *sequence) error {
	if len(d.waiting) >= d.maxWaiting {
		return errQueueFull
	}
	d.waiting = append(d.waiting, s)
	return nil
}

// remove takes a sequence out wherever it is and frees what it had. An
// iteration under way keeps its length.
func (d *scheduler) remove(s *sequence) bool {
	if i := slices.Index(d.waiting, s); i >= 0 {
		d.waiting = slices.Delete(d.waiting, i, i+1)
		return true
	}
	if i := slices.Index(d.filling, s); i >= 0 {
		d.filling = slices.Delete(d.filling, i, i+1)
		d.kvUsed -= s.kvTokens()
		return true
	}
	if i := slices.Index(d.running, s); i >= 0 {
		d.running = slices.Delete(d.running, i, i+1)
		d.release(s)
		return true
	}
	return false
}

// release frees the cache of a sequence that was running.
func (d *scheduler) release(s *sequence) {
	d.kvUsed -= s.kvTokens()
	d.contextSum -= s.promptTokens + int(s.produced.Load())
}

func (d *scheduler) empty() bool {
	return len(d.waiting) == 0 && len(d.filling) == 0 && len(d.running) == 0
}

// plan begins the next iteration and returns its simulated length; ok is false
// when there is nothing to do.
func (d *scheduler) plan() (ms float64, ok bool) {
	if d.step != nothing {
		panic("engine: an iteration began before the last one ended")
	}
	tokens := d.admit()
	switch {
	case len(d.filling) > 0:
		d.step = prefill
		return d.profile.PrefillMs(tokens), true
	case len(d.running) > 0:
		d.step = decode
		return d.profile.DecodeMs(len(d.running), d.contextSum/len(d.running)), true
	}
	return 0, false
}

// admit moves waiting sequences that fit into filling, strictly in order, and
// returns their prompt tokens.
func (d *scheduler) admit() int {
	tokens, n := 0, 0
	for _, s := range d.waiting {
		if len(d.running)+n >= d.maxBatch || d.kvUsed+s.kvTokens() > d.kvLimit {
			break
		}
		if n > 0 && tokens+s.promptTokens > d.prefillTokens {
			break
		}
		tokens += s.promptTokens
		d.kvUsed += s.kvTokens()
		n++
	}
	d.filling = append(d.filling, d.waiting[:n]...)
	d.waiting = slices.Delete(d.waiting, 0, n)
	return tokens
}

// complete ends the iteration: each of its sequences has one token more, and
// those with their last one leave. It returns the tokens made; done is called
// for every sequence that ended.
func (d *scheduler) complete(done func(*sequence)) (tokens int) {
	step := d.step
	d.step = nothing
	switch step {
	case prefill:
		// All of them may have left meanwhile; then nothing advances.
		from := len(d.running)
		for _, s := range d.filling {
			d.contextSum += s.promptTokens
			if s.outTokens > 0 {
				s.produced.Store(1)
				d.contextSum++
				tokens++
			}
		}
		d.running = append(d.running, d.filling...)
		d.filling = d.filling[:0]
		d.settle(from, done)
	case decode:
		for _, s := range d.running {
			s.produced.Add(1)
		}
		tokens = len(d.running)
		d.contextSum += tokens
		d.settle(0, done)
	default:
		panic("engine: an iteration ended that was not planned")
	}
	return tokens
}

// settle tells the readers of running[from:] and takes out those that ended.
func (d *scheduler) settle(from int, done func(*sequence)) {
	kept := d.running[:from]
	for _, s := range d.running[from:] {
		n := int(s.produced.Load())
		if n >= s.outTokens {
			d.release(s)
			done(s)
			close(s.finished)
			continue
		}
		kept = append(kept, s)
		if (n-1)%s.interval == 0 {
			s.tell()
		}
	}
	clear(d.running[len(kept):])
	d.running = kept
}
