package sink

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"sluice/gateway/record"
	"sluice/slo"
)

// Limits.
const (
	// maxQueued bounds the records that wait to be written; further ones are dropped. At 10,000 requests a second it is
	// most of a second.
	maxQueued = 8192
	// gatherFor is how long the writer lets records come together before it looks at them, unless the queue is half
	// full before.
	gatherFor = 100 * time.Millisecond
	// closeGrace is what Close gives the file beyond its context.
	closeGrace = time.Second
)

// Sink is an access log, a sender of spans, or both. Make it with Open, end it with Close.
type Sink struct {
	cfg    Config
	log    *logFile // nil: none
	traces *sender  // nil: none
	pool   sync.Pool
	counts counts

	mu     sync.Mutex
	queue  []*record.Record // guarded by mu
	closed bool             // guarded by mu

	wake   chan struct{} // of one: the queue is no longer empty
	half   chan struct{} // of one: the queue is half full
	reopen chan chan error
	stop   chan struct{}
	done   chan struct{}
}

// counts are the sink's books.
type counts struct {
	lines, linesDropped, spans, spansDropped atomic.Uint64
}

// Stats counts since the start.
type Stats struct {
	Lines        uint64 // written to the access log
	LinesDropped uint64 // the queue was full, or the file could not be written
	Spans        uint64 // taken by the collector
	SpansDropped uint64 // the queue was full, or the collector would not take them
}

// Open opens the file, if there is one, and starts. Close is owed.
func Open(cfg Config) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.LogSample == 0 {
		cfg.LogSample = 1
	}
	if cfg.Fail == nil {
		cfg.Fail = func(string, error) {}
	}
	s := &Sink{cfg: cfg, wake: make(chan struct{}, 1), half: make(chan struct{}, 1), reopen: make(chan chan error),
		stop: make(chan struct{}), done: make(chan struct{})}
	s.pool.New = func() any { return new(record.Record) }
	if cfg.LogFile != "" {
		log, err := openLog(cfg.LogFile, cfg.Fail)
		if err != nil {
			return nil, err
		}
		s.log = log
	}
	if cfg.TracesURL != "" {
		s.traces = newSender(&s.cfg, &s.counts)
	}
	go s.run()
	return s, nil
}

// Traces reports that spans are sent, so that requests without a trace should begin one.
func (s *Sink) Traces() bool { return s.traces != nil }

// Stats returns the counts.
func (s *Sink) Stats() Stats {
	c := &s.counts
	return Stats{Lines: c.lines.Load(), LinesDropped: c.linesDropped.Load(), Spans: c.spans.Load(), SpansDropped: c.spansDropped.Load()}
}

// Take returns an empty record, to be filled and given to Put.
func (s *Sink) Take() *record.Record {
	r := s.pool.Get().(*record.Record)
	r.Reset()
	return r
}

// Put takes the record of a request that has ended. The caller must not use it any more.
func (s *Sink) Put(r *record.Record) {
	well := r.Outcome == slo.OK && r.Status < 400
	line, span := s.wantsLine(r, well), s.wantsSpan(r)
	if well && r.Probe {
		line, span = false, false
	}
	if !line && !span {
		s.pool.Put(r)
		return
	}
	r.TellLine, r.TellSpan = line, span
	s.mu.Lock()
	full := s.closed || len(s.queue) >= maxQueued
	if !full {
		s.queue = append(s.queue, r)
	}
	n := len(s.queue)
	s.mu.Unlock()
	switch {
	case full:
		s.drop(r)
	case n == 1:
		poke(s.wake)
	case n == maxQueued/2:
		poke(s.half)
	}
}

// wantsLine reports that the access log tells the request.
func (s *Sink) wantsLine(r *record.Record, well bool) bool {
	if s.log == nil {
		return false
	}
	return !well || s.cfg.LogSample >= 1 || rand.Float64() < s.cfg.LogSample
}

func (s *Sink) wantsSpan(r *record.Record) bool {
	return s.traces != nil && r.Trace.Valid() && r.Trace.IsSampled()
}

func (s *Sink) drop(r *record.Record) {
	if r.TellLine {
		s.counts.linesDropped.Add(1)
	}
	if r.TellSpan {
		s.counts.spansDropped.Add(1)
	}
	s.pool.Put(r)
}

// poke puts a note into a channel of one, if there is none.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Reopen opens the access log's path anew, for after a rotation. The old file gets what was queued before.
func (s *Sink) Reopen() error {
	answer := make(chan error, 1)
	select {
	case s.reopen <- answer:
	case <-s.stop:
		return nil
	}
	select {
	case err := <-answer:
		return err
	case <-s.stop:
		return nil
	}
}

// Close writes and sends what is queued, for as long as ctx lets it, and ends. Records that come later are dropped and
// counted. Later calls wait for the first.
func (s *Sink) Close(ctx context.Context) {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if first {
		close(s.stop)
	}
	if !s.ended(ctx) {
		if s.traces != nil {
			s.traces.cancel()
		}
		return // the file stands still; what is queued is lost with the process
	}
	switch {
	case s.traces == nil:
	case first:
		s.traces.close(ctx)
	default:
		<-s.traces.done
	}
}

// ended waits for the sink's goroutine, a little longer than ctx lets it: a file mostly takes no time at all.
func (s *Sink) ended(ctx context.Context) bool {
	select {
	case <-s.done:
		return true
	case <-ctx.Done():
	}
	t := time.NewTimer(closeGrace)
	defer t.Stop()
	select {
	case <-s.done:
		return true
	case <-t.C:
		return false
	}
}

// run is the goroutine that empties the queue; it owns the file and the spans that are not handed over yet.
func (s *Sink) run() {
	defer close(s.done)
	var batch []*record.Record // swapped with the queue
	gather := time.NewTimer(time.Hour)
	gather.Stop()
	defer gather.Stop()
	for {
		select {
		case <-s.wake:
			gather.Reset(gatherFor)
			select {
			case <-gather.C:
			case <-s.half:
				gather.Stop()
			case <-s.stop:
			}
			batch = s.empty(batch)
		case <-gather.C: // spans were left over while the sender was busy
			s.traces.offer()
		case answer := <-s.reopen:
			batch = s.empty(batch)
			answer <- s.reopenLog()
		case <-s.stop:
			s.empty(batch)
			if s.log != nil {
				s.log.close()
			}
			return
		}
		if s.traces != nil && s.traces.n > 0 {
			gather.Reset(gatherFor)
		}
	}
}

func (s *Sink) reopenLog() error {
	if s.log == nil {
		return nil
	}
	return s.log.reopen()
}

// empty tells all that is queued. batch is room for the queue to go on in; what is returned is room again.
func (s *Sink) empty(batch []*record.Record) []*record.Record {
	s.mu.Lock()
	batch, s.queue = s.queue, batch[:0]
	s.mu.Unlock()
	for i, r := range batch {
		if r.TellLine {
			s.countLines(s.log.add(r))
		}
		if r.TellSpan {
			s.traces.add(r)
		}
		s.pool.Put(r)
		batch[i] = nil
	}
	if s.log != nil {
		s.countLines(s.log.flush())
	}
	if s.traces != nil {
		s.traces.offer()
	}
	return batch
}

func (s *Sink) countLines(written, dropped int) {
	s.counts.lines.Add(uint64(written))
	s.counts.linesDropped.Add(uint64(dropped))
}
