package anthropic

import (
	"bytes"
	"strconv"

	"sluice/gateway/wire"
)

// Limits of the fields of a request that neither API knows: how many, and the bytes of a name.
const (
	maxExtras    = 64
	maxExtraName = 56
)

// Wanted is what the translation of the answer must know of the request.
type Wanted struct {
	// HideThinking: the client asked to think without showing it.
	HideThinking bool
}

// AppendChat appends the chat completions request that means what a Messages request means. The only copy it makes of
// the body's texts and images is the one in dst. It returns a *wire.BodyError for what cannot be translated; dst is to
// be thrown away then.
func AppendChat(dst, body []byte) (chat []byte, want Wanted, err error) {
	return appendChat(dst, body, true)
}

// AppendCountChat does the same for a count_tokens request, which has no max_tokens.
func AppendCountChat(dst, body []byte) (chat []byte, err error) {
	chat, _, err = appendChat(dst, body, false)
	return chat, err
}

func appendChat(dst, body []byte, limited bool) ([]byte, Wanted, error) {
	var r request
	if !wire.Valid(body) {
		return dst, Wanted{}, refuse("", "the body is not valid JSON")
	}
	if err := r.read(body); err != nil {
		return dst, Wanted{}, err
	}
	t := translation{out: dst}
	if err := t.request(&r, limited); err != nil {
		return dst, Wanted{}, err
	}
	return t.out, t.want, nil
}

// maxParam bounds what an error repeats of the names in a body.
const maxParam = 128

func refuse(param, reason string) error {
	return &wire.BodyError{Reason: reason, Param: param[:min(len(param), maxParam)]}
}

// request holds the values of a request as they were sent; nil: absent or null.
type request struct {
	model, messages, system, tools, toolChoice []byte
	maxTokens, temperature, topP, topK, stop   []byte
	stream, metadata, thinking, output, format []byte
	templateArgs                               []byte // chat_template_kwargs, an extension
	extras                                     [][2][]byte
}

// field returns where a known field's value goes, nil for an unknown one.
func (r *request) field(name []byte) *[]byte {
	switch string(name) {
	case "model":
		return &r.model
	case "messages":
		return &r.messages
	case "system":
		return &r.system
	case "tools":
		return &r.tools
	case "tool_choice":
		return &r.toolChoice
	case "max_tokens":
		return &r.maxTokens
	case "temperature":
		return &r.temperature
	case "top_p":
		return &r.topP
	case "top_k":
		return &r.topK
	case "stop_sequences":
		return &r.stop
	case "stream":
		return &r.stream
	case "metadata":
		return &r.metadata
	case "thinking":
		return &r.thinking
	case "output_config":
		return &r.output
	case "output_format":
		return &r.format
	case "chat_template_kwargs":
		return &r.templateArgs
	}
	return nil
}

// foreign says why a field that has a meaning somewhere is refused; empty for other fields.
func foreign(name []byte) string {
	switch string(name) {
	case "mcp_servers", "container", "inference_geo":
		return "this engine has nothing like the field; leave it out"
	case "n", "logprobs", "top_logprobs", "audio", "modalities":
		return "a message cannot carry what the field asks for; use /v1/chat/completions"
	case "stop", "stream_options", "max_completion_tokens", "functions", "function_call", "parallel_tool_calls", "user",
		"response_format", "reasoning_effort", "thinking_token_budget", "prompt", "input", "continue_final_message",
		"add_generation_prompt":
		return "the field belongs to another API; write it as the Messages API does"
	}
	return ""
}

// read finds the values of a request that is valid JSON.
func (r *request) read(body []byte) error {
	m := wire.ReadMembers(body)
	for m.Next() {
		value := m.Value
		if value[0] == 'n' {
			value = nil
		}
		switch string(m.Name) {
		case "cache_control", "service_tier", "speed", "context_management":
			continue
		}
		name := string(m.Name)
		if at := r.field(m.Name); at != nil {
			if *at != nil {
				return refuse(name, "the field is given twice")
			}
			*at = value
			continue
		}
		if reason := foreign(m.Name); reason != "" {
			if value == nil || string(value) == "[]" {
				continue
			}
			return refuse(name, reason)
		}
		if len(r.extras) == maxExtras || len(name) > maxExtraName {
			return refuse(name, "too many unknown fields, or one with too long a name")
		}
		for _, other := range r.extras {
			if string(other[0]) == name {
				return refuse(name, "the field is given twice")
			}
		}
		r.extras = append(r.extras, [2][]byte{[]byte(name), m.Value})
	}
	if m.Malformed() {
		return refuse("", "the body must be a JSON object, nested less deeply than "+strconv.Itoa(wire.MaxDepth))
	}
	return nil
}

// translation writes a chat completions request.
type translation struct {
	out  []byte
	want Wanted
}

func (t *translation) add(s string)     { t.out = append(t.out, s...) }
func (t *translation) raw(value []byte) { t.out = append(t.out, value...) }

func (t *translation) request(r *request, limited bool) error {
	if inside, ok := wire.Inside(r.model); !ok || len(inside) == 0 {
		return refuse("model", "say which model")
	}
	t.add(`{"model":`)
	t.raw(r.model)
	t.add(`,"messages":[`)
	if err := t.system(r.system); err != nil {
		return err
	}
	continued, err := t.messages(r.messages)
	if err != nil {
		return err
	}
	t.add("]")
	if continued {
		t.add(`,"add_generation_prompt":false,"continue_final_message":true`)
	}
	if limited {
		if n, ok := wire.Count(r.maxTokens); !ok || n < 1 || bytes.IndexByte(r.maxTokens, '.') >= 0 {
			return refuse("max_tokens", "the field must be a whole number of 1 or more")
		}
	}
	for _, step := range []func(*request) error{t.sampling, t.stopAndStream, t.toolsAndChoice, t.user, t.reasoning, t.format} {
		if err := step(r); err != nil {
			return err
		}
	}
	for _, extra := range r.extras {
		t.add(",")
		t.out = wire.AppendQuoted(t.out, string(extra[0]))
		t.add(":")
		t.raw(extra[1])
	}
	t.add("}")
	return nil
}

func (t *translation) sampling(r *request) error {
	for _, f := range []struct {
		name  string
		value []byte
	}{{"max_tokens", r.maxTokens}, {"temperature", r.temperature}, {"top_p", r.topP}, {"top_k", r.topK}} {
		if f.value == nil {
			continue
		}
		if f.value[0] != '-' && f.value[0]-'0' > 9 {
			return refuse(f.name, "the field must be a number")
		}
		t.add(`,"` + f.name + `":`)
		t.raw(f.value)
	}
	return nil
}

func (t *translation) stopAndStream(r *request) error {
	if r.stop != nil {
		e := wire.ReadElements(r.stop)
		for e.Next() {
			if _, ok := wire.Inside(e.Value); !ok {
				return refuse("stop_sequences", "the field must be a list of strings")
			}
		}
		if e.Malformed() {
			return refuse("stop_sequences", "the field must be a list of strings")
		}
		if e.Index >= 0 {
			t.add(`,"stop":`)
			t.raw(r.stop)
		}
	}
	switch string(r.stream) {
	case "true":
		t.add(`,"stream":true,"stream_options":{"include_usage":true}`)
	case "false", "":
	default:
		return refuse("stream", "the field must be true or false")
	}
	return nil
}

func (t *translation) user(r *request) error {
	if r.metadata == nil {
		return nil
	}
	var user []byte
	m := wire.ReadMembers(r.metadata)
	for m.Next() {
		if string(m.Name) != "user_id" {
			return refuse("metadata."+string(m.Name), "the engine cannot be told this; leave it out")
		}
		user = m.Value
	}
	if m.Malformed() {
		return refuse("metadata", "the field must be an object")
	}
	if user == nil || user[0] == 'n' {
		return nil
	}
	if _, ok := wire.Inside(user); !ok {
		return refuse("metadata.user_id", "the field must be a string")
	}
	t.add(`,"user":`)
	t.raw(user)
	return nil
}

// reasoning asks for thinking, or for none, as the templates of engines know it. Without the field the engine decides.
func (t *translation) reasoning(r *request) error {
	if r.templateArgs != nil {
		if r.thinking != nil {
			return refuse("chat_template_kwargs", "the field cannot be given beside thinking")
		}
		t.add(`,"chat_template_kwargs":`)
		t.raw(r.templateArgs)
	}
	if r.thinking == nil {
		return nil
	}
	var kind, budget, display []byte
	m := wire.ReadMembers(r.thinking)
	for m.Next() {
		switch string(m.Name) {
		case "type":
			kind = m.Value
		case "budget_tokens":
			budget = m.Value
		case "display":
			display = m.Value
		default:
			return refuse("thinking."+string(m.Name), "the engine cannot be told this; leave it out")
		}
	}
	switch string(display) {
	case "", "null", `"summarized"`:
	case `"omitted"`:
		t.want.HideThinking = true
	default:
		return refuse("thinking.display", `the field must be "summarized" or "omitted"`)
	}
	switch string(kind) {
	case `"disabled"`:
		t.add(`,"chat_template_kwargs":{"enable_thinking":false}`)
		return nil
	case `"enabled"`, `"adaptive"`:
		t.add(`,"chat_template_kwargs":{"enable_thinking":true}`)
	default:
		return refuse("thinking.type", `the field must be "enabled", "adaptive" or "disabled"`)
	}
	if budget != nil {
		if n, ok := wire.Count(budget); !ok || n < 1 {
			return refuse("thinking.budget_tokens", "the field must be a whole number of 1 or more")
		}
		t.add(`,"thinking_token_budget":`)
		t.raw(budget)
	}
	return nil
}

// format maps the effort and the form of the answer.
func (t *translation) format(r *request) error {
	form, name := r.format, "output_format"
	if r.output != nil {
		m := wire.ReadMembers(r.output)
		for m.Next() {
			switch {
			case m.Value[0] == 'n':
			case string(m.Name) == "effort":
				if err := t.effort(m.Value); err != nil {
					return err
				}
			case string(m.Name) == "format" && form == nil:
				form, name = m.Value, "output_config.format"
			default:
				return refuse("output_config."+string(m.Name), "the engine cannot be told this; leave it out")
			}
		}
		if m.Malformed() {
			return refuse("output_config", "the field must be an object")
		}
	}
	if form == nil {
		return nil
	}
	var kind, schema []byte
	m := wire.ReadMembers(form)
	for m.Next() {
		switch string(m.Name) {
		case "type":
			kind = m.Value
		case "schema":
			schema = m.Value
		default:
			return refuse(name+"."+string(m.Name), "the engine cannot be told this; leave it out")
		}
	}
	if string(kind) != `"json_schema"` || len(schema) == 0 || schema[0] != '{' {
		return refuse(name, `the field must be of type "json_schema" and hold a schema`)
	}
	t.add(`,"response_format":{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":`)
	t.raw(schema)
	t.add("}}")
	return nil
}

// effort passes on the three degrees that chat completions has; what is above them means the highest.
func (t *translation) effort(value []byte) error {
	switch string(value) {
	case `"low"`, `"medium"`, `"high"`:
		t.add(`,"reasoning_effort":`)
		t.raw(value)
	case `"xhigh"`, `"max"`:
		t.add(`,"reasoning_effort":"high"`)
	default:
		return refuse("output_config.effort", `the field must be "low", "medium", "high", "xhigh" or "max"`)
	}
	return nil
}
