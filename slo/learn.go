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
	unknownBatch  = 256  // slots of a replica whose limit is not known
	batchBuckets  = 12   // batches by power of two: up to 2^11
	staleSamples  = 1024 // a bucket not seen for so many samples weighs half
	// maxStretch: a step of a full batch takes at most that much longer than one of a single sequence. Measured
	// engines stay below it (Llama 2 70B on four H100: 1.8 at 64, table of splitwise-sim); more is a burst of prompts taken for slow decode.
	maxStretch = 4
	// settle: the squared spread of x (relative to its mean) needed before a slope is believed.
	settle = 0.01
)

// bucket remembers the last pairs of a range of x.
type bucket struct {
	x, y [ringSize]float64
	n    int // pairs ever, the ring holds the last ringSize
	at   int // sample number of the last one
}

func (b *bucket) add(x, y float64, at int) {
	b.x[b.n%ringSize], b.y[b.n%ringSize] = x, y
	b.n++
	b.at = at
}

// low returns the mean x and the low quantile of y.
func (b *bucket) low() (x, y, weight float64) {
	n := min(b.n, ringSize)
	sorted := b.y
	slices.Sort(sorted[:n])
	for _, v := range b.x[:n] {
		x += v
	}
	return x / float64(n), sorted[int(lowQuantile*float64(n))], float64(n)
}

// lowLine draws a line through the buckets that hold enough, those seen lately first; now is the sample number.
func lowLine(buckets []bucket, enough, now int) (a, b float64, ok bool) {
	var through line
	for i := range buckets {
		if buckets[i].n >= enough {
			x, y, w := buckets[i].low()
			through.weigh(w*math.Exp2(-float64(now-buckets[i].at)/staleSamples), x, y)
		}
	}
	a, b = through.fit()
	return a, b, through.w > 0
}

// learner estimates a Service from samples. It is robust against waiting inside the engine (it takes a low quantile
// for each prompt length, and trusts nothing but shorter times while the engine is loaded) and forgets slowly.
type learner struct {
	prompts [lengthBuckets]bucket // prefill time by tokens
	batches [batchBuckets]bucket  // time between tokens by requests on the replica
	input   [tokenRing]float64
	output  [tokenRing]float64
	tokens  int     // requests ever counted in input and output
	base    float64 // learned prefill line
	slope   float64
	fresh   bool // prefill samples came since the line was drawn
	samples int
}

// line is a least-squares line: y ≈ a + b·x.
type line struct{ w, x, y, xx, xy float64 }

// weigh adds a point with a weight.
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
		batch := max(1, perReplica)
		l.batches[min(batchBuckets-1, bits.Len(uint(batch))-1)].add(batch, itlMs*(1-min(load, 0.9)), l.samples)
	}
	if prefillMs > 0 {
		l.prefill(float64(s.InputTokens), prefillMs, load)
	}
}

func (l *learner) prefill(tokens, ms, load float64) {
	b := &l.prompts[min(lengthBuckets-1, bits.Len(uint(tokens))-1)]
	if load > calmLoad && b.n >= minSamples && ms > l.base+l.slope*tokens {
		return
	}
	b.add(tokens, ms, l.samples)
	l.fresh = true
}

// refit draws the prefill line through the buckets, if anything is new.
func (l *learner) refit() {
	if !l.fresh {
		return
	}
	l.fresh = false
	if base, slope, ok := lowLine(l.prompts[:], min(minSamples, l.samples), l.samples); ok {
		l.base, l.slope = base, slope
	}
}

// decode returns the line of decode steps. A slope beyond maxStretch is no decode: it is prompts that went first, which
// only ever add time, so then the steepest line under all buckets is taken.
func (l *learner) decode(maxBatch int) (base, slope float64) {
	enough := min(minSamples, l.samples)
	base, slope, ok := lowLine(l.batches[:], enough, l.samples)
	full := float64(maxBatch)
	if maxBatch <= 0 {
		full = unknownBatch
	}
	steepest := (maxStretch - 1) / full
	if !ok || slope <= steepest*base {
		return base, slope
	}
	base = math.Inf(1)
	for i := range l.batches {
		if l.batches[i].n >= enough {
			x, y, _ := l.batches[i].low()
			base = min(base, y/(1+steepest*x))
		}
	}
	return base, steepest * base
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
	s.DecodeBaseMs, s.DecodeMsPerSeq = l.decode(maxBatch)
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
