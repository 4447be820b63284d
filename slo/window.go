package slo

import "fmt"

// slot holds what happened in one stretch of SlotMs.
type slot struct {
	index        int64 // fleet time / SlotMs; the slot is stale when it differs from the one asked for
	arrivals     uint64
	finished     uint64
	inputTokens  uint64
	outputTokens uint64
	outcomes     [NumOutcomes]uint64
	latency      [NumMetrics]Histogram
}

func (s *slot) add(o *slot) {
	s.arrivals += o.arrivals
	s.finished += o.finished
	s.inputTokens += o.inputTokens
	s.outputTokens += o.outputTokens
	for i, n := range o.outcomes {
		s.outcomes[i] += n
	}
	for i := range o.latency {
		if o.latency[i].total > 0 {
			s.latency[i].Merge(&o.latency[i])
		}
	}
}

// Window is a sliding window of fixed slots. Memory is slots × 5 KB from the start; nothing allocates later.
// Make one with NewWindow. Not safe for concurrent use: each gateway shard owns one, and they merge.
type Window struct {
	slotMs int64
	slots  []slot
}

// NewWindow returns an empty window of the given number of slots (2 to MaxSlots), each slotMs long (at least 1).
func NewWindow(slotMs int64, slots int) (*Window, error) {
	if slotMs < 1 || slots < 2 || slots > MaxSlots {
		return nil, fmt.Errorf("%w: window of %d slots of %d ms; want 2 to %d slots of at least 1 ms",
			ErrConfig, slots, slotMs, MaxSlots)
	}
	w := &Window{slotMs: slotMs, slots: make([]slot, slots)}
	for i := range w.slots {
		w.slots[i].index = -1
	}
	return w, nil
}

// SpanMs is the whole length of the window.
func (w *Window) SpanMs() int64 { return w.slotMs * int64(len(w.slots)) }

// at returns the slot of index, emptied if it held an older stretch; nil when index is older than what is held.
func (w *Window) at(index int64) *slot {
	s := &w.slots[index%int64(len(w.slots))]
	if s.index < index {
		*s = slot{index: index}
	}
	if s.index > index {
		return nil
	}
	return s
}

// Arrived counts one arrival. A time before the window is dropped.
func (w *Window) Arrived(nowMs int64) {
	if s := w.at(max(0, nowMs) / w.slotMs); s != nil {
		s.arrivals++
	}
}

// Finished counts one ending at nowMs. Latencies that are not above 0 are not observed.
func (w *Window) Finished(sample *Sample, nowMs int64) {
	s := w.at(max(0, nowMs) / w.slotMs)
	if s == nil {
		return
	}
	s.finished++
	s.inputTokens += uint64(max(0, sample.InputTokens))
	s.outputTokens += uint64(max(0, sample.OutputTokens))
	if int(sample.Outcome) < NumOutcomes {
		s.outcomes[sample.Outcome]++
	}
	for m, ms := range [NumMetrics]float64{sample.TTFTMs, sample.ITLMs, sample.E2EMs} {
		if ms > 0 {
			s.latency[m].Observe(ms)
		}
	}
}

// Merge adds what other holds. Both need the same slot length; slots older than w's own are dropped.
func (w *Window) Merge(other *Window) error {
	if w.slotMs != other.slotMs {
		return fmt.Errorf("%w: merging windows of %d and %d ms slots; give all shards one config", ErrConfig, w.slotMs, other.slotMs)
	}
	for i := range other.slots {
		if o := &other.slots[i]; o.index >= 0 {
			if s := w.at(o.index); s != nil {
				s.add(o)
			}
		}
	}
	return nil
}

// Totals is the sum over a stretch of a window.
type Totals struct {
	SpanMs       int64 // what the sums stand for: whole slots, the running one up to now
	Arrivals     uint64
	Finished     uint64
	InputTokens  uint64
	OutputTokens uint64
	Outcomes     [NumOutcomes]uint64
	Latency      [NumMetrics]Histogram
}

// Failed is how many endings spent error budget, see Outcome.SpendsBudget.
func (t *Totals) Failed() uint64 {
	var n uint64
	for o, c := range t.Outcomes {
		if Outcome(o).SpendsBudget() {
			n += c
		}
	}
	return n
}

// Fraction is the share of requests within the objective, failures counted as outside; 1 when there were none.
func (t *Totals) Fraction(o Objective) float64 {
	h := &t.Latency[o.Metric]
	seen, failed := float64(h.Count()), float64(t.Failed())
	if seen+failed == 0 {
		return 1
	}
	return seen * h.FractionBelow(o.ThresholdMs) / (seen + failed)
}

// Burn is the rate at which the error budget of the objective is spent: 1 spends it exactly, 0 when idle.
func (t *Totals) Burn(o Objective) float64 { return (1 - t.Fraction(o)) / (1 - o.Quantile) }

// Snapshot sums the last n slots, the running one included, into into, which it overwrites. n is clamped to the window.
func (w *Window) Snapshot(nowMs int64, n int, into *Totals) {
	n = max(1, min(n, len(w.slots)))
	last := max(0, nowMs) / w.slotMs
	var sum slot
	for i := range w.slots {
		if s := &w.slots[i]; s.index >= 0 && s.index > last-int64(n) && s.index <= last {
			sum.add(s)
		}
	}
	*into = Totals{
		SpanMs:   int64(n-1)*w.slotMs + max(0, nowMs)%w.slotMs + 1,
		Arrivals: sum.arrivals, Finished: sum.finished,
		InputTokens: sum.inputTokens, OutputTokens: sum.outputTokens,
		Outcomes: sum.outcomes, Latency: sum.latency,
	}
}
