package engine

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
)

// messagesRequest is the part of an Anthropic Messages request that matters here.
type messagesRequest struct {
	Model     string          `json:"model"`
	System    json.RawMessage `json:"system"`
	Messages  []message       `json:"messages"`
	MaxTokens *int            `json:"max_tokens"`
	Stream    bool            `json:"stream"`
	Tools     json.RawMessage `json:"tools"`
	Choice    struct {
		Type    string `json:"type"` // auto, any, tool or none
		Name    string `json:"name"`
		OneOnly bool   `json:"disable_parallel_tool_use"`
	} `json:"tool_choice"`
}

// parse reads a request, and brings it into the chat API's form.
func (q *messagesRequest) parse(body []byte) (generateRequest, toolUse, error) {
	var use toolUse
	if err := json.Unmarshal(body, q); err != nil {
		return generateRequest{}, use, badRequest("the body is not a request: %v", err)
	}
	var list []struct {
		Name   string          `json:"name"`
		Schema json.RawMessage `json:"input_schema"`
	}
	if len(q.Tools) > 0 {
		if err := json.Unmarshal(q.Tools, &list); err != nil {
			return generateRequest{}, use, badParam("tools", "tools: %v", err)
		}
		use.bytes = len(q.Tools)
	}
	for _, t := range list {
		use.tools = append(use.tools, tool{name: t.Name, schema: t.Schema})
	}
	use.one = q.Choice.OneOnly
	switch q.Choice.Type {
	case "none":
		use.none = true
	case "any":
		use.force = "*"
	case "tool":
		use.force = q.Choice.Name
	}
	g := generateRequest{Model: q.Model, Messages: q.Messages, MaxTokens: q.MaxTokens, Stream: q.Stream}
	if len(q.System) > 0 && len(q.Messages) > 0 {
		g.Messages = slices.Concat([]message{{Role: "system", Content: q.System}}, q.Messages)
	}
	return g, use, nil
}

// messages serves /v1/messages. Unlike a chat, it ends where its text would
// end: max_tokens is a bound here, not a length.
func (e *engine) messages(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(w, r)
	if err != nil {
		e.writeMessagesError(w, err)
		return
	}
	var q messagesRequest
	g, use, err := q.parse(body)
	if err == nil && q.MaxTokens == nil {
		err = badParam("max_tokens", "max_tokens: field required")
	}
	if err != nil {
		e.writeMessagesError(w, err)
		return
	}
	j, err := e.plan(&g, true, &use)
	if err != nil {
		e.writeMessagesError(w, err)
		return
	}
	if natural := naturalTokens(j.seed); j.pieces == nil && natural < j.outTokens {
		j.outTokens, j.finish = natural, "stop"
	}
	e.run(w, r, &j, &messageAnswer{job: j, id: e.newID("msg_"), model: e.cfg.ServedModel}, e.writeMessagesError)
}

// countTokens serves /v1/messages/count_tokens.
func (e *engine) countTokens(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(w, r)
	if err != nil {
		e.writeMessagesError(w, err)
		return
	}
	var q messagesRequest
	g, use, err := q.parse(body)
	if err == nil {
		err = e.checkModel(q.Model)
	}
	if err != nil {
		e.writeMessagesError(w, err)
		return
	}
	in, _, err := g.input(true)
	if err != nil {
		e.writeMessagesError(w, err)
		return
	}
	writeJSON(w, 200, fields{"input_tokens": max(1, in.tokens+tokensOf(use.bytes))})
}

// messagesErrorType by status; others are api_error.
var messagesErrorType = map[int]string{
	400: "invalid_request_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}

// writeMessagesError is writeError in Anthropic's form.
func (e *engine) writeMessagesError(w http.ResponseWriter, err error) {
	a := e.asAPIError(err)
	kind := messagesErrorType[a.status]
	if kind == "" {
		kind = "api_error"
	}
	if a.retryS > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(a.retryS))
	}
	writeJSON(w, a.status, fields{"type": "error", "error": fields{"type": kind, "message": a.message}})
}

// messageAnswer renders messages.
type messageAnswer struct {
	job
	id    string
	model string

	block int // of the event before; the first is 0
	open  bool
}

func (m *messageAnswer) usage() fields {
	return fields{"input_tokens": m.promptTokens, "output_tokens": m.outTokens}
}

func (m *messageAnswer) message(content []any, stop any, use fields) fields {
	return fields{"id": m.id, "type": "message", "role": "assistant", "model": m.model, "content": content,
		"stop_reason": stop, "stop_sequence": nil, "usage": use}
}

func (m *messageAnswer) stopReason() string {
	switch m.finish {
	case "length":
		return "max_tokens"
	case "tool_calls":
		return "tool_use"
	}
	return "end_turn"
}

func (m *messageAnswer) events(dst []byte, from, to int) []byte {
	if from == 0 {
		start := m.message([]any{}, nil, fields{"input_tokens": m.promptTokens, "output_tokens": 0})
		dst = appendNamed(dst, "message_start", fields{"message": start})
	}
	for t := from; t < to; t++ {
		var p piece
		if m.pieces != nil {
			p = m.pieces[t]
		}
		if p.open && m.open {
			dst = m.closeBlock(dst)
		}
		switch {
		case p.open:
			dst = m.openBlock(dst, fields{"type": "tool_use", "id": p.call.id, "name": p.call.name, "input": fields{}})
			continue
		case p.call != nil:
			dst = m.delta(dst, fields{"type": "input_json_delta", "partial_json": p.text})
			continue
		case !m.open:
			dst = m.openBlock(dst, fields{"type": "text", "text": ""})
		}
		dst = m.delta(dst, fields{"type": "text_delta", "text": m.tokenOf(t)})
	}
	return dst
}

// tokenOf is token t with the space before it.
func (j *job) tokenOf(t int) string {
	if j.pieces != nil {
		return j.pieces[t].text
	}
	return string(appendWords(nil, j.seed, t, t+1))
}

func (m *messageAnswer) openBlock(dst []byte, block fields) []byte {
	m.open = true
	return appendNamed(dst, "content_block_start", fields{"index": m.block, "content_block": block})
}

func (m *messageAnswer) closeBlock(dst []byte) []byte {
	m.open = false
	m.block++
	return appendNamed(dst, "content_block_stop", fields{"index": m.block - 1})
}

func (m *messageAnswer) delta(dst []byte, delta fields) []byte {
	return appendNamed(dst, "content_block_delta", fields{"index": m.block, "delta": delta})
}

func (m *messageAnswer) lastEvents(dst []byte) []byte {
	dst = m.closeBlock(dst)
	dst = appendNamed(dst, "message_delta", fields{"delta": fields{"stop_reason": m.stopReason(), "stop_sequence": nil}, "usage": m.usage()})
	return appendNamed(dst, "message_stop", fields{})
}

func (m *messageAnswer) failEvent(dst []byte, _ string) []byte {
	return appendNamed(dst, "error", fields{"error": fields{"type": "api_error", "message": "engine died"}})
}

func (m *messageAnswer) whole() []byte {
	content := []any{}
	for _, c := range m.calls() {
		var input any = fields{}
		if json.Valid([]byte(c.arguments)) {
			input = json.RawMessage(c.arguments)
		}
		content = append(content, fields{"type": "tool_use", "id": c.id, "name": c.name, "input": input})
	}
	if len(content) == 0 {
		content = append(content, fields{"type": "text", "text": m.text(0)})
	}
	return encoded(m.message(content, m.stopReason(), m.usage()))
}
