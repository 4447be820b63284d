package main

import (
	"fmt"
	"io"
	"math"

	"sluice/bench/load"
	"sluice/bench/perf"
	"sluice/bench/trace"
	"sluice/slo"
)

// What the demo plays.
const (
	demoPeakNeed   = 6      // of 8 GPUs, when thinning is chosen
	needWindowMs   = 30_000 // of the trace, over which need is known afterwards
	shortAnswer    = 110    // tokens: requests with shorter answers go to demoShort
	demoLong       = "chat"
	demoShort      = "code"
	demoInFlight   = 24   // requests a replica holds: what its KV cache has room for
	plainOneIn     = 5    // requests that are not streamed
	demoTTFTMs     = 4000 // of the trace
	demoITLMs      = 400
	demoQuantile   = 0.95
	maxDemoTrace   = 2_000_000
	demoModel      = "llama2-70b"
	demoGPU        = "a100-80gb"
	demoTP         = 2
	chosenThinFrom = 0.02
	warmMinutes    = 2 // of the trace, in which load rises from nothing; not judged
)

var demoObjectives = []slo.Objective{
	{Metric: slo.TTFT, Quantile: demoQuantile, ThresholdMs: demoTTFTMs},
	{Metric: slo.ITL, Quantile: demoQuantile, ThresholdMs: demoITLMs},
}

// demoPlan is the load of a demo.
type demoPlan struct {
	Text     string
	Requests []load.Request // AtMs in real time
	Need     []int          // by window of the trace
	Speed    float64
	Minutes  float64
	Thin     float64
	WarmMs   float64 // real time of the warm-up, before the part that is judged
}

func demoModelOf(r *trace.Request) string {
	if r.OutputTokens <= shortAnswer {
		return demoShort
	}
	return demoLong
}

func demoLoad(o demoOptions) (*demoPlan, error) {
	if o.Speed <= 0 || o.Minutes <= 0 || o.From < 0 || o.Thin < 0 || o.Thin > 1 {
		return nil, fmt.Errorf("--speed and --minutes must be above 0, --from at least 0, --thin between 0 and 1")
	}
	all, name, err := readDemoTrace(o.Trace, o.Seed)
	if err != nil {
		return nil, err
	}
	warm := trace.Slice(all, max(0, o.From-warmMinutes)*60_000, o.From*60_000)
	all = trace.Slice(all, o.From*60_000, (o.From+o.Minutes)*60_000)
	if len(all) == 0 {
		return nil, fmt.Errorf("the trace has no request between minute %g and %g; choose another --from or --minutes", o.From, o.From+o.Minutes)
	}
	service, err := demoService()
	if err != nil {
		return nil, err
	}
	thin := o.Thin
	if thin == 0 {
		thin = chooseThin(all, o.Seed, service)
	}
	kept := trace.Thin(all, thin, o.Seed)
	p := &demoPlan{Need: demoNeed(kept, service), Speed: o.Speed, Minutes: o.Minutes, Thin: thin}
	p.addWarmUp(trace.Thin(warm, thin, o.Seed), min(o.From, warmMinutes)*60_000)
	for i := range kept {
		p.add(&kept[i], kept[i].AtMs)
	}
	lo, hi := 1<<30, 0
	for _, n := range p.Need {
		lo, hi = min(lo, n), max(hi, n)
	}
	p.Text = fmt.Sprintf("%s, minutes %g to %g, %d of %d requests (thinned to %.2f), played %g times faster; need moves between %d and %d of 8 GPUs",
		name, o.From, o.From+o.Minutes, len(kept), len(all), thin, o.Speed, lo, hi)
	return p, nil
}

// add plays r atMs after the end of the warm-up, in trace time.
func (p *demoPlan) add(r *trace.Request, atMs float64) {
	p.Requests = append(p.Requests, load.Request{AtMs: p.WarmMs + atMs/p.Speed, Model: demoModelOf(r), InputTokens: r.InputTokens,
		OutputTokens: r.OutputTokens, Stream: len(p.Requests)%plainOneIn != 0, Class: slo.Interactive})
}

// addWarmUp plays what the trace has before the judged part, of which more and
// more: the k-th request is kept when the share kept so far lags behind the
// share of the warm-up that has passed.
func (p *demoPlan) addWarmUp(warm []trace.Request, lengthMs float64) {
	played := 0.0
	p.WarmMs = lengthMs / p.Speed
	for i := range warm {
		played += warm[i].AtMs / lengthMs
		if played >= 1 {
			played--
			p.add(&warm[i], warm[i].AtMs-lengthMs)
		}
	}
}

func readDemoTrace(path string, seed uint64) ([]trace.Request, string, error) {
	if path == "" {
		r, err := trace.Azure2023()
		return r, "Azure LLM inference 2023, conversation", err
	}
	s, err := trace.OpenRequests(path, seed)
	if err != nil {
		return nil, "", err
	}
	defer s.Close()
	var out []trace.Request
	for len(out) < maxDemoTrace {
		r, err := s.Next()
		if err == io.EOF {
			return out, path, nil
		}
		if err != nil {
			return nil, "", err
		}
		out = append(out, r)
	}
	return out, fmt.Sprintf("%s (its first %d requests)", path, maxDemoTrace), nil
}

// demoService is the cost of a request on the measured GPUs, in trace time.
func demoService() (slo.Service, error) {
	p, err := perf.Lookup(demoModel, demoGPU, demoTP)
	if err != nil {
		return slo.Service{}, err
	}
	const small, large, context, batch = 500, 4000, 1200, 16
	slope := (p.PrefillMs(large) - p.PrefillMs(small)) / (large - small)
	one, many := p.DecodeMs(1, context), p.DecodeMs(batch, context)
	step := (many - one) / (batch - 1)
	return slo.Service{PrefillBaseMs: p.PrefillMs(small) - small*slope, PrefillMsPerToken: slope,
		DecodeBaseMs: one - step, DecodeMsPerSeq: step, MaxBatch: demoInFlight, ArrivalSCV: 1}, nil
}

// demoNeed is the fewest GPUs that meet the objectives, by window, known afterwards.
func demoNeed(requests []trace.Request, s slo.Service) []int {
	var total []int
	for _, model := range []string{demoLong, demoShort} {
		at := []int64{0} // so that windows of both models start together
		in, out := []int{1}, []int{1}
		for i := range requests {
			if r := &requests[i]; demoModelOf(r) == model {
				at, in, out = append(at, int64(r.AtMs)), append(in, r.InputTokens), append(out, r.OutputTokens)
			}
		}
		for i, n := range slo.NeedSeries(at, in, out, needWindowMs, s, demoObjectives) {
			if i == len(total) {
				total = append(total, 0)
			}
			total[i] += max(1, n) // each model keeps one replica
		}
	}
	return total
}

// chooseThin finds the smallest share whose need peaks at demoPeakNeed; the
// whole trace when none does.
func chooseThin(all []trace.Request, seed uint64, s slo.Service) float64 {
	for f := chosenThinFrom; f < 1; f += 0.01 {
		peak := 0
		for _, n := range demoNeed(trace.Thin(all, f, seed), s) {
			peak = max(peak, n)
		}
		if peak >= demoPeakNeed {
			return math.Round(f*100) / 100
		}
	}
	return 1
}
