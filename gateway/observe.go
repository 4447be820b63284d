package gateway

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"

	"sluice/gateway/record"
	"sluice/slo"
)

// told is what a call collects for its record. Without a sink only the numbers are there, and nobody reads them.
type told struct {
	record *record.Record // nil: nothing is told
	status int            // that the client got
	code   string         // of an error of our own
	sent   int64          // bytes to the client
}

// openRecord takes a record for the request, and finds or begins its trace.
func (k *call) openRecord() {
	s := k.srv.deps.Records
	if s == nil {
		return
	}
	r := s.Take()
	k.told.record = r
	parent, ok := clientTrace(&k.ctx.Request.Header)
	r.Trace = parent
	if !s.Traces() {
		return
	}
	if ok {
		r.Parent = parent.SpanID
	} else {
		binary.NativeEndian.PutUint64(r.Trace.TraceID[:8], rand.Uint64()|1) // never all zero
		binary.NativeEndian.PutUint64(r.Trace.TraceID[8:], rand.Uint64())
		r.Trace.Flags = record.Sampled
	}
	binary.NativeEndian.PutUint64(r.Trace.SpanID[:], rand.Uint64()|1)
}

// clientTrace is the trace context that a request came with, if there is exactly one and it is valid.
func clientTrace(h *fasthttp.RequestHeader) (record.Context, bool) {
	sent := h.PeekAll("Traceparent")
	if len(sent) != 1 {
		return record.Context{}, false
	}
	return record.ParseContext(sent[0])
}

// appendTrace appends the trace headers for an engine. With tracing on the engine's parent is our span; without, a
// valid context of the client passes as it came. An invalid one ends here, and its tracestate with it.
func (k *call) appendTrace(h []byte) []byte {
	client := &k.ctx.Request.Header
	trace, ok := clientTrace(client)
	if r := k.told.record; r != nil && k.srv.deps.Records.Traces() {
		trace = r.Trace
	} else if !ok {
		return h
	}
	h = append(h, "Traceparent: "...)
	h = trace.Append(h)
	h = append(h, "\r\n"...)
	if ok {
		h = appendTraceState(h, client.PeekAll("Tracestate"))
	}
	return h
}

// appendTraceState joins the client's tracestate headers, or leaves all out when they are too long or odd.
func appendTraceState(h []byte, lines [][]byte) []byte {
	from := len(h)
	h = append(h, "Tracestate: "...)
	value := len(h)
	for i, line := range lines {
		if i > 0 {
			h = append(h, ',')
		}
		h = append(h, line...)
	}
	if !record.ValidState(h[value:]) {
		return h[:from]
	}
	return append(h, "\r\n"...)
}

// noteBegin adds the try to the record.
func (a *attempt) noteBegin() {
	k := a.call
	if k.told.record == nil {
		return
	}
	if a.told = k.told.record.Begin(a.replica.ID); a.told != nil {
		a.told.Version, a.told.AtMs = a.replica.Version, msSince(k.arrived)
	}
}

// noteHead notes what the engine answered with, while it is there.
func (a *attempt) noteHead() {
	if a.told != nil {
		a.told.Status = a.exchange.Status()
		a.told.SetUpstreamID(a.exchange.Find("x-request-id"))
	}
}

// noteEnd notes how the try ended.
func (a *attempt) noteEnd(outcome slo.Outcome) {
	if a.told != nil {
		a.told.Outcome, a.told.E2EMs = outcome, msSince(a.call.arrived)-a.told.AtMs
		a.told = nil
	}
}

// closeRecord fills the record and hands it over.
func (k *call) closeRecord() {
	r := k.told.record
	if r == nil {
		return
	}
	header := &k.ctx.Request.Header
	r.StartUnixNs = k.arrived.UnixNano()
	r.SetID(k.id)
	r.Client, r.Method = k.conn.peer, shownMethod(header.Method())
	if r.Endpoint = k.endpoint.path; r.Endpoint == "" {
		r.Endpoint, r.Probe = shownPath(header.RequestURI())
	}
	r.Tenant, r.Key = k.key.Tenant, k.key.ID
	if k.books != nil {
		r.Class = k.ask.Class.String()
	}
	if k.model != nil {
		r.Model = k.model.Name
	}
	r.Version, r.Replica, r.Stream = k.at.replica.Version, k.at.replica.ID, k.observed && k.head.Stream
	r.Status, r.Code, r.Outcome = k.told.status, k.told.code, k.outcome
	if k.books == nil && k.told.status < 400 {
		r.Outcome = slo.OK // no inference: nothing was booked
	}
	r.QueueMs, r.TTFTMs, r.E2EMs = k.queueMs, k.at.ttftMs(), msSince(k.arrived)
	r.InputTokens, r.OutputTokens = k.at.tokens()
	r.ITLMs = k.at.itlMs(r.OutputTokens)
	r.BytesIn, r.BytesOut = int64(len(k.ctx.Request.Body())), k.told.sent
	k.told.record = nil
	k.srv.deps.Records.Put(r)
}

// recordUnreadable tells of a request that never became a call.
func (s *Server) recordUnreadable(ctx *fasthttp.RequestCtx, no refusal, id []byte, sent int) {
	if s.deps.Records == nil {
		return
	}
	r := s.deps.Records.Take()
	r.StartUnixNs = time.Now().UnixNano()
	r.SetID(id)
	if c, ok := ctx.Conn().(*clientConn); ok {
		r.Client = c.peer
	}
	if r.Outcome = slo.BadRequest; no.status == fasthttp.StatusUnauthorized {
		r.Outcome = slo.RefusedAuth
	}
	r.Status, r.Code, r.BytesOut = no.status, no.code, int64(sent)
	s.deps.Records.Put(r)
}

// shownMethod is the method if it is a usual one: the rest is a client's text.
func shownMethod(method []byte) string {
	switch string(method) {
	case "GET":
		return "GET"
	case "POST":
		return "POST"
	case "HEAD":
		return "HEAD"
	case "PUT":
		return "PUT"
	case "DELETE":
		return "DELETE"
	case "OPTIONS":
		return "OPTIONS"
	}
	return ""
}

// shownPath is the path of a request that is no inference, if it is one of the API's: the rest is a client's text.
func shownPath(uri []byte) (path string, probe bool) {
	if q := bytes.IndexByte(uri, '?'); q >= 0 {
		uri = uri[:q]
	}
	switch string(uri) {
	case "/livez":
		return "/livez", true
	case "/readyz":
		return "/readyz", true
	case "/health", "/healthz":
		return "/health", true
	case "/v1/models":
		return "/v1/models", false
	}
	if e := endpointOf(uri); e != nil {
		return e.path, false // asked for in another way than POST
	}
	if bytes.HasPrefix(uri, []byte("/v1/models/")) {
		return "/v1/models/{id}", false
	}
	return "", false
}

// writeRecordCounters writes the sink's own counts.
func (s *Server) writeRecordCounters(w io.Writer) {
	if s.deps.Records == nil {
		return
	}
	st := s.deps.Records.Stats()
	metrics.WriteCounterUint64(w, "sluice_gateway_access_log_lines_total", st.Lines)
	metrics.WriteCounterUint64(w, "sluice_gateway_access_log_dropped_total", st.LinesDropped)
	metrics.WriteCounterUint64(w, "sluice_gateway_spans_total", st.Spans)
	metrics.WriteCounterUint64(w, "sluice_gateway_spans_dropped_total", st.SpansDropped)
}
