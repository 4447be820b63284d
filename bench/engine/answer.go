package engine

import "strconv"

// renderer writes one generation in the form of an API. Not safe for
// concurrent use.
type renderer interface {
	// events appends the events of tokens [from, to); calls follow each other
	// without a gap, from token 0.
	events(dst []byte, from, to int) []byte
	// lastEvents appends what ends the stream.
	lastEvents(dst []byte) []byte
	// failEvent appends an error in mid-stream, in one of the shapes of errorShapes.
	failEvent(dst []byte, shape string) []byte
	// whole is the answer of a request that is not streamed.
	whole() []byte
}

// answer renders chats and completions; every method appends what it is named after.
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

func (a *answer) events(dst []byte, from, to int) []byte {
	if a.choices == 1 && a.pieces == nil {
		return a.event(dst, 0, from, to)
	}
	for t := from; t < to; t++ { // token t is of choice t mod choices
		dst = a.event(dst, t%a.choices, t/a.choices, t/a.choices+1)
	}
	return dst
}

// event appends the event of tokens [from, to) of a choice. Tokens that are
// pieces come alone.
func (a *answer) event(dst []byte, choice, from, to int) []byte {
	dst = append(a.openEvent(dst), `{"index":`...)
	dst = strconv.AppendInt(dst, int64(choice), 10)
	if !a.chat {
		dst = append(dst, `,"text":"`...)
		dst = append(a.appendText(dst, choice, from, to), `","logprobs":`...)
		dst = append(a.appendTextLogprobs(dst, choice, from, to), `,"finish_reason":null}`...)
		return append(dst, endEvent...)
	}
	dst = append(dst, `,"delta":{`...)
	if from == 0 {
		dst = append(dst, `"role":"assistant",`...)
	}
	if a.pieces != nil && a.pieces[from].call != nil {
		dst = appendCallDelta(dst, &a.pieces[from])
	} else {
		dst = append(dst, `"content":"`...)
		dst = append(a.appendText(dst, choice, from, to), '"')
	}
	dst = append(dst, `},"logprobs":`...)
	dst = append(a.appendLogprobs(dst, choice, from, to), `,"finish_reason":null}`...)
	return append(dst, endEvent...)
}

// appendCallDelta appends a token of a tool call: who is called, then the
// arguments bit by bit.
func appendCallDelta(dst []byte, p *piece) []byte {
	dst = append(dst, `"tool_calls":[{"index":`...)
	dst = strconv.AppendInt(dst, int64(p.call.index), 10)
	if p.open {
		dst = append(dst, `,"id":"`...)
		dst = append(dst, p.call.id...)
		dst = append(dst, `","type":"function","function":{"name":`...)
		dst = appendQuoted(dst, p.call.name)
		return append(dst, `,"arguments":""}}]`...)
	}
	dst = append(dst, `,"function":{"arguments":`...)
	return append(appendQuoted(dst, p.text), "}}]"...)
}

// lastEvents appends the finish reasons, the usage if it was asked for, and the
// end mark.
func (a *answer) lastEvents(dst []byte) []byte {
	for choice := range a.choices {
		dst = append(a.openEvent(dst), `{"index":`...)
		dst = strconv.AppendInt(dst, int64(choice), 10)
		if a.chat {
			dst = append(dst, `,"delta":{},"logprobs":null,"finish_reason":"`...)
		} else {
			dst = append(dst, `,"text":"","logprobs":null,"finish_reason":"`...)
		}
		dst = append(append(dst, a.finish...), `"}`...)
		dst = append(dst, endEvent...)
	}
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
	dst = strconv.AppendInt(dst, int64(a.totalTokens()), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(a.promptTokens+a.totalTokens()), 10)
	return append(dst, '}')
}

func (a *answer) whole() []byte {
	object := "text_completion"
	if a.chat {
		object = "chat.completion"
	}
	dst := a.open(make([]byte, 0, 512+8*a.totalTokens()), object)
	for choice := range a.choices {
		if choice > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(choice), 10)
		if a.chat {
			dst = append(dst, `,"message":`...)
			dst = append(a.message(dst, choice), `,"logprobs":`...)
			dst = a.appendLogprobs(dst, choice, 0, a.outTokens)
		} else {
			dst = append(dst, `,"text":"`...)
			dst = append(a.appendText(dst, choice, 0, a.outTokens), `","logprobs":`...)
			dst = a.appendTextLogprobs(dst, choice, 0, a.outTokens)
		}
		dst = append(dst, `,"finish_reason":"`...)
		dst = append(append(dst, a.finish...), `"}`...)
	}
	dst = append(dst, `],"usage":`...)
	return append(a.usage(dst), '}')
}

// message appends a choice's whole message.
func (a *answer) message(dst []byte, choice int) []byte {
	calls := a.calls()
	if len(calls) == 0 {
		dst = append(dst, `{"role":"assistant","content":"`...)
		return append(a.appendText(dst, choice, 0, a.outTokens), `"}`...)
	}
	dst = append(dst, `{"role":"assistant","content":null,"tool_calls":[`...)
	for i, c := range calls {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"id":"`...)
		dst = append(dst, c.id...)
		dst = append(dst, `","type":"function","function":{"name":`...)
		dst = append(appendQuoted(dst, c.name), `,"arguments":`...)
		dst = append(appendQuoted(dst, c.arguments), "}}"...)
	}
	return append(dst, "]}"...)
}

func (a *answer) failEvent(dst []byte, shape string) []byte {
	return append(dst, errorShapes[shape]...)
}

// appendQuoted appends s as a JSON string.
func appendQuoted(dst []byte, s string) []byte {
	return append(appendEscaped(append(dst, '"'), s), '"')
}

// appendEscaped appends s as it stands inside a JSON string.
func appendEscaped(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
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
	return dst
}
