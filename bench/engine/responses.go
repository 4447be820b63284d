package engine

import (
	"encoding/json"
	"net/http"
	"time"
)

// responsesRequest is the part of a Responses request that matters here.
// previous_response_id and the like are ignored.
type responsesRequest struct {
	Model        string          `json:"model"`
	Instructions string          `json:"instructions"`
	Input        json.RawMessage `json:"input"`
	MaxTokens    *int            `json:"max_output_tokens"`
	Tools        json.RawMessage `json:"tools"`
	ToolChoice   json.RawMessage `json:"tool_choice"`
	Parallel     *bool           `json:"parallel_tool_calls"`
	Text         struct {
		Format struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"text"`
	Stream     bool  `json:"stream"`
	Background bool  `json:"background"`
	Store      *bool `json:"store"`
}

// chat brings the request into the chat API's form.
func (q *responsesRequest) chat() (generateRequest, toolUse, error) {
	g := generateRequest{Model: q.Model, MaxCompletionTokens: q.MaxTokens, Stream: q.Stream}
	use := toolUse{one: q.Parallel != nil && !*q.Parallel}
	if q.Instructions != "" {
		g.Messages = append(g.Messages, message{Role: "system", Content: encoded(q.Instructions)})
	}
	if len(q.Input) > 0 && q.Input[0] == '"' {
		g.Messages = append(g.Messages, message{Role: "user", Content: q.Input})
	} else {
		var items []struct {
			message
			Output json.RawMessage `json:"output"` // of a function call
		}
		if err := json.Unmarshal(q.Input, &items); err != nil {
			return g, use, badParam("input", "input must be a text or a list of items")
		}
		for _, it := range items {
			if len(it.Output) > 0 {
				it.message = message{Role: "tool", Content: it.Output}
			}
			g.Messages = append(g.Messages, it.message)
		}
	}
	var list []struct {
		Type       string          `json:"type"`
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
	}
	if len(q.Tools) > 0 {
		if err := json.Unmarshal(q.Tools, &list); err != nil {
			return g, use, badParam("tools", "tools: %v", err)
		}
		use.bytes = len(q.Tools)
	}
	for _, t := range list {
		if t.Type == "function" {
			use.tools = append(use.tools, tool{name: t.Name, schema: t.Parameters})
		}
	}
	if f := q.Text.Format; f.Type != "" {
		g.ResponseFormat = &responseFormat{Type: f.Type}
		g.ResponseFormat.JSONSchema.Schema = f.Schema
	}
	return g, use, use.readChoice(q.ToolChoice)
}

// responses serves /v1/responses.
func (e *engine) responses(w http.ResponseWriter, r *http.Request) {
	var q responsesRequest
	if !e.decode(w, r, &q, &q.Model) {
		return
	}
	g, use, err := q.chat()
	if err != nil {
		e.writeError(w, err)
		return
	}
	j, err := e.plan(&g, true, &use)
	if err != nil {
		e.writeError(w, err)
		return
	}
	a := &responseAnswer{job: j, id: e.newID("resp_"), model: e.cfg.ServedModel, createdS: time.Now().Unix(), background: q.Background}
	if q.Store == nil || *q.Store {
		a.keep = e.stored.put
	}
	if q.Background && !q.Stream {
		e.runBehind(w, &j, a)
		return
	}
	e.run(w, r, &j, a, e.writeError)
}

// runBehind answers at once and lets the job run; it is asked for by its id.
func (e *engine) runBehind(w http.ResponseWriter, j *job, a *responseAnswer) {
	s := newSequence(j.promptTokens, j.outTokens, j.outTokens+1)
	s.cut = j.finish == "length"
	if err := e.batch.submit(s); err != nil {
		e.writeError(w, err)
		return
	}
	a.sequence = s
	now := a.object("in_progress")
	e.stored.put(a)
	writeJSON(w, 200, now)
}

// responseAnswer renders responses.
type responseAnswer struct {
	job
	id         string
	model      string
	createdS   int64
	background bool
	keep       func(*responseAnswer) // stores it at its end; nil: not wanted
	sequence   *sequence             // of one in the background

	told int // so far: sequence_number of the next
	item int // output_index of the item under way
	open bool
}

// status of one in the background.
func (a *responseAnswer) status() string {
	if a.sequence == nil {
		return a.ending()
	}
	select {
	case <-a.sequence.finished:
		if a.sequence.stopped.Load() {
			return "failed"
		}
		return a.ending()
	default:
		return "in_progress"
	}
}

// ending is the status of a response that was said whole.
func (a *responseAnswer) ending() string {
	if a.finish == "length" && a.pieces != nil {
		return "incomplete"
	}
	return "completed"
}

// object is the response; its output is there once it has ended.
func (a *responseAnswer) object(status string) fields {
	o := fields{"id": a.id, "object": "response", "created_at": a.createdS, "model": a.model, "status": status,
		"background": a.background, "error": nil, "incomplete_details": nil, "instructions": nil, "metadata": fields{},
		"output": []any{}, "parallel_tool_calls": true, "temperature": nil, "top_p": nil, "tool_choice": "auto", "tools": []any{}, "usage": nil}
	switch status {
	case "incomplete":
		o["incomplete_details"] = fields{"reason": "max_output_tokens"}
		fallthrough
	case "completed":
		o["output"] = a.output()
		o["usage"] = fields{"input_tokens": a.promptTokens, "input_tokens_details": fields{"cached_tokens": 0},
			"output_tokens": a.outTokens, "output_tokens_details": fields{"reasoning_tokens": 0}, "total_tokens": a.promptTokens + a.outTokens}
	}
	return o
}

func (a *responseAnswer) output() []any {
	out := []any{}
	for _, c := range a.calls() {
		out = append(out, a.callItem(c, c.arguments, "completed"))
	}
	if len(out) == 0 {
		out = append(out, a.messageItem([]any{textPart(a.text(0))}, "completed"))
	}
	return out
}

func textPart(text string) fields {
	return fields{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}

func (a *responseAnswer) messageItem(content []any, status string) fields {
	return fields{"id": "msg" + a.id[4:], "type": "message", "role": "assistant", "status": status, "content": content}
}

func (a *responseAnswer) callItem(c *toolCall, arguments, status string) fields {
	return fields{"id": "fc" + c.id[4:], "type": "function_call", "call_id": c.id, "name": c.name, "arguments": arguments, "status": status}
}

func (a *responseAnswer) event(dst []byte, kind string, f fields) []byte {
	f["sequence_number"] = a.told
	a.told++
	return appendNamed(dst, kind, f)
}

func (a *responseAnswer) events(dst []byte, from, to int) []byte {
	if from == 0 {
		dst = a.event(dst, "response.created", fields{"response": a.object("in_progress")})
		dst = a.event(dst, "response.in_progress", fields{"response": a.object("in_progress")})
	}
	for t := from; t < to; t++ {
		var p piece
		if a.pieces != nil {
			p = a.pieces[t]
		}
		switch {
		case p.open:
			dst = a.closeItem(dst)
			a.open = true
			dst = a.event(dst, "response.output_item.added", fields{"output_index": a.item, "item": a.callItem(p.call, "", "in_progress")})
			continue
		case p.call != nil:
			dst = a.event(dst, "response.function_call_arguments.delta", fields{"item_id": "fc" + p.call.id[4:], "output_index": a.item, "delta": p.text})
			continue
		case !a.open:
			a.open = true
			dst = a.event(dst, "response.output_item.added", fields{"output_index": a.item, "item": a.messageItem([]any{}, "in_progress")})
			dst = a.event(dst, "response.content_part.added", a.part(fields{"part": textPart("")}))
		}
		dst = a.event(dst, "response.output_text.delta", a.part(fields{"delta": a.tokenOf(t), "logprobs": []any{}}))
	}
	return dst
}

// part adds the place of the text to an event.
func (a *responseAnswer) part(f fields) fields {
	f["item_id"], f["output_index"], f["content_index"] = "msg"+a.id[4:], a.item, 0
	return f
}

// closeItem ends the item under way, if there is one.
func (a *responseAnswer) closeItem(dst []byte) []byte {
	if !a.open {
		return dst
	}
	a.open = false
	if calls := a.calls(); a.item < len(calls) {
		c := calls[a.item]
		dst = a.event(dst, "response.function_call_arguments.done", fields{"item_id": "fc" + c.id[4:], "output_index": a.item, "name": c.name, "arguments": c.arguments})
		dst = a.event(dst, "response.output_item.done", fields{"output_index": a.item, "item": a.callItem(c, c.arguments, "completed")})
	} else {
		text := a.text(0)
		dst = a.event(dst, "response.output_text.done", a.part(fields{"text": text, "logprobs": []any{}}))
		dst = a.event(dst, "response.content_part.done", a.part(fields{"part": textPart(text)}))
		dst = a.event(dst, "response.output_item.done", fields{"output_index": a.item, "item": a.messageItem([]any{textPart(text)}, "completed")})
	}
	a.item++
	return dst
}

func (a *responseAnswer) lastEvents(dst []byte) []byte {
	dst = a.closeItem(dst)
	status := a.ending()
	dst = a.event(dst, "response."+status, fields{"response": a.object(status)})
	if a.keep != nil {
		a.keep(a)
	}
	return dst
}

func (a *responseAnswer) failEvent(dst []byte, _ string) []byte {
	return a.event(dst, "error", fields{"code": "server_error", "message": "engine died", "param": nil})
}

func (a *responseAnswer) whole() []byte {
	if a.keep != nil {
		a.keep(a)
	}
	return encoded(a.object(a.ending()))
}
