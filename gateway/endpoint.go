package gateway

import "sluice/gateway/wire"

// endpoint is one inference path of the API. It never changes.
type endpoint struct {
	path    string // as clients and engines know it
	streams bool   // an answer may be an event stream
	dialect dialect
}

// endpoints by path.
var endpoints = map[string]*endpoint{}

func init() {
	for _, e := range []endpoint{
		{path: "/v1/chat/completions", streams: true},
		{path: "/v1/completions", streams: true},
		{path: "/v1/embeddings"},
	} {
		endpoints[e.path] = &e
	}
}

// noEndpoint stands for every other path.
var noEndpoint = &endpoint{}

// dialect is how an API tells errors. The zero value is OpenAI's.
type dialect uint8

// appendError appends an error body.
func (d dialect) appendError(dst []byte, e wire.Error) []byte { return wire.AppendError(dst, e) }

// appendErrorEvent appends the event that tells an error in mid-stream.
func (d dialect) appendErrorEvent(dst []byte, e wire.Error) []byte {
	return wire.AppendErrorEvent(dst, e)
}
