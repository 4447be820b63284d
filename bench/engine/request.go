package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Limits of a request.
const (
	maxBodyBytes  = 16 << 20
	bodyTimeout   = 30 * time.Second // real, for the body to arrive
	maxInputs     = 2048             // inputs of one embeddings request
	maxOutputHint = 1 << 20          // any max_tokens above is cut to what fits anyway
	maxChoices    = 16               // n
	maxTop        = 20               // top_logprobs
)

// apiError is an answer of OpenAI's form.
type apiError struct {
	status  int
	kind    string
	message string
	param   string // the field at fault, if it is one
	retryS  int    // Retry-After in seconds, 0 for none
}

func (e *apiError) Error() string { return e.message }

func badRequest(format string, args ...any) *apiError {
	return &apiError{status: 400, kind: "BadRequestError", message: fmt.Sprintf(format, args...)}
}

// badParam is badRequest for one field.
func badParam(param, format string, args ...any) *apiError {
	a := badRequest(format, args...)
	a.param = param
	return a
}

// generateRequest is what a chat or completion request says that matters here.
// Other APIs are brought into this form.
type generateRequest struct {
	Model               string          `json:"model"`
	Messages            []message       `json:"messages"`
	Prompt              json.RawMessage `json:"prompt"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	N                   *int            `json:"n"`
	Logprobs            json.RawMessage `json:"logprobs"` // chat: a boolean; completions: how many alternatives
	TopLogprobs         int             `json:"top_logprobs"`
	Tools               json.RawMessage `json:"tools"`
	ToolChoice          json.RawMessage `json:"tool_choice"`
	ParallelToolCalls   *bool           `json:"parallel_tool_calls"`
	ResponseFormat      *responseFormat `json:"response_format"`
	Stream              bool            `json:"stream"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// responseFormat asks for JSON.
type responseFormat struct {
	Type       string `json:"type"` // text, json_object or json_schema
	JSONSchema struct {
		Schema json.RawMessage `json:"schema"`
	} `json:"json_schema"`
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	// The deadline must go: the server's watch for a departed client reads on.
	_ = control.SetReadDeadline(time.Time{})
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, &apiError{status: 413, kind: "BadRequestError", message: fmt.Sprintf("the body is above %d bytes", maxBodyBytes)}
	}
	if err != nil {
		return nil, badRequest("the body did not arrive: %v", err)
	}
	return body, nil
}

// checkModel answers for a name that is not served here.
func (e *engine) checkModel(name string) error {
	if name != e.cfg.ServedModel {
		return &apiError{status: 404, kind: "NotFoundError", message: fmt.Sprintf("The model `%s` does not exist.", name)}
	}
	return nil
}

// parseGenerate decodes and checks a chat or completion request.
func (e *engine) parseGenerate(body []byte, chat bool) (job, error) {
	var q generateRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return job{}, badRequest("the body is not a request: %v", err)
	}
	use, err := chatTools(q.Tools, q.ToolChoice, q.ParallelToolCalls)
	if err != nil {
		return job{}, err
	}
	return e.plan(&q, chat, &use)
}

// plan decides what a request gets.
func (e *engine) plan(q *generateRequest, chat bool, use *toolUse) (job, error) {
	if err := e.checkModel(q.Model); err != nil {
		return job{}, err
	}
	j := job{chat: chat, stream: q.Stream, includeUsage: q.StreamOptions.IncludeUsage, choices: 1}
	if q.N != nil {
		j.choices = *q.N
	}
	if j.choices < 1 || j.choices > maxChoices {
		return job{}, badParam("n", "n must be 1 to %d, not %d", maxChoices, j.choices)
	}
	if err := j.readLogprobs(q); err != nil {
		return job{}, err
	}
	in, last, err := q.input(chat)
	if err != nil {
		return job{}, err
	}
	if j.fault, err = e.faultOf(last); err != nil {
		return job{}, err
	}
	j.promptTokens = max(1, in.tokens+tokensOf(use.bytes))
	j.seed = mix(e.cfg.Seed ^ in.hash)
	natural, finish := naturalTokens(j.seed), "stop"
	if calls := use.calls(last, j.seed); chat && len(calls) > 0 {
		j.pieces, finish = callPieces(calls), "tool_calls"
	} else if chat && q.ResponseFormat != nil {
		j.pieces = q.ResponseFormat.pieces(j.seed)
	}
	if j.pieces != nil {
		natural = len(j.pieces)
	}
	return j, e.limit(&j, q, natural, finish)
}

// limit decides how much is said. Words go on to a limit that is given; what
// has an end of its own ends there.
func (e *engine) limit(j *job, q *generateRequest, natural int, finish string) error {
	param, limit := "max_completion_tokens", q.MaxCompletionTokens
	if limit == nil {
		param, limit = "max_tokens", q.MaxTokens
	}
	room := (e.cfg.MaxModelTokens - j.promptTokens) / j.choices
	switch {
	case limit != nil && *limit < 1:
		return badParam(param, "max_tokens must be at least 1, not %d", *limit)
	case room < 1 || limit != nil && min(*limit, maxOutputHint) > room:
		return badRequest("this model's maximum context length is %d tokens; the prompt has %d and the output asked for does not fit beside it",
			e.cfg.MaxModelTokens, j.promptTokens)
	case limit != nil && j.pieces == nil:
		j.outTokens, j.finish = *limit, "length"
		return nil
	case limit != nil:
		room = *limit
	}
	j.outTokens, j.finish = natural, finish
	if j.outTokens > room {
		j.outTokens, j.finish = room, "length"
	}
	return nil
}

// readLogprobs reads the two forms of the field.
func (j *job) readLogprobs(q *generateRequest) error {
	switch text := string(q.Logprobs); {
	case text == "" || text == "null" || text == "false":
	case text == "true":
		j.logprobs, j.top = true, q.TopLogprobs
	default:
		if j.chat || json.Unmarshal(q.Logprobs, &j.top) != nil {
			return badParam("logprobs", "logprobs must be a boolean in chats and a number in completions")
		}
		j.logprobs = true
	}
	if j.top < 0 || j.top > maxTop {
		return badParam("top_logprobs", "not more than %d alternatives are told", maxTop)
	}
	return nil
}

// pieces is the JSON that the format asks for, nil for plain text.
func (f *responseFormat) pieces(seed uint64) []piece {
	switch f.Type {
	case "json_object":
		return cut(nil, nil, madeFrom(json.RawMessage(`{"properties":{"answer":{"type":"string"}}}`), seed))
	case "json_schema":
		return cut(nil, nil, madeFrom(f.JSONSchema.Schema, seed))
	}
	return nil
}

// input is the size and the identity of a prompt.
type input struct {
	tokens int
	hash   uint64
}

// input also returns the text in which markers are looked for: the prompt, or
// the last message if it is the user's.
func (q *generateRequest) input(chat bool) (in input, last []byte, err error) {
	if !chat {
		ins, err := parseInputs(q.Prompt)
		if err != nil {
			return input{}, nil, badParam("prompt", "prompt %v", err)
		}
		if len(ins) != 1 {
			return input{}, nil, badParam("prompt", "prompt must be one prompt on this engine, not %d", len(ins))
		}
		return ins[0], q.Prompt, nil
	}
	if len(q.Messages) == 0 {
		return input{}, nil, badParam("messages", "messages must not be empty")
	}
	size, hash := 0, xxhash.New()
	for i, m := range q.Messages {
		n, err := contentBytes(m.Content, hash)
		if err != nil {
			return input{}, nil, badParam("messages", "messages[%d].content %v", i, err)
		}
		size += n
	}
	if m := q.Messages[len(q.Messages)-1]; m.Role == "user" {
		last = m.Content // as JSON: markers need no escapes
	}
	return input{tokens: tokensOf(size), hash: hash.Sum64()}, last, nil
}

// contentBytes counts and hashes a message's text: a string, null, or a list of
// parts of which those with text count.
func contentBytes(raw json.RawMessage, hash *xxhash.Digest) (int, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return 0, nil
	}
	if raw[0] == '"' {
		text := unquote(raw)
		_, _ = hash.Write(text)
		return len(text), nil
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return 0, errors.New("must be a string or a list of parts")
	}
	size := 0
	for _, p := range parts {
		_, _ = hash.WriteString(p.Text)
		size += len(p.Text)
	}
	return size, nil
}

// unquote returns a JSON string's text; without escapes, which is the usual
// long prompt, it does not copy. raw is known to be valid.
func unquote(raw json.RawMessage) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	var s string
	_ = json.Unmarshal(raw, &s)
	return []byte(s)
}

// parseInputs reads the four forms of a prompt or embedding input: text, list
// of texts, token ids, list of token ids.
func parseInputs(raw json.RawMessage) ([]input, error) {
	if len(raw) > 0 && raw[0] == '"' {
		return []input{textInput(unquote(raw))}, nil
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil || len(items) == 0 {
		return nil, errors.New("must be a string, a list of strings, or token ids, and not empty")
	}
	if first := items[0]; first[0] != '"' && first[0] != '[' {
		return tokenInput(raw)
	}
	if len(items) > maxInputs {
		return nil, fmt.Errorf("has %d inputs, %d are the limit", len(items), maxInputs)
	}
	out := make([]input, 0, len(items))
	for _, item := range items {
		if item[0] == '"' {
			out = append(out, textInput(unquote(item)))
			continue
		}
		in, err := tokenInput(item)
		if err != nil {
			return nil, err
		}
		out = append(out, in...)
	}
	return out, nil
}

func textInput(text []byte) input {
	return input{tokens: max(1, tokensOf(len(text))), hash: xxhash.Sum64(text)}
}

func tokenInput(raw json.RawMessage) ([]input, error) {
	var ids []int64
	if json.Unmarshal(raw, &ids) != nil || len(ids) == 0 {
		return nil, errors.New("must be a string, a list of strings, or token ids, and not empty")
	}
	return []input{{tokens: len(ids), hash: xxhash.Sum64(raw)}}, nil
}
