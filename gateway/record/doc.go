// Package record is what is told about one request once it has ended: a line of the access log, and a span of a trace.
//
// It decides what may be told. A [Record] has room for names that the operator gave (tenant, key id, model, version,
// replica), ids, times, counts and closed sets of words. It has none for prompts, answers, keys, headers or paths as
// they were sent, so no caller can put a secret there by mistake. Ids of others are cut and cleaned as they come in.
//
//	r.Tenant, r.Model, r.Status = "web", "chat", 200
//	r.Begin(replica).SetUpstreamID(id)
//	line := r.AppendLine(nil)   // {"time":…}\n
//	span := r.AppendSpan(nil)   // one span of OTLP's JSON
//
// It also reads and writes trace context, traceparent and tracestate of W3C's recommendation of 2021 ([Context]).
//
// What its caller owes it: a Record belongs to one goroutine at a time; [Record.Reset] before it is used again. Strings
// are kept as they are, bytes are copied. Appending allocates nothing once the buffers have grown.
//
// What it does not do: choose which requests are told, hold a clock, write or send anything (package sink does).
package record
