package slo

import "math"

// Limits of the capacity formulas.
const (
	// MaxReplicas bounds every search for a number of replicas.
	MaxReplicas = 4096
	// maxPrefillLoad: beyond it the formulas of heavy traffic promise what no engine keeps.
	maxPrefillLoad = 0.95
	// batchFill of the slots may be taken on average, so that the fluctuation of b finds room.
	batchFill = 0.9
	// outOfReachLoad is the load allowed when an objective would be missed on an idle replica already: more replicas
	// cannot meet it, so they are only kept from making it worse.
	outOfReachLoad = 0.7
	// reachMargin is the part of the error budget that waiting may take at least.
	reachMargin = 0.1
)

// state is one replica in the steady state that λ over k replicas leads to.
type state struct {
	k         float64
	load      float64 // ρ: share of time in prefill
	prefillMs float64
	prompts   tail    // wait for the prompts ahead
	slots     tail    // wait for a slot of a batch
	stretch   float64 // 1/(1−ρ): decode steps are stretched by prompts that go first
	batch     float64 // b: sequences running, by Little's law
	batchVar  float64 // its variance: Poisson, widened as a fuller batch is slower and so fills more
	stable    bool
}

// tail is P(wait > t) = chance · exp(−rate·t), rate per ms.
type tail struct{ chance, rate float64 }

// queueTail is the tail of the wait for one of so many servers, see the package comment.
func queueTail(servers, load, scvSum, serviceMs float64) tail {
	if load <= 0 || serviceMs <= 0 {
		return tail{}
	}
	return tail{
		chance: math.Pow(load, math.Sqrt(2*(servers+1))-1),
		rate:   2 * servers * (1 - load) / (scvSum * serviceMs),
	}
}

func (w tail) meanMs() float64 {
	if w.rate <= 0 {
		return 0
	}
	return w.chance / w.rate
}

func (w tail) over(tMs float64) float64 {
	if w.rate <= 0 {
		return 0
	}
	return w.chance * math.Exp(-w.rate*tMs)
}

// steady solves the model for rps over k replicas.
func (s *Service) steady(rps float64, k int) state {
	mean, scv := s.prefill()
	st := state{k: float64(k), prefillMs: mean}
	perMs := rps / 1000 / st.k
	st.load = perMs * mean
	if st.load >= maxPrefillLoad {
		return st
	}
	st.prompts = queueTail(st.k, st.load, s.arrivalSCV()+scv, mean)
	// b = λ/k · (wait + prefill + out · (d0 + d1·b) · stretch), solved for b.
	st.stretch = 1 / (1 - st.load)
	out := max(0, s.OutputTokens.Mean()-1)
	rest := 1 - perMs*out*s.DecodeMsPerSeq*st.stretch
	if rest <= 0 {
		return st
	}
	st.batch = perMs * (st.prompts.meanMs() + mean + out*s.DecodeBaseMs*st.stretch) / rest
	st.batchVar = st.batch / rest
	st.stable = true
	if s.MaxBatch > 0 {
		fill := st.batch / float64(s.MaxBatch)
		st.stable = fill <= batchFill
		st.slots = queueTail(st.k*float64(s.MaxBatch), min(1, fill), s.arrivalSCV()+s.OutputTokens.scv(), st.batch/max(perMs, 1e-12))
	}
	return st
}

// overWait is P(wait > t), the two waits taken as independent.
func (st *state) overWait(tMs float64) float64 {
	if tMs < 0 {
		return 1
	}
	return 1 - (1-st.prompts.over(tMs))*(1-st.slots.over(tMs))
}

// within is the predicted share of requests inside the objective.
func (s *Service) within(st *state, o Objective) float64 {
	if !st.stable {
		return 0
	}
	switch o.Metric {
	case TTFT:
		over := 0.0
		for i, tokens := range s.InputTokens {
			over += pointMass[i] * st.overWait(o.ThresholdMs-s.PrefillMs(tokens))
		}
		return 1 - over
	case E2E:
		itl := s.DecodeMs(st.batch) * st.stretch
		over := 0.0
		for j, out := range s.OutputTokens {
			left := o.ThresholdMs - max(0, out-1)*itl
			for i, tokens := range s.InputTokens {
				over += pointMass[i] * pointMass[j] * st.overWait(left-s.PrefillMs(tokens))
			}
		}
		return 1 - over
	}
	// ITL: the batch fluctuates; its own quantile must be fast enough.
	b := st.batch + normalQuantile(o.Quantile)*math.Sqrt(st.batchVar)
	if s.MaxBatch > 0 {
		b = min(b, float64(s.MaxBatch))
	}
	if s.DecodeMs(max(1, b))*st.stretch <= o.ThresholdMs {
		return 1
	}
	return 0
}

// reachable reports whether an idle replica meets the objective with reachMargin of the error budget to spare. Without
// a margin the need would go to infinity as the objective comes to the edge of what an idle replica can do.
func (s *Service) reachable(o Objective) bool {
	idle := s.steady(0, 1)
	return s.within(&idle, o) >= o.Quantile+reachMargin*(1-o.Quantile)
}

// OutOfReach returns the objectives that no reasonable number of replicas meets, as requests alone on an idle replica
// miss them already, or nearly. They take no part in NeedReplicas and CapacityRps beyond a load of 70 %.
func OutOfReach(s Service, objectives []Objective) []Objective {
	var out []Objective
	for _, o := range objectives {
		if s.Known() && !s.reachable(o) {
			out = append(out, o)
		}
	}
	return out
}

// terms are the objectives split once, before a search.
type terms struct {
	reachable  [16]Objective
	n          int
	outOfReach bool
}

// MaxObjectives is how many objectives a model may have.
const MaxObjectives = 16

func (s *Service) split(objectives []Objective) terms {
	var t terms
	for _, o := range objectives {
		switch {
		case !s.reachable(o):
			t.outOfReach = true
		case t.n < MaxObjectives:
			t.reachable[t.n] = o
			t.n++
		}
	}
	return t
}

func (s *Service) meets(rps float64, k int, t *terms) bool {
	st := s.steady(rps, k)
	if !st.stable {
		return false
	}
	if t.outOfReach && (st.load > outOfReachLoad || (s.MaxBatch > 0 && st.batch > outOfReachLoad*float64(s.MaxBatch))) {
		return false
	}
	for _, o := range t.reachable[:t.n] {
		if s.within(&st, o) < o.Quantile {
			return false
		}
	}
	return true
}

// NeedReplicas is the fewest replicas that meet every objective at demandRps requests a second, and the concurrency
// limit with them. No demand needs 0. A Service that is not Known needs 0 too: the caller has no data and keeps its
// minimum. At most MaxReplicas.
func NeedReplicas(demandRps float64, s Service, objectives []Objective) int {
	if !(demandRps > 0) || !s.Known() {
		return 0
	}
	t := s.split(objectives)
	return s.need(demandRps, &t)
}

func (s *Service) need(rps float64, t *terms) int {
	hi := 1
	for hi < MaxReplicas && !s.meets(rps, hi, t) {
		hi = min(hi*2, MaxReplicas)
	}
	lo := hi/2 + 1
	if hi == 1 {
		return 1
	}
	for lo < hi { // smallest k in [lo, hi] that meets; hi does, or is the limit
		mid := (lo + hi) / 2
		if s.meets(rps, mid, t) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return hi
}

// capacitySteps of bisection give the capacity to one part in a million of its upper bound.
const capacitySteps = 20

// CapacityRps is the most requests a second that k replicas serve within every objective; the inverse of NeedReplicas.
// 0 for k ≤ 0 or a Service that is not Known.
func CapacityRps(k int, s Service, objectives []Objective) float64 {
	if k <= 0 || !s.Known() {
		return 0
	}
	t := s.split(objectives)
	return s.capacity(min(k, MaxReplicas), &t)
}

func (s *Service) capacity(k int, t *terms) float64 {
	mean, _ := s.prefill()
	out := max(0, s.OutputTokens.Mean()-1)
	busyMs := max(mean, out*s.DecodeMsPerSeq)
	if s.MaxBatch > 0 {
		busyMs = max(busyMs, (mean+out*s.DecodeBaseMs)/float64(s.MaxBatch))
	}
	if busyMs <= 0 {
		busyMs = 1e-3 // only a base time is known and no limit: a bound that is never the answer in practice
	}
	lo, hi := 0.0, float64(k)*1000/busyMs
	for range capacitySteps {
		if mid := (lo + hi) / 2; s.meets(mid, k, t) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// NeedSeries is the need known afterwards: for each window of windowMs, counted from arrivals[0] on, the fewest
// replicas that meet the objectives for the requests that arrived in it, with their own token counts. arrivalsMs is
// ascending; the three slices have one length (the shortest counts). The speeds, ca² and the batch limit come from s.
// A window without arrivals needs 0.
func NeedSeries(arrivalsMs []int64, inputTokens, outputTokens []int, windowMs int64, s Service, objectives []Objective) []int {
	n := min(len(arrivalsMs), len(inputTokens), len(outputTokens))
	if n == 0 || windowMs < 1 {
		return nil
	}
	start := arrivalsMs[0]
	series := make([]int, (arrivalsMs[n-1]-start)/windowMs+1)
	var in, out []float64
	for i := 0; i < n; {
		window := (arrivalsMs[i] - start) / windowMs
		in, out = in[:0], out[:0]
		for ; i < n && (arrivalsMs[i]-start)/windowMs == window; i++ {
			in = append(in, float64(inputTokens[i]))
			out = append(out, float64(outputTokens[i]))
		}
		rps := float64(len(in)) * 1000 / float64(windowMs)
		own := s
		own.InputTokens, own.OutputTokens = PointsOf(in), PointsOf(out)
		series[window] = NeedReplicas(rps, own, objectives)
	}
	return series
}
