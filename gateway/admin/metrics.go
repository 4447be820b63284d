package admin

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"

	"github.com/VictoriaMetrics/metrics"

	"sluice/nodes/registry"
)

// maxJobSeries bounds series per job: the running ones, by name, up to it.
// Labels are names of registered objects only, never text of requests.
const maxJobSeries = 500

// getMetrics writes the process's own set and the gauges of the floor.
func (s *Server) getMetrics(w http.ResponseWriter, _ *http.Request, _ Actor) error {
	var buf bytes.Buffer
	if s.set != nil {
		s.set.WritePrometheus(&buf)
	}
	s.read(func(v *snapshot) { v.metrics(&buf) })
	metrics.WriteProcessMetrics(&buf)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(buf.Bytes()) // an error is a scraper that left
	return nil
}

func (v *snapshot) metrics(w io.Writer) {
	b := v.books()
	for _, state := range registry.BookStates() {
		// A gauge, not a counter: lost seconds are moved from kept ones.
		metrics.WriteGaugeFloat64(w, fmt.Sprintf("sluice_books_gpu_seconds{state=%q}", state), b.GPUSeconds[state.String()])
	}
	metrics.WriteGaugeFloat64(w, "sluice_books_capacity_gpu_seconds", b.CapacitySeconds)
	metrics.WriteGaugeFloat64(w, "sluice_books_balance_gpu_seconds", b.BalanceSeconds)
	metrics.WriteGaugeFloat64(w, "sluice_books_resident_seconds", b.ResidentSeconds)
	held := map[registry.BookState]uint64{}
	for _, g := range v.s.GPUs {
		held[g.Book]++
	}
	for _, state := range registry.BookStates() {
		metrics.WriteGaugeUint64(w, fmt.Sprintf("sluice_gpus{state=%q}", state), held[state])
	}
	for _, m := range v.models() {
		v.modelMetrics(w, &m)
	}
	v.jobMetrics(w)
	states := map[string]uint64{"ready": 0, "cordoned": 0, "draining": 0, "lost": 0}
	for _, n := range v.nodes() {
		states[n.State]++
	}
	for _, state := range []string{"ready", "cordoned", "draining", "lost"} {
		metrics.WriteGaugeUint64(w, fmt.Sprintf("sluice_nodes{state=%q}", state), states[state])
	}
}

func (v *snapshot) modelMetrics(w io.Writer, m *ModelStatus) {
	gauge := func(name string, value float64) {
		metrics.WriteGaugeFloat64(w, fmt.Sprintf("%s{model=%q}", name, m.Name), value)
	}
	gauge("sluice_model_replicas_ready", float64(m.Ready))
	gauge("sluice_model_replicas_asleep", float64(m.Asleep))
	gauge("sluice_model_replicas_coming", float64(m.Coming))
	h := m.Headroom
	if h == nil {
		return
	}
	gauge("sluice_model_arrival_requests_per_second", h.ArrivalRps)
	gauge("sluice_model_demand_requests_per_second", h.DemandRps)
	gauge("sluice_model_capacity_requests_per_second", h.CapacityRps)
	gauge("sluice_model_headroom_requests_per_second", h.HeadroomRps)
	gauge("sluice_model_headroom_tokens_per_second", h.HeadroomTokensPerS)
	gauge("sluice_model_headroom_replicas", float64(h.HeadroomReplicas))
	gauge("sluice_model_need_replicas", float64(h.NeedReplicas))
	gauge("sluice_model_queue_depth", float64(h.QueueDepth))
	for _, a := range h.Objectives {
		labels := fmt.Sprintf("{model=%q,metric=%q,quantile=\"%g\"}", m.Name, a.Objective.Metric, a.Objective.Quantile)
		metrics.WriteGaugeFloat64(w, "sluice_model_objective_seconds"+labels, a.Objective.ThresholdMs/1000)
		metrics.WriteGaugeFloat64(w, "sluice_model_observed_seconds"+labels, a.ObservedMs/1000)
		metrics.WriteGaugeFloat64(w, "sluice_model_objective_burn_fast"+labels, a.BurnFast)
		metrics.WriteGaugeFloat64(w, "sluice_model_objective_burn_slow"+labels, a.BurnSlow)
	}
}

func (v *snapshot) jobMetrics(w io.Writer) {
	phases := []registry.JobPhase{registry.JobPending, registry.JobPreparing, registry.JobStarting, registry.JobRunning, registry.JobStopping,
		registry.JobYielded, registry.JobResuming, registry.JobReleasing, registry.JobPaused, registry.JobSucceeded, registry.JobFailed, registry.JobCancelled}
	count := map[registry.JobPhase]uint64{}
	for _, j := range v.s.Jobs {
		count[j.Phase]++
	}
	for _, p := range phases {
		metrics.WriteGaugeUint64(w, fmt.Sprintf("sluice_jobs{phase=%q}", p), count[p])
	}
	left := maxJobSeries
	for _, j := range v.jobs(0) {
		if j.World == 0 {
			continue
		}
		if left--; left < 0 {
			break
		}
		gauge := func(name string, value float64) {
			metrics.WriteGaugeFloat64(w, fmt.Sprintf("%s{job=%q}", name, j.Name), value)
		}
		gauge("sluice_job_world_size", float64(j.World))
		gauge("sluice_job_step", float64(j.Step))
		if j.Loss != nil {
			gauge("sluice_job_loss", *j.Loss)
		}
		gauge("sluice_job_lost_steps", float64(j.LostSteps))
		gauge("sluice_job_lost_gpu_seconds", j.LostGPUS)
	}
}

// pprof serves profiles to peers of the Unix socket only: a profile holds
// command lines and shows what the process is busy with.
func (s *Server) pprof(w http.ResponseWriter, r *http.Request, _ Actor) error {
	if _, ok := LocalPeer(r); !ok {
		return &Error{Status: http.StatusForbidden, Code: "forbidden", Message: "profiles are served on the Unix socket only", Remedy: "log in to the server's machine"}
	}
	lift(w)
	switch r.URL.Path {
	case "/debug/pprof/profile":
		pprof.Profile(w, r)
	case "/debug/pprof/trace":
		pprof.Trace(w, r)
	case "/debug/pprof/symbol":
		pprof.Symbol(w, r)
	case "/debug/pprof/cmdline":
		pprof.Cmdline(w, r)
	default:
		pprof.Index(w, r)
	}
	return nil
}
