package engine

import (
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
)

// stats are the engine's counters; written by the loop and handlers, read by /metrics.
type stats struct {
	promptTokens     atomic.Int64
	generationTokens atomic.Int64
	ended            atomic.Int64
	cut              atomic.Int64 // ended by the limit
	aborted          atomic.Int64
	refused          atomic.Int64
	iterations       atomic.Int64
	lagged           atomic.Int64
	ttft             histogram
	e2e              histogram
}

// bucketSeconds are vLLM's bounds for the time to first token and the whole
// request together, so that its dashboards fit.
var bucketSeconds = [...]float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}

// histogram has one writer at a time; readers may be a sample behind.
type histogram struct {
	counts    [len(bucketSeconds) + 1]atomic.Int64
	sumMicros atomic.Int64
}

func (h *histogram) observe(seconds float64) {
	i := 0
	for i < len(bucketSeconds) && seconds > bucketSeconds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sumMicros.Add(int64(seconds * 1e6))
}

func (h *histogram) write(w io.Writer, name, help, label string) {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name)
	total := int64(0)
	for i := range h.counts {
		total += h.counts[i].Load()
		bound := "+Inf"
		if i < len(bucketSeconds) {
			bound = strconv.FormatFloat(bucketSeconds[i], 'g', -1, 64)
		}
		fmt.Fprintf(w, "%s_bucket{%s,le=\"%s\"} %d\n", name, label, bound, total)
	}
	fmt.Fprintf(w, "%s_sum{%s} %g\n%s_count{%s} %d\n", name, label, float64(h.sumMicros.Load())/1e6, name, label, total)
}

// writeMetrics prints the Prometheus text under vLLM's names, and the
// simulation's own under sluice_engine_.
func (e *engine) writeMetrics(w io.Writer) {
	label := "model_name=" + strconv.Quote(e.cfg.ServedModel)
	one := func(name, kind, help, labels string, value any) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n%s{%s} %v\n", name, help, name, kind, name, labels, value)
	}
	running, waiting, kv := e.batch.load()
	st := &e.stats
	one("vllm:num_requests_running", "gauge", "Requests in the batch.", label, running)
	one("vllm:num_requests_waiting", "gauge", "Requests waiting to be processed.", label, waiting)
	one("vllm:kv_cache_usage_perc", "gauge", "KV cache usage, 1 is full.", label, kv)
	one("vllm:num_preemptions_total", "counter", "Preempted requests; room is reserved, so none.", label, 0)
	one("vllm:prompt_tokens_total", "counter", "Prompt tokens accepted.", label, st.promptTokens.Load())
	one("vllm:generation_tokens_total", "counter", "Tokens generated.", label, st.generationTokens.Load())
	one("vllm:engine_sleep_state", "gauge", "1 while asleep or on the way.", label, boolInt(e.asleepNow()))
	const ended = "vllm:request_success_total"
	fmt.Fprintf(w, "# HELP %s Requests that ended, by reason.\n# TYPE %s counter\n", ended, ended)
	fmt.Fprintf(w, "%s{%s,finished_reason=\"stop\"} %d\n", ended, label, st.ended.Load())
	fmt.Fprintf(w, "%s{%s,finished_reason=\"length\"} %d\n", ended, label, st.cut.Load())
	fmt.Fprintf(w, "%s{%s,finished_reason=\"abort\"} %d\n", ended, label, st.aborted.Load())
	st.ttft.write(w, "vllm:time_to_first_token_seconds", "From acceptance to the first token.", label)
	st.e2e.write(w, "vllm:e2e_request_latency_seconds", "From acceptance to the last token.", label)
	one("sluice_engine_refused_total", "counter", "Requests refused because the waiting queue was full.", label, st.refused.Load())
	one("sluice_engine_iterations_total", "counter", "Iterations of the batch.", label, st.iterations.Load())
	one("sluice_engine_lagged_total", "counter", "Iterations begun anew because the process was more than 250 ms late; above 0 the machine is too slow for this run.", label, st.lagged.Load())
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
