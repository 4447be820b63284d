package slo

import (
	"math"
	"math/rand/v2"
)

// engine is one replica as the formulas see it, simulated: each iteration is either the prefill of one waiting prompt
// or one decode step of the whole batch, prompts first.
type engine struct {
	clockMs float64
	waiting []*job
	running []*job
}

type job struct {
	Sample
	sentMs, firstMs float64
	left            int
}

// world is k engines behind one queue, each holding at most service.MaxBatch requests.
type world struct {
	service Service
	engines []engine
	queue   []*job
	done    func(s Sample, atMs float64)
}

func (w *world) inFlight(i int) int { return len(w.engines[i].waiting) + len(w.engines[i].running) }

// dispatch sends from the queue to the engine with the fewest requests while one has room.
func (w *world) dispatch(nowMs float64) {
	for len(w.queue) > 0 {
		best := 0
		for i := range w.engines {
			if w.inFlight(i) < w.inFlight(best) {
				best = i
			}
		}
		if w.inFlight(best) >= w.service.MaxBatch {
			return
		}
		j := w.queue[0]
		w.queue = w.queue[1:]
		j.sentMs = nowMs
		j.QueueMs = nowMs - float64(j.ArrivalMs)
		e := &w.engines[best]
		if w.inFlight(best) == 0 {
			e.clockMs = max(e.clockMs, nowMs)
		}
		e.waiting = append(e.waiting, j)
	}
}

// advance runs every engine up to untilMs.
func (w *world) advance(untilMs float64) {
	for {
		next := -1
		for i := range w.engines { // the engine that is furthest behind, so that dispatch sees the past in order
			if w.inFlight(i) > 0 && w.engines[i].clockMs < untilMs && (next < 0 || w.engines[i].clockMs < w.engines[next].clockMs) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w.iterate(&w.engines[next])
		w.dispatch(w.engines[next].clockMs)
	}
}

func (w *world) iterate(e *engine) {
	if len(e.waiting) > 0 {
		j := e.waiting[0]
		e.waiting = e.waiting[1:]
		e.clockMs += w.service.PrefillMs(float64(j.InputTokens))
		j.firstMs = e.clockMs
		j.TTFTMs = j.firstMs - float64(j.ArrivalMs)
		j.left = j.OutputTokens - 1
		e.running = append(e.running, j)
	} else {
		e.clockMs += w.service.DecodeMs(float64(len(e.running)))
		for _, j := range e.running {
			j.left--
		}
	}
	kept := e.running[:0]
	for _, j := range e.running {
		if j.left > 0 {
			kept = append(kept, j)
			continue
		}
		j.E2EMs = e.clockMs - float64(j.ArrivalMs)
		if j.OutputTokens > 1 {
			j.ITLMs = (e.clockMs - j.firstMs) / float64(j.OutputTokens-1)
		}
		w.done(j.Sample, e.clockMs)
	}
	e.running = kept
}

// request draws one: log-normal prompts of about 1,000 tokens, answers of about 200.
func request(rng *rand.Rand, atMs int64) *job {
	in := int(math.Exp(6.6+0.7*rng.NormFloat64())) + 1
	out := int(math.Exp(5.1+0.6*rng.NormFloat64())) + 1
	return &job{Sample: Sample{Model: "chat", ArrivalMs: atMs, InputTokens: min(in, 8000), OutputTokens: min(out, 1500)}}
}

// tokensOf is the distribution that request draws from, as points.
func tokensOf(seed uint64) (in, out Points) {
	rng := rand.New(rand.NewPCG(seed, 99))
	var a, b []float64
	for range 5000 {
		j := request(rng, 0)
		a, b = append(a, float64(j.InputTokens)), append(b, float64(j.OutputTokens))
	}
	return PointsOf(a), PointsOf(b)
}

// play offers rps to k engines for the given time and returns the share of requests within each objective.
func play(s Service, k int, rps float64, seconds int, seed uint64, objectives []Objective) []float64 {
	rng := rand.New(rand.NewPCG(seed, 17))
	within, n := make([]float64, len(objectives)), 0.0
	w := world{service: s, engines: make([]engine, k), done: func(sample Sample, _ float64) {
		n++
		for i, o := range objectives {
			if [NumMetrics]float64{sample.TTFTMs, sample.ITLMs, sample.E2EMs}[o.Metric] <= o.ThresholdMs {
				within[i]++
			}
		}
	}}
	for atMs := 0.0; atMs < float64(seconds)*1000; atMs += rng.ExpFloat64() * 1000 / rps {
		w.advance(atMs)
		w.queue = append(w.queue, request(rng, int64(atMs)))
		w.dispatch(atMs)
	}
	w.advance(math.Inf(1))
	for i := range within {
		within[i] /= n
	}
	return within
}
