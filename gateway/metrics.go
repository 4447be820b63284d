package gateway

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"

	"sluice/router"
	"sluice/slo"
)

// unknownModel is the one label for all names that are no model's.
const unknownModel = "unknown"

// buckets of latency histograms, seconds: from a cached first token to a long answer.
var buckets = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// tokenBuckets are for the time between tokens, seconds.
var tokenBuckets = []float64{0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1}

// books are the gateway's metrics. Labels come from the routing table and closed sets only, never from clients, and the
// series of a model go when it has left the table.
type books struct {
	set       *metrics.Set
	inFlight  atomic.Int64
	retries   *metrics.Counter
	hedges    *metrics.Counter
	hedgesWon *metrics.Counter
	panics    *metrics.Counter
	refused   *metrics.Counter // connections
	models    sync.Map         // name to *modelBooks
	table     atomic.Pointer[router.Table]
}

// modelBooks are one model's.
type modelBooks struct {
	name     string
	ended    [slo.NumClasses][slo.NumOutcomes]*metrics.Counter
	failed   [slo.NumOutcomes]*metrics.Counter // tries, not requests; nil for outcomes that are no replica's fault
	input    *metrics.Counter
	output   *metrics.Counter
	choices  *metrics.Counter
	queue    *metrics.PrometheusHistogram
	first    *metrics.PrometheusHistogram
	between  *metrics.PrometheusHistogram
	duration *metrics.PrometheusHistogram
	inFlight atomic.Int64
	series   []string
	waits    [2]waits // for the beginning of answers: whole ones, streams
}

func newBooks(set *metrics.Set, s *Server) *books {
	b := &books{set: set}
	b.retries = set.NewCounter("sluice_gateway_retries_total")
	b.hedges = set.NewCounter("sluice_gateway_hedges_total")
	b.hedgesWon = set.NewCounter("sluice_gateway_hedges_won_total")
	b.panics = set.NewCounter("sluice_gateway_panics_total")
	b.refused = set.NewCounter("sluice_gateway_refused_connections_total")
	set.NewGauge("sluice_gateway_requests_in_flight", func() float64 { return float64(b.inFlight.Load()) })
	set.NewGauge("sluice_gateway_limit_slots_in_use", func() float64 { n, _ := s.ledgers.held(); return float64(n) })
	set.NewGauge("sluice_gateway_limit_tokens_reserved", func() float64 { _, n := s.ledgers.held(); return float64(n) })
	set.NewGauge("sluice_gateway_large_bodies_bytes", func() float64 { return float64(s.bodies.used.Load()) })
	set.NewGauge("sluice_gateway_client_connections", func() float64 { return float64(s.http.GetOpenConnectionsCount()) })
	set.NewGauge("sluice_gateway_upstream_idle_connections", func() float64 { return float64(s.client.Idle()) })
	set.RegisterMetricsWriter(func(w io.Writer) {
		s.writeRelayCounters(w)
		if t := s.deps.Router.Table(); t != nil {
			b.prune(t) // here too, for a model that nobody asks for any more; this scrape has its series already
		}
	})
	return b
}

// writeRelayCounters writes the relay's own counts.
func (s *Server) writeRelayCounters(w io.Writer) {
	st := s.client.Stats()
	for _, c := range []struct {
		name string
		n    uint64
	}{
		{"sluice_gateway_upstream_dials_total", st.Dials}, {"sluice_gateway_upstream_reuses_total", st.Reuses},
		{"sluice_gateway_upstream_stale_total", st.Stale}, {"sluice_gateway_upstream_reconnects_total", st.Retries},
	} {
		metrics.WriteCounterUint64(w, c.name, c.n)
	}
	s.writeRecordCounters(w)
}

// of returns the books of a model, made when it is first asked for. name is a model of the table, or unknownModel.
func (b *books) of(name string) *modelBooks {
	if m, ok := b.models.Load(name); ok {
		return m.(*modelBooks)
	}
	m := &modelBooks{name: name}
	label := func(metric, more string) string {
		s := fmt.Sprintf("%s{model=%q%s}", metric, name, more)
		m.series = append(m.series, s)
		return s
	}
	for _, class := range slo.Classes() {
		for _, o := range slo.Outcomes() {
			m.ended[class][o] = b.set.GetOrCreateCounter(label("sluice_gateway_requests_total", fmt.Sprintf(",class=%q,outcome=%q", class, o)))
		}
	}
	for _, o := range []slo.Outcome{slo.UpstreamError, slo.UpstreamLost, slo.Timeout} {
		m.failed[o] = b.set.GetOrCreateCounter(label("sluice_gateway_failed_tries_total", fmt.Sprintf(",outcome=%q", o)))
	}
	m.input = b.set.GetOrCreateCounter(label("sluice_gateway_tokens_total", `,type="input"`))
	m.output = b.set.GetOrCreateCounter(label("sluice_gateway_tokens_total", `,type="output"`))
	m.choices = b.set.GetOrCreateCounter(label("sluice_gateway_choices_total", ""))
	m.queue = b.set.GetOrCreatePrometheusHistogramExt(label("sluice_gateway_queue_seconds", ""), buckets)
	m.first = b.set.GetOrCreatePrometheusHistogramExt(label("gen_ai_server_time_to_first_token_seconds", ""), buckets)
	m.between = b.set.GetOrCreatePrometheusHistogramExt(label("gen_ai_server_time_per_output_token_seconds", ""), tokenBuckets)
	m.duration = b.set.GetOrCreatePrometheusHistogramExt(label("gen_ai_server_request_duration_seconds", ""), buckets)
	got, _ := b.models.LoadOrStore(name, m)
	return got.(*modelBooks)
}

// prune drops the series of models that are not in the table, once for each table.
func (b *books) prune(t *router.Table) {
	old := b.table.Load()
	if old == t || !b.table.CompareAndSwap(old, t) {
		return
	}
	b.models.Range(func(key, value any) bool {
		m := value.(*modelBooks)
		if _, ok := t.Lookup(m.name); !ok && m.name != unknownModel && m.inFlight.Load() == 0 {
			b.models.Delete(key)
			for _, s := range m.series {
				b.set.UnregisterMetric(s)
			}
		}
		return true
	})
}

// finished books one request.
func (m *modelBooks) finished(s *slo.Sample) {
	m.ended[s.Class][s.Outcome].Inc()
	if s.Replica == "" {
		return
	}
	m.input.Add(s.InputTokens)
	m.output.Add(s.OutputTokens)
	m.queue.Update(s.QueueMs / 1000)
	m.duration.Update(s.E2EMs / 1000)
	if s.TTFTMs > 0 {
		m.first.Update(s.TTFTMs / 1000)
	}
	if s.ITLMs > 0 {
		m.between.Update(s.ITLMs / 1000)
	}
}
