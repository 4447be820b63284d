package record

import (
	"strconv"

	"sluice/gateway/wire"
	"sluice/slo"
)

// Numbers of OTLP's span kinds and status codes.
const (
	kindServer  = "2"
	statusError = "2"
)

// AppendSpan appends the record as one span in OTLP's JSON form: hexadecimal ids, 64-bit numbers as strings. Names of
// attributes follow OpenTelemetry's conventions for HTTP and for generative AI; what has none begins with "sluice.".
// The first token and the tries are events of the span.
func (r *Record) AppendSpan(dst []byte) []byte {
	dst = append(dst, `{"traceId":"`...)
	dst = appendHex(dst, r.Trace.TraceID[:])
	dst = append(dst, `","spanId":"`...)
	dst = appendHex(dst, r.Trace.SpanID[:])
	if r.Parent != [8]byte{} {
		dst = append(dst, `","parentSpanId":"`...)
		dst = appendHex(dst, r.Parent[:])
	}
	dst = append(dst, `","name":`...)
	dst = wire.AppendQuoted(dst, r.spanName())
	dst = append(dst, `,"kind":`+kindServer+`,"startTimeUnixNano":"`...)
	dst = r.appendAt(dst, 0)
	dst = append(dst, `","endTimeUnixNano":"`...)
	dst = r.appendAt(dst, r.E2EMs)
	dst = append(dst, `","attributes":[`...)
	dst = r.appendAttributes(dst)
	dst = append(dst, `],"events":[`...)
	dst = r.appendEvents(dst)
	dst = append(dst, ']')
	if r.failed() {
		dst = append(dst, `,"status":{"code":`+statusError+`,"message":`...)
		dst = wire.AppendQuoted(dst, r.Outcome.String())
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

// failed reports an end that is the server's fault. That of a client is no error of a server's span.
func (r *Record) failed() bool {
	return r.Status >= 500 || r.Status < 400 && r.Outcome != slo.OK && r.Outcome != slo.ClientGone
}

// appendAt appends the time ms after the request's arrival.
func (r *Record) appendAt(dst []byte, ms float64) []byte {
	return strconv.AppendInt(dst, r.StartUnixNs+int64(ms*1e6), 10)
}

// spanName is the operation and the model, which has few values, as span names must.
func (r *Record) spanName() string {
	op := r.operation()
	switch {
	case op == "" && r.Endpoint != "":
		return r.Endpoint
	case op == "":
		return "request"
	case r.Model != "":
		return op + " " + r.Model
	}
	return op
}

// operation is the conventions' word for what the endpoint does; empty for what is no inference.
func (r *Record) operation() string {
	switch r.Endpoint {
	case "/v1/chat/completions", "/v1/responses", "/v1/messages":
		return "chat"
	case "/v1/completions":
		return "text_completion"
	case "/v1/embeddings":
		return "embeddings"
	}
	return ""
}

func (r *Record) appendAttributes(dst []byte) []byte {
	from := len(dst)
	dst = attrText(dst, "gen_ai.operation.name", r.operation())
	dst = attrText(dst, "gen_ai.request.model", r.Model)
	if r.OutputTokens > 0 || r.InputTokens > 0 {
		dst = attrInt(dst, "gen_ai.usage.input_tokens", r.InputTokens)
		dst = attrInt(dst, "gen_ai.usage.output_tokens", r.OutputTokens)
	}
	dst = attrText(dst, "http.request.method", r.Method)
	dst = attrText(dst, "http.route", r.Endpoint)
	if r.Status > 0 {
		dst = attrInt(dst, "http.response.status_code", r.Status)
	}
	dst = attrText(dst, "client.address", r.Client)
	if r.Outcome != slo.OK {
		dst = attrText(dst, "error.type", r.Outcome.String())
	}
	dst = append(attrName(dst, "sluice.request_id", "stringValue"), '"')
	dst = append(dst, r.id.bytes()...)
	dst = append(dst, `"}}`...)
	dst = attrText(dst, "sluice.outcome", r.Outcome.String())
	dst = attrText(dst, "sluice.tenant", r.Tenant)
	dst = attrText(dst, "sluice.key", r.Key)
	dst = attrText(dst, "sluice.class", r.Class)
	dst = attrText(dst, "sluice.version", r.Version)
	dst = attrText(dst, "sluice.replica", r.Replica)
	dst = attrText(dst, "sluice.code", r.Code)
	dst = attrMs(dst, "sluice.queue_ms", r.QueueMs)
	dst = attrMs(dst, "sluice.ttft_ms", r.TTFTMs)
	dst = attrMs(dst, "sluice.itl_ms", r.ITLMs)
	return dropComma(dst, from)
}

func (r *Record) appendEvents(dst []byte) []byte {
	from := len(dst)
	for i := range r.Tries() {
		t := &r.tries[i]
		dst = r.appendEvent(dst, "sluice.try", t.AtMs)
		start := len(dst)
		dst = attrText(dst, "sluice.replica", t.Replica)
		dst = attrText(dst, "sluice.version", t.Version)
		dst = attrText(dst, "sluice.outcome", t.Outcome.String())
		if t.Status > 0 {
			dst = attrInt(dst, "http.response.status_code", t.Status)
		}
		if t.upstream.len > 0 {
			dst = append(attrName(dst, "sluice.upstream_request_id", "stringValue"), '"')
			dst = append(dst, t.upstream.bytes()...)
			dst = append(dst, `"}}`...)
		}
		dst = attrMs(dst, "sluice.e2e_ms", t.E2EMs)
		dst = append(dropComma(dst, start), "]}"...)
	}
	if r.TTFTMs > 0 {
		dst = append(r.appendEvent(dst, "sluice.first_token", r.TTFTMs), "]}"...)
	}
	return dropComma(dst, from)
}

// appendEvent begins an event, up to its attributes.
func (r *Record) appendEvent(dst []byte, name string, atMs float64) []byte {
	dst = append(dst, `,{"timeUnixNano":"`...)
	dst = r.appendAt(dst, atMs)
	dst = append(dst, `","name":"`...)
	dst = append(dst, name...)
	return append(dst, `","attributes":[`...)
}

// dropComma takes away the comma that stands before the first item of the list that begins at from.
func dropComma(dst []byte, from int) []byte {
	if len(dst) == from {
		return dst
	}
	return append(dst[:from], dst[from+1:]...)
}

// attrName begins an attribute, up to its value.
func attrName(dst []byte, name, kind string) []byte {
	dst = append(dst, `,{"key":"`...)
	dst = append(dst, name...)
	dst = append(dst, `","value":{"`...)
	dst = append(dst, kind...)
	return append(dst, `":`...)
}

func attrText(dst []byte, name, text string) []byte {
	if text == "" {
		return dst
	}
	return append(wire.AppendQuoted(attrName(dst, name, "stringValue"), text), "}}"...)
}

func attrInt(dst []byte, name string, n int) []byte {
	dst = append(attrName(dst, name, "intValue"), '"')
	return append(strconv.AppendInt(dst, int64(n), 10), `"}}`...)
}

func attrMs(dst []byte, name string, ms float64) []byte {
	if ms == 0 {
		return dst
	}
	return append(strconv.AppendFloat(attrName(dst, name, "doubleValue"), ms, 'f', 3, 64), "}}"...)
}

// AppendText appends a text as a member of a list of attributes, with a comma before it; resources are made of these.
func AppendText(dst []byte, name, text string) []byte {
	dst = append(dst, `,{"key":`...)
	dst = wire.AppendQuoted(dst, name)
	dst = append(dst, `,"value":{"stringValue":`...)
	dst = wire.AppendQuoted(dst, text)
	return append(dst, "}}"...)
}
