package slo

import (
	"math"
	"math/bits"
	"slices"
)

// Constants of the learner.
const (
	lengthBuckets = 20   // prompts by power of two of their tokens: up to 2^19
	ringSize      = 32   // prefill times remembered in each length bucket
	tokenRing     = 512  // requests whose token counts are remembered
	lowQuantile   = 0.25 // of a bucket: the time without a wait inside the engine
	calmLoad      = 0.8  // above it a prefill time may teach only downward, as it holds waiting
	minSamples    = 5    // before anything is said
	forget        = 0.995
	// settle: the squared spread of batch sizes (relative to their mean) needed before a slope is believed.
	settle = 0.01
)

type lengthBucket struct {
	tokens [ringSize]float64
	ms     [ringSize]float64
	n      int // samples ever, the ring holds the last ringSize
}

// low returns the mean prompt and the low quantile of the times held.
func (b *lengthBucket) low() (tokens, ms, weight float64) {
	n := min(b.n, ringSize)
	sorted := b.ms
	slices.Sort(sorted[:n])
	for _, t := range b.tokens[:n] {
		tokens += t
	}
	return tokens / float64(n), sorted[int(lowQuantile*float64(n))], float64(n)
}

// learner estimates a Service from samples. It is robust against waiting inside the engine (it takes a low quantile
// for each prompt length, and trusts nothing but shorter times while the engine is loaded) and forgets slowly.
type learner struct {
	buckets [lengthBuckets]lengthBucket
	input   [tokenRing]float64
	output  [tokenRing]float64
	tokens  int // requests ever counted in input and output
	itl     line
	base    float64 // learned prefill line
	slope   float64
	fresh   int // prefill samples since the line was fitted
	samples int
}

// line is a least-squares line with forgetting: y ≈ a + b·x.
type line struct{ w, x, y, xx, xy float64 }

func (l *line) add(x, y float64) {
	l.w = forget*l.w + 1
	l.x = forget*l.x + x
	l.y = forget*l.y + y
	l.xx = forget*l.xx + x*x
	l.xy = forget*l.xy + x*y
}

// weigh adds a point with a weight and forgets nothing.
func (l *line) weigh(w, x, y float64) {
	l.w += w
	l.x += w * x
	l.y += w * y
	l.xx += w * x * x
	l.xy += w * x * y
}

// fit returns a ≥ 0 and b ≥ 0; b stays 0 while x has hardly varied.
func (l *line) fit() (a, b float64) {
	if l.w <= 0 {
		return 0, 0
	}
	mx, my := l.x/l.w, l.y/l.w
	spread := l.xx/l.w - mx*mx
	if spread > settle*mx*mx {
		b = max(0, (l.xy/l.w-mx*my)/spread)
	}
	if b*mx > my { // a line through the origin is the steepest that makes sense
		b = my / mx
	}
	return max(0, my-b*mx), b
}

// finished teaches from one sample. perReplica is how many requests a replica held, load the share of its time it
// spent in prefill; both as known when the sample ended.
func (l *learner) finished(s *Sample, perReplica, load float64) {
	if !s.Outcome.UsedCapacity() || s.InputTokens <= 0 {
		return
	}
	l.samples++
	at := l.tokens % tokenRing
	l.input[at], l.output[at] = float64(s.InputTokens), float64(max(1, s.OutputTokens))
	l.tokens++
	prefillMs := s.TTFTMs - s.QueueMs
	itlMs := s.ITLMs
	if itlMs <= 0 && s.OutputTokens > 1 { // not streamed: the first byte came with the last
		first := min(l.base+l.slope*float64(s.InputTokens), s.E2EMs-s.QueueMs)
		itlMs, prefillMs = (s.E2EMs-s.QueueMs-first)/float64(s.OutputTokens), 0
	}
	if itlMs > 0 {
		l.itl.add(max(1, perReplica), itlMs*(1-min(load, 0.9)))
	}
	if prefillMs > 0 {
		l.prefill(float64(s.InputTokens), prefillMs, load)
	}
}

func (l *learner) prefill(tokens, ms, load float64) {
	b := &l.buckets[min(lengthBuckets-1, bits.Len(uint(tokens))-1)]
	if load > calmLoad && b.n >= minSamples && ms > l.base+l.slope*tokens {
		return
	}
	b.tokens[b.n%ringSize], b.ms[b.n%ringSize] = tokens, ms
	b.n++
	l.fresh++
}

// refit draws the prefill line through the buckets, if anything is new.
func (l *learner) refit() {
	if l.fresh == 0 {
		return
	}
	l.fresh = 0
	var through line
	for i := range l.buckets {
		if l.buckets[i].n < min(minSamples, l.samples) {
			continue
		}
		x, y, w := l.buckets[i].low()
		through.weigh(w, x, y)
	}
	if through.w > 0 {
		l.base, l.slope = through.fit()
	}
}

// service returns the estimate; not Known before minSamples. finishedPerReplicaRps bounds it: a replica that was seen
// to finish so many a second cannot take longer for one.
func (l *learner) service(maxBatch int, arrivalSCV, finishedPerReplicaRps float64) Service {
	if l.samples < minSamples {
		return Service{MaxBatch: maxBatch, ArrivalSCV: arrivalSCV}
	}
	l.refit()
	s := Service{
		PrefillBaseMs: l.base, PrefillMsPerToken: l.slope,
		ArrivalSCV: arrivalSCV, MaxBatch: maxBatch, Samples: l.samples,
	}
	s.DecodeBaseMs, s.DecodeMsPerSeq = l.itl.fit()
	n := min(l.tokens, tokenRing)
	in, out := l.input, l.output
	s.InputTokens, s.OutputTokens = PointsOf(in[:n]), PointsOf(out[:n])
	if mean, _ := s.prefill(); mean > 0 && finishedPerReplicaRps > 0 {
		if factor := 1000 / finishedPerReplicaRps / mean; factor < 1 && !math.IsNaN(factor) {
			s.PrefillBaseMs *= factor
			s.PrefillMsPerToken *= factor
		}
	}
	return s
}
