package rig

import (
	"bytes"
	"strconv"
)

// stampDigits is the width of the time of sending inside a token: the rig's clock in nanoseconds.
const stampDigits = 16

var (
	stampMark = []byte(`"content":"`)
	eventEnd  = []byte("\n\n")
)

// maxEventBytes bounds an event that comes in pieces.
const maxEventBytes = 64 << 10

// Ends of a stream.
const (
	finishEvent = `data: {"id":"chatcmpl-7f3a9c52d1e84b06","object":"chat.completion.chunk","created":1760000000,"model":"bench","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}` + "\n\n"
	usageEvent  = `data: {"id":"chatcmpl-7f3a9c52d1e84b06","object":"chat.completion.chunk","created":1760000000,"model":"bench","choices":[],"usage":{"prompt_tokens":200,"completion_tokens":100,"total_tokens":300}}` + "\n\n"
	doneEvent   = "data: [DONE]\n\n"
)

// newEvent returns one token as engines send it, without the time of sending in it yet, and the place of the time.
func newEvent() (event []byte, stampAt int) {
	event = append(event, `data: {"id":"chatcmpl-7f3a9c52d1e84b06","object":"chat.completion.chunk","created":1760000000,"model":"bench","choices":[{"index":0,"delta":{"content":"`...)
	stampAt = len(event)
	event = append(event, `0000000000000000"},"logprobs":null,"finish_reason":null}]}`+"\n\n"...)
	return event, stampAt
}

// stamp writes a time into its place.
func stamp(place []byte, ns int64) {
	for i := stampDigits - 1; i >= 0; i-- {
		place[i] = byte('0' + ns%10)
		ns /= 10
	}
}

// asChunk frames p as one chunk of a chunked body.
func asChunk(p []byte) []byte {
	out := strconv.AppendInt(nil, int64(len(p)), 16)
	out = append(out, "\r\n"...)
	out = append(out, p...)
	return append(out, "\r\n"...)
}

// scanner finds tokens in the body of a stream, whatever pieces it comes in. The zero value is ready.
type scanner struct {
	kept []byte // the beginning of an event
	done bool   // the end marker was seen
	bad  bool   // an event of an error, or one that never ends
}

// feed calls token with the time of sending of each token that p completes.
func (s *scanner) feed(p []byte, token func(sentNs int64)) {
	if len(s.kept) > 0 {
		s.kept = append(s.kept, p...)
		p = s.kept
	}
	for {
		i := bytes.Index(p, eventEnd)
		if i < 0 {
			break
		}
		s.event(p[:i], token)
		p = p[i+len(eventEnd):]
	}
	s.kept = append(s.kept[:0], p...)
	if len(s.kept) > maxEventBytes {
		s.kept, s.bad = s.kept[:0], true
	}
}

func (s *scanner) event(p []byte, token func(int64)) {
	i := bytes.Index(p, stampMark)
	if i < 0 {
		s.done = s.done || bytes.Contains(p, []byte("[DONE]"))
		s.bad = s.bad || bytes.Contains(p, []byte(`"error"`))
		return
	}
	p = p[i+len(stampMark):]
	if len(p) < stampDigits {
		return
	}
	if n := number(p[:stampDigits]); n >= 0 {
		token(int64(n))
	}
}

func (s *scanner) reset() { *s = scanner{kept: s.kept[:0]} }
