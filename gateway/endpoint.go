package gateway

import (
	"bytes"

	"sluice/gateway/anthropic"
	"sluice/gateway/wire"
)

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
		{path: messagesPath, streams: true, dialect: dialectAnthropic},
		{path: countTokensPath, dialect: dialectAnthropic},
	} {
		endpoints[e.path] = &e
	}
}

// noEndpoint stands for every other path.
var noEndpoint = &endpoint{}

// endpointOf finds the endpoint of a path; nil for any other.
func endpointOf(path []byte) *endpoint {
	if e := endpoints[string(path)]; e != nil || !bytes.HasPrefix(path, []byte(messagesPath)) {
		return e
	}
	return noMessages
}

// dialect is how an API tells errors. The zero value is OpenAI's.
type dialect uint8

const (
	dialectOpenAI dialect = iota
	dialectAnthropic
)

// appendError appends the body of an error with this status.
func (d dialect) appendError(dst []byte, status int, e wire.Error, id []byte) []byte {
	if d == dialectAnthropic {
		return anthropic.AppendError(dst, anthropic.Error{Type: anthropic.TypeOf(status), Message: e.Message, Code: e.Code, RequestID: id})
	}
	return wire.AppendError(dst, e)
}

// appendErrorEvent appends the event that tells an error in mid-stream.
func (d dialect) appendErrorEvent(dst []byte, e wire.Error, id []byte) []byte {
	if d == dialectAnthropic {
		kind := anthropic.TypeAPI
		if e.Type != wire.TypeServer {
			kind = e.Type
		}
		return anthropic.AppendErrorEvent(dst, anthropic.Error{Type: kind, Message: e.Message, Code: e.Code, RequestID: id})
	}
	return wire.AppendErrorEvent(dst, e)
}

// appendEngineError appends the error body that an engine sent, as this API tells it.
func (d dialect) appendEngineError(dst, body []byte, status int, id []byte) []byte {
	if d != dialectAnthropic || anthropic.IsError(body) {
		return append(dst, body...)
	}
	kind, message := anthropic.EngineError(body, status)
	return anthropic.AppendError(dst, anthropic.Error{Type: kind, Message: message, Code: "upstream_error", RequestID: id})
}
