package engine

import "strconv"

// answer renders one generation; every method appends what it is named after.
// Not safe for concurrent use.
type answer struct {
	job
	id       string
	createdS int64
	model    string

	head []byte // of every event, rendered once
}

// open appends the fields every object begins with.
func (a *answer) open(dst []byte, object string) []byte {
	dst = append(dst, `{"id":"`...)
	dst = append(dst, a.id...)
	dst = append(dst, `","object":"`...)
	dst = append(dst, object...)
	dst = append(dst, `","created":`...)
	dst = strconv.AppendInt(dst, a.createdS, 10)
	dst = append(dst, `,"model":`...)
	dst = appendQuoted(dst, a.model)
	return append(dst, `,"choices":[`...)
}

func (a *answer) openEvent(dst []byte) []byte {
	if a.head == nil {
		object := "text_completion"
		if a.chat {
			object = "chat.completion.chunk"
		}
		a.head = a.open([]byte("data: "), object)
	}
	return append(dst, a.head...)
}

const endEvent = "]}\n\n"

// event appends the event of tokens [from, to).
func (a *answer) event(dst []byte, from, to int) []byte {
	dst = a.openEvent(dst)
	switch {
	case !a.chat:
		dst = append(dst, `{"index":0,"text":"`...)
	case from == 0:
		dst = append(dst, `{"index":0,"delta":{"role":"assistant","content":"`...)
	default:
		dst = append(dst, `{"index":0,"delta":{"content":"`...)
	}
	dst = appendWords(dst, a.seed, from, to)
	if a.chat {
		dst = append(dst, `"},"logprobs":null,"finish_reason":null}`...)
	} else {
		dst = append(dst, `","logprobs":null,"finish_reason":null}`...)
	}
	return append(dst, endEvent...)
}

// lastEvents appends the finish reason, the usage if it was asked for, and the
// end mark.
func (a *answer) lastEvents(dst []byte) []byte {
	dst = a.openEvent(dst)
	if a.chat {
		dst = append(dst, `{"index":0,"delta":{},"logprobs":null,"finish_reason":"`...)
	} else {
		dst = append(dst, `{"index":0,"text":"","logprobs":null,"finish_reason":"`...)
	}
	dst = append(append(dst, a.finish...), `"}`...)
	dst = append(dst, endEvent...)
	if a.includeUsage {
		dst = append(a.openEvent(dst), `],"usage":`...)
		dst = append(a.usage(dst), "}\n\n"...)
	}
	return append(dst, "data: [DONE]\n\n"...)
}

func (a *answer) usage(dst []byte) []byte {
	dst = append(dst, `{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(a.promptTokens), 10)
	dst = append(dst, `,"completion_tokens":`...)
	dst = strconv.AppendInt(dst, int64(a.outTokens), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(a.promptTokens+a.outTokens), 10)
	return append(dst, '}')
}

// whole is the answer of a request that is not streamed.
func (a *answer) whole() []byte {
	object := "text_completion"
	if a.chat {
		object = "chat.completion"
	}
	dst := a.open(make([]byte, 0, 512+8*a.outTokens), object)
	if a.chat {
		dst = append(dst, `{"index":0,"message":{"role":"assistant","content":"`...)
	} else {
		dst = append(dst, `{"index":0,"text":"`...)
	}
	dst = appendWords(dst, a.seed, 0, a.outTokens)
	if a.chat {
		dst = append(dst, `"},"logprobs":null,"finish_reason":"`...)
	} else {
		dst = append(dst, `","logprobs":null,"finish_reason":"`...)
	}
	dst = append(append(dst, a.finish...), `"}],"usage":`...)
	return append(a.usage(dst), '}')
}

// appendQuoted appends s as a JSON string.
func appendQuoted(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
