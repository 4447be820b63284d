package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sluice/bench/load"
	"sluice/fill/exec"
	"sluice/nodes/registry"
	"sluice/nodes/simgpu"
	"sluice/slo"
)

// demoReport is what `sluice demo -o json` prints. Latencies of requests are in
// trace time; all other times are real.
type demoReport struct {
	Trace            string           `json:"trace"`
	Thinned          float64          `json:"thinned"`
	Speed            float64          `json:"speed"`
	Minutes          float64          `json:"minutes"`
	WallS            float64          `json:"wallS"`
	CPUCores         float64          `json:"cpuCores"`
	Warmup           int              `json:"warmupRequests"` // played before, not judged
	Requests         int              `json:"requests"`
	Outcomes         map[string]int   `json:"outcomes"`
	Objectives       []demoObjective  `json:"objectives"`
	Latencies        []demoLatency    `json:"latencies"`
	Bursts           []demoBurst      `json:"bursts"`
	Reclaims         []demoReclaim    `json:"reclaims"`
	Rungs            map[string]int   `json:"reclaimsByRung"`
	Returns          int              `json:"returns"`
	Switches         map[string]int   `json:"switches"`
	StepsLost        map[string]int64 `json:"stepsLost"`
	Steps            map[string]int64 `json:"stepsDone"`
	Books            demoBooks        `json:"books"`
	Need             []int            `json:"need"`
	KeptGPUS         float64          `json:"keptGpuSeconds"`
	IdleGPUS         float64          `json:"idleGpuSeconds"`
	Harvest          float64          `json:"harvest"`
	Violations       int              `json:"gpuViolations"`
	InvariantsBroken []string         `json:"invariantsBroken"`
}

type demoObjective struct {
	Model       string  `json:"model"`
	Metric      string  `json:"metric"`
	Quantile    float64 `json:"quantile"`
	ThresholdMs float64 `json:"thresholdMs"`
	ObservedMs  float64 `json:"observedMs"`
	Fraction    float64 `json:"fraction"`
	Met         bool    `json:"met"`
}

type demoLatency struct {
	Model  string  `json:"model"`
	Metric string  `json:"metric"`
	P50Ms  float64 `json:"p50Ms"`
	P99Ms  float64 `json:"p99Ms"`
}

// demoBurst is a stretch in which GPUs were taken back, and how its requests fared.
type demoBurst struct {
	AtMinute float64 `json:"atMinute"` // of the trace
	Model    string  `json:"model"`
	Requests int     `json:"requests"`
	Fraction float64 `json:"fraction"` // within the objective's threshold
	Served   bool    `json:"served"`
}

type demoReclaim struct {
	AtMinute            float64 `json:"atMinute"` // of the trace; below 0 in the warm-up
	Job                 string  `json:"job"`
	Rung                string  `json:"rung"`
	For                 string  `json:"for,omitempty"`
	GPUs                int     `json:"gpus"`
	DecisionToReleaseMs int64   `json:"decisionToReleaseMs"`
	Reason              string  `json:"reason"`
}

type demoBooks struct {
	GPUSeconds map[string]float64 `json:"gpuSeconds"`
	Capacity   float64            `json:"capacityGpuSeconds"`
	Balance    float64            `json:"balance"`
}

const (
	burstBeforeMs = 15_000 // of the trace, around the decision
	burstAfterMs  = 60_000
)

func (f *demoFloor) report(ctx context.Context, p *demoPlan, run *demoRun) (*demoReport, error) {
	events, err := readHistory(filepath.Join(f.dir, "server", "history.jsonl"), run.LoadMs)
	if err != nil {
		return nil, err
	}
	r := &demoReport{Trace: p.Text, Thinned: p.Thin, Speed: p.Speed, Minutes: p.Minutes, WallS: run.WallS,
		CPUCores: run.CPUSeconds / run.WallS, Need: p.Need,
		Outcomes: map[string]int{}, Rungs: map[string]int{}, Switches: map[string]int{}, StepsLost: map[string]int64{}, Steps: map[string]int64{}}
	for i := range run.Results {
		if run.Results[i].AtMs >= p.WarmMs {
			r.Warmup, run.Results = i, run.Results[i:]
			break
		}
	}
	r.Requests = len(run.Results)
	r.requests(run.Results, p.Speed)
	r.events(events, run, p)
	r.bursts(run, p)
	for _, j := range run.Final.Jobs {
		r.StepsLost[j.Name], r.Steps[j.Name] = j.LostSteps, j.Step
	}
	lost, done, err := stepsOf(f.stepLog(demoSignal))
	if err != nil {
		return nil, err
	}
	r.StepsLost[demoSignal], r.Steps[demoSignal] = lost, done
	b := run.Final.Books
	r.Books = demoBooks{GPUSeconds: b.GPUSeconds, Capacity: b.CapacitySeconds, Balance: b.BalanceSeconds}
	r.harvest(run, p)
	return r, f.verdict(ctx, r)
}

// verdict collects what must not have happened, as the server's own checks and
// the simulated GPUs saw it.
func (f *demoFloor) verdict(ctx context.Context, r *demoReport) error {
	var broken struct {
		Broken []string `json:"broken"`
	}
	if err := f.client.call(ctx, "GET", invariantsPath, nil, &broken); err != nil {
		return err
	}
	r.InvariantsBroken = append([]string{}, broken.Broken...)
	for _, node := range []string{"n1", "n2"} {
		v, err := simgpu.Violations(filepath.Join(f.dir, node, "simgpu"))
		if err != nil {
			return err
		}
		r.Violations += len(v)
		for _, x := range v {
			r.InvariantsBroken = append(r.InvariantsBroken, fmt.Sprintf("GPU %s: %s became active beside %s", x.UUID, x.Holder, x.ActiveHolder))
		}
	}
	return nil
}

// readHistory reads the events from sinceMs on.
func readHistory(path string, sinceMs int64) ([]registry.Event, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the history: %w", err)
	}
	defer file.Close()
	var out []registry.Event
	sc := bufio.NewScanner(file)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var e exec.Recorded
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("read the history: %w", err)
		}
		if e.AtMs >= sinceMs {
			out = append(out, e.Event)
		}
	}
	return out, sc.Err()
}

func (r *demoReport) requests(results []load.Result, speed float64) {
	type key struct {
		model  string
		metric slo.Metric
	}
	hist := map[key]*slo.Histogram{}
	count := map[key]int{}
	inside := map[key]int{}
	for i := range results {
		x := &results[i]
		r.Outcomes[outcomeName(x)]++
		for _, o := range demoObjectives {
			k := key{x.Model, o.Metric}
			if hist[k] == nil {
				hist[k] = &slo.Histogram{}
			}
			ms := latencyOf(x, o.Metric) * speed
			if x.OK() && ms == 0 {
				continue // not streamed, or of a single token
			}
			count[k]++
			if x.OK() {
				hist[k].Observe(ms)
			}
			if x.OK() && ms <= o.ThresholdMs {
				inside[k]++
			}
		}
	}
	for _, model := range []string{demoLong, demoShort} {
		for _, o := range demoObjectives {
			k := key{model, o.Metric}
			if count[k] == 0 {
				continue
			}
			fraction := float64(inside[k]) / float64(count[k])
			r.Objectives = append(r.Objectives, demoObjective{Model: model, Metric: o.Metric.String(), Quantile: o.Quantile, ThresholdMs: o.ThresholdMs,
				ObservedMs: hist[k].Quantile(o.Quantile), Fraction: fraction, Met: fraction >= o.Quantile})
			r.Latencies = append(r.Latencies, demoLatency{Model: model, Metric: o.Metric.String(), P50Ms: hist[k].Quantile(0.5), P99Ms: hist[k].Quantile(0.99)})
		}
	}
}

func latencyOf(x *load.Result, m slo.Metric) float64 {
	switch m {
	case slo.TTFT:
		return x.TTFTMs
	case slo.ITL:
		return x.ITLMs
	}
	return x.E2EMs
}

// outcomeName names a client's view of an ending with the words of the gateway.
func outcomeName(x *load.Result) string {
	switch {
	case x.OK():
		return slo.OK.String()
	case x.Unsent:
		return "unsent"
	case x.Status == 0:
		return "no_answer"
	}
	for _, o := range slo.Outcomes() {
		if strings.Contains(x.Err, `"`+o.String()+`"`) {
			return o.String()
		}
	}
	return fmt.Sprintf("http_%d", x.Status)
}

func isReclaim(r registry.Rung) bool {
	switch r {
	case registry.RungYield, registry.RungShrink, registry.RungPause, registry.RungKill:
		return true
	}
	return false
}

// events finds reclaims, returns and switches of the time the load was played,
// its warm-up included.
func (r *demoReport) events(events []registry.Event, run *demoRun, p *demoPlan) {
	open := map[string]*demoReclaim{} // by job
	var done []*demoReclaim
	minute := func(atMs int64) float64 { return float64(atMs-run.BeginMs) * p.Speed / 60_000 }
	for i := range events {
		e := &events[i]
		if e.AtMs > run.EndMs {
			break
		}
		switch {
		case e.Kind == "reclaim" && isReclaim(e.Rung):
			open[e.Object] = &demoReclaim{AtMinute: minute(e.AtMs), Job: e.Object, Rung: string(e.Rung), Reason: e.Reason, GPUs: len(e.GPUs), DecisionToReleaseMs: -1}
			done = append(done, open[e.Object])
			r.Switches[string(e.Rung)]++
		case e.Kind == "reclaim":
			r.Switches[string(e.Rung)]++
			if e.Rung == registry.RungGrow {
				r.Returns++
			}
		case e.Kind == "release" && open[e.Object] != nil:
			open[e.Object].DecisionToReleaseMs = e.TookMs
			if e.Rung == registry.RungKill {
				open[e.Object].Rung = string(registry.RungKill)
			}
		case e.Kind == "job" && e.To == string(registry.JobYielded) && open[e.Object] != nil:
			open[e.Object].DecisionToReleaseMs = e.TookMs
		case e.Kind == "job" && e.To == string(registry.JobResuming),
			e.Kind == "job" && e.To == string(registry.JobPreparing) && e.From == string(registry.JobPaused):
			r.Returns++
			r.Switches["return"]++
		case e.Kind == "replica" && (e.To == string(registry.ReplicaWaking) || e.To == string(registry.ReplicaStarting) || e.To == string(registry.ReplicaDraining)):
			r.Switches["replica "+e.To]++
		}
	}
	for _, d := range done {
		r.Reclaims = append(r.Reclaims, *d)
		r.Rungs[d.Rung]++
	}
}

// bursts judges the requests around each reclaim, reclaims that follow closely
// being one burst.
func (r *demoReport) bursts(run *demoRun, p *demoPlan) {
	type span struct{ from, to float64 }
	var spans []span
	for _, x := range r.Reclaims {
		at := x.AtMinute * 60_000
		if at < 0 {
			continue // in the warm-up
		}
		s := span{at - burstBeforeMs, at + burstAfterMs}
		if n := len(spans); n > 0 && s.from <= spans[n-1].to {
			spans[n-1].to = max(spans[n-1].to, s.to)
			continue
		}
		spans = append(spans, s)
	}
	for _, s := range spans {
		for _, model := range []string{demoLong, demoShort} {
			b := demoBurst{AtMinute: s.from / 60_000, Model: model}
			inside := 0
			for i := range run.Results {
				x := &run.Results[i]
				if at := (x.AtMs - p.WarmMs) * p.Speed; x.Model != model || at < s.from || at > s.to || (x.OK() && !x.Stream) {
					continue
				}
				b.Requests++
				if x.OK() && x.TTFTMs*p.Speed <= demoTTFTMs {
					inside++
				}
			}
			if b.Requests == 0 {
				continue
			}
			b.Fraction = float64(inside) / float64(b.Requests)
			b.Served = b.Fraction >= demoQuantile
			r.Bursts = append(r.Bursts, b)
		}
	}
}

// harvest is kept ÷ idle over the time the load was played: kept is training
// whose work survived; idle is capacity less the need known afterwards.
func (r *demoReport) harvest(run *demoRun, p *demoPlan) {
	kept := func(b map[string]float64) float64 { return b[registry.BookTraining.String()] }
	r.KeptGPUS = kept(run.End.Books.GPUSeconds) - kept(run.Begin.Books.GPUSeconds)
	// What was still unsaved at the end of the load was saved by the pause, or
	// is booked as lost since: that is no kept work.
	r.KeptGPUS -= run.Final.Books.GPUSeconds[registry.BookLost.String()] - run.End.Books.GPUSeconds[registry.BookLost.String()]
	seconds := float64(run.EndMs-run.BeginMs) / 1000
	need := 0.0
	for i := range p.Need {
		from := float64(i) * needWindowMs / 1000 / p.Speed
		need += float64(p.Need[i]) * max(0, min(needWindowMs/1000/p.Speed, seconds-from))
	}
	r.IdleGPUS = float64(len(run.End.GPUs))*seconds - need
	if r.IdleGPUS > 0 {
		r.Harvest = r.KeptGPUS / r.IdleGPUS
	}
}

// stepsOf counts, from the steps that a rank wrote down itself, the highest
// step done and how many were done again because a generation lost them.
func stepsOf(prefix string) (lost, done int64, err error) {
	file, err := os.Open(prefix + ".rank-0")
	if os.IsNotExist(err) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read the step log: %w", err)
	}
	defer file.Close()
	sc := bufio.NewScanner(file)
	for sc.Scan() {
		var line struct {
			Begun int64 `json:"begun"`
			Done  int64 `json:"done"`
		}
		if json.Unmarshal(sc.Bytes(), &line) != nil || line.Begun != line.Done {
			continue // a step begun, or a line that a kill cut short
		}
		if line.Done <= done {
			lost++
		}
		done = max(done, line.Done)
	}
	return lost, done, sc.Err()
}
