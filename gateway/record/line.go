package record

import (
	"strconv"
	"time"

	"sluice/gateway/wire"
)

// AppendLine appends the record as one line of the access log: a JSON object and a newline. Names are in camelCase with
// their unit last; what is not known is left out. Whatever the texts hold, the line is one line.
func (r *Record) AppendLine(dst []byte) []byte {
	dst = append(dst, `{"time":"`...)
	dst = time.Unix(0, r.StartUnixNs).UTC().AppendFormat(dst, "2006-01-02T15:04:05.000Z")
	dst = append(dst, `","requestId":"`...)
	dst = append(dst, r.id.bytes()...)
	dst = append(dst, '"')
	if r.Trace.Valid() {
		dst = append(dst, `,"traceId":"`...)
		dst = appendHex(dst, r.Trace.TraceID[:])
		dst = append(dst, '"')
	}
	dst = appendText(dst, "client", r.Client)
	dst = appendText(dst, "tenant", r.Tenant)
	dst = appendText(dst, "key", r.Key)
	dst = appendText(dst, "method", r.Method)
	dst = appendText(dst, "endpoint", r.Endpoint)
	dst = appendText(dst, "model", r.Model)
	dst = appendText(dst, "version", r.Version)
	dst = appendText(dst, "replica", r.Replica)
	dst = appendText(dst, "class", r.Class)
	dst = append(dst, `,"stream":`...)
	dst = strconv.AppendBool(dst, r.Stream)
	dst = appendCount(dst, "status", int64(r.Status))
	dst = appendText(dst, "outcome", r.Outcome.String())
	dst = appendText(dst, "code", r.Code)
	dst = appendMs(dst, "queueMs", r.QueueMs)
	dst = appendMs(dst, "ttftMs", r.TTFTMs)
	dst = appendMs(dst, "itlMs", r.ITLMs)
	dst = appendMs(dst, "e2eMs", r.E2EMs)
	dst = appendCount(dst, "inputTokens", int64(r.InputTokens))
	dst = appendCount(dst, "outputTokens", int64(r.OutputTokens))
	dst = appendCount(dst, "bytesIn", r.BytesIn)
	dst = appendCount(dst, "bytesOut", r.BytesOut)
	dst = r.appendTries(dst)
	return append(dst, "}\n"...)
}

func (r *Record) appendTries(dst []byte) []byte {
	if r.numTry == 0 {
		return dst
	}
	dst = append(dst, `,"tries":[`...)
	for i := range r.Tries() {
		t := &r.tries[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"replica":`...)
		dst = wire.AppendQuoted(dst, t.Replica)
		if t.upstream.len > 0 {
			dst = append(dst, `,"upstreamRequestId":"`...)
			dst = append(dst, t.upstream.bytes()...)
			dst = append(dst, '"')
		}
		dst = appendCount(dst, "status", int64(t.Status))
		dst = appendText(dst, "outcome", t.Outcome.String())
		dst = appendMs(dst, "atMs", t.AtMs)
		dst = appendMs(dst, "e2eMs", t.E2EMs)
		dst = append(dst, '}')
	}
	dst = append(dst, ']')
	if r.dropped > 0 {
		dst = appendCount(dst, "furtherTries", int64(r.dropped))
	}
	return dst
}

// appendText appends a member with a text, unless it is empty.
func appendText(dst []byte, name, text string) []byte {
	if text == "" {
		return dst
	}
	return wire.AppendQuoted(appendName(dst, name), text)
}

func appendName(dst []byte, name string) []byte {
	dst = append(dst, `,"`...)
	dst = append(dst, name...)
	return append(dst, `":`...)
}

func appendCount(dst []byte, name string, n int64) []byte {
	return strconv.AppendInt(appendName(dst, name), n, 10)
}

// appendMs appends a member with milliseconds, to a microsecond, unless it is 0.
func appendMs(dst []byte, name string, ms float64) []byte {
	if ms == 0 {
		return dst
	}
	return strconv.AppendFloat(appendName(dst, name), ms, 'f', 3, 64)
}
