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
	options bool   // requests have stream_options, so usage can be asked for
	form    bool   // the body is multipart/form-data
	vectors bool   // the answer holds vectors, in one of two forms
	free    bool   // it computes no tokens: none are billed, and nothing is learned from it
	keeps   bool   // the engine keeps the answer, to be asked for by its id
	speaks  string // the API that engines must speak, as router.Model.Speaks names it; empty: all do
	dialect dialect
}

// endpoints by path.
var endpoints = map[string]*endpoint{}

func init() {
	for _, e := range []endpoint{
		{path: "/v1/chat/completions", streams: true, options: true},
		{path: "/v1/completions", streams: true, options: true},
		{path: "/v1/embeddings", vectors: true},
		{path: "/v1/responses", streams: true, keeps: true, speaks: speaksResponses, dialect: dialectResponses},
		{path: "/rerank"}, {path: "/v1/rerank"}, {path: "/v2/rerank"},
		{path: "/score"}, {path: "/v1/score"},
		{path: "/tokenize", free: true}, {path: "/detokenize", free: true},
		{path: "/v1/audio/transcriptions", form: true, streams: true},
		{path: "/v1/audio/translations", form: true, streams: true},
		{path: messagesPath, streams: true, dialect: dialectAnthropic},
		{path: countTokensPath, free: true, dialect: dialectAnthropic},
	} {
		endpoints[e.path] = &e
	}
}

// speaksResponses is the API of OpenAI's that not every engine has.
const speaksResponses = "responses"

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
	dialectOpenAI    dialect = iota
	dialectResponses         // the same, but for events
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
	switch d {
	case dialectResponses:
		return wire.AppendTypedErrorEvent(dst, e)
	case dialectAnthropic:
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
