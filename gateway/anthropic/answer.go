package anthropic

import (
	"encoding/json"
	"errors"
	"strconv"

	"sluice/gateway/wire"
)

// ErrAnswer is wrapped by errors about an engine's answer that is no chat completion, or none that can be told as a
// message. The texts quote nothing of the answer.
var ErrAnswer = errors.New("anthropic: the engine's answer cannot be read as a message")

// answerError is an ErrAnswer with its reason.
type answerError string

func (e answerError) Error() string { return ErrAnswer.Error() + ": " + string(e) }
func (e answerError) Unwrap() error { return ErrAnswer }

// Answer is what an answer's translation needs beside the answer.
type Answer struct {
	ID    string // for the message when the engine gives none; letters, digits, "_", "-" and "."
	Model string // as the client named it
	Wanted
}

// usage is what the engine counted. The zero value is nothing.
type usage struct {
	input, cached, output int
	known                 bool
}

// read takes over a usage object; anything else changes nothing.
func (u *usage) read(raw []byte) {
	for m := wire.ReadMembers(raw); m.Next(); {
		switch string(m.Name) {
		case "prompt_tokens":
			if n, ok := wire.Count(m.Value); ok {
				u.input, u.known = n, true
			}
		case "completion_tokens":
			if n, ok := wire.Count(m.Value); ok {
				u.output, u.known = n, true
			}
		case "prompt_tokens_details":
			for d := wire.ReadMembers(m.Value); d.Next(); {
				if string(d.Name) == "cached_tokens" {
					u.cached, _ = wire.Count(d.Value)
				}
			}
		}
	}
}

// append writes the counts. In the Messages API input_tokens are those that were not in the cache.
func (u *usage) append(dst []byte) []byte {
	cached := min(u.cached, u.input)
	dst = append(dst, `{"input_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.input-cached), 10)
	dst = append(dst, `,"cache_creation_input_tokens":0,"cache_read_input_tokens":`...)
	dst = strconv.AppendInt(dst, int64(cached), 10)
	dst = append(dst, `,"output_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.output), 10)
	return append(dst, '}')
}

// ending is why an answer ended.
type ending struct {
	finish  string // finish_reason
	match   []byte // the stop sequence that was met, as a JSON string; empty: none, or not known
	refused bool   // the model refused in words of its own
	tools   bool   // tools are to be called
}

// append writes the members stop_reason and stop_sequence.
func (e *ending) append(dst []byte) []byte {
	reason := "end_turn"
	switch {
	case e.refused || e.finish == "content_filter":
		reason = "refusal"
	case e.finish == "length":
		reason = "max_tokens"
	case e.tools:
		reason = "tool_use"
	case len(e.match) > 0:
		reason = "stop_sequence"
	}
	dst = append(dst, `"stop_reason":"`...)
	dst = append(dst, reason...)
	dst = append(dst, `","stop_sequence":`...)
	if reason != "stop_sequence" {
		return append(dst, "null"...)
	}
	return append(dst, e.match...)
}

// finished reads a finish_reason: empty for null.
func finished(value []byte) string {
	inside, _ := wire.Inside(value)
	switch string(inside) { // no allocation for the usual ones
	case "stop":
		return "stop"
	case "length":
		return "length"
	case "tool_calls":
		return "tool_calls"
	}
	return string(inside)
}

// matched reads the stop sequence that vLLM (stop_reason) and SGLang (matched_stop) tell; token ids are none.
func matched(value []byte) []byte {
	if inside, ok := wire.Inside(value); ok && len(inside) > 0 {
		return value
	}
	return nil
}

// Kinds of content blocks.
const (
	kindText     = "text"
	kindThinking = "thinking"
	kindTool     = "tool_use"
)

// said are the parts of a completion's message or of a chunk's delta.
type said struct{ text, thoughts, refusal, calls []byte }

// read takes the values of an object. Some engines give the reasoning twice, under its new and its old name.
func (s *said) read(raw []byte) (ok bool) {
	m := wire.ReadMembers(raw)
	for m.Next() {
		switch string(m.Name) {
		case "content":
			s.text = m.Value
		case "reasoning_content":
			s.thoughts = m.Value
		case "reasoning":
			if len(s.thoughts) <= len(`""`) || s.thoughts[0] != '"' {
				s.thoughts = m.Value
			}
		case "refusal":
			s.refusal = m.Value
		case "tool_calls":
			s.calls = m.Value
		}
	}
	return !m.Malformed()
}

// call is a tool call, or a fragment of one. index is -1 when it is not given.
type call struct {
	id, name, arguments []byte // insides of strings
	index               int
}

func readCall(raw []byte) (c call, ok bool) {
	c.index = -1
	m := wire.ReadMembers(raw)
	for m.Next() {
		switch string(m.Name) {
		case "id":
			c.id, _ = wire.Inside(m.Value)
		case "index":
			if n, ok := wire.Count(m.Value); ok {
				c.index = n
			}
		case "function":
			for f := wire.ReadMembers(m.Value); f.Next(); {
				switch string(f.Name) {
				case "name":
					c.name, _ = wire.Inside(f.Value)
				case "arguments":
					if c.arguments, ok = wire.Inside(f.Value); !ok && f.Value[0] != 'n' {
						return c, false
					}
				}
			}
		}
	}
	return c, !m.Malformed()
}

// AppendMessage appends the message that a chat completion says. The error wraps ErrAnswer.
func AppendMessage(dst, completion []byte, a Answer) ([]byte, error) {
	if !wire.Valid(completion) {
		return dst, answerError("it is not valid JSON")
	}
	var u usage
	var id, choice []byte
	m := wire.ReadMembers(completion)
	for m.Next() {
		switch string(m.Name) {
		case "id":
			id, _ = wire.Inside(m.Value)
		case "usage":
			u.read(m.Value)
		case "choices":
			if e := wire.ReadElements(m.Value); e.Next() {
				choice = e.Value
			}
		}
	}
	if m.Malformed() || choice == nil {
		return dst, answerError("it has no choice")
	}
	from := len(dst)
	dst = append(dst, `{"id":"`...)
	dst = appendID(dst, id, a.ID)
	dst = append(dst, `","type":"message","role":"assistant","model":`...)
	dst = wire.AppendQuoted(dst, a.Model)
	dst = append(dst, `,"content":[`...)
	dst, end, err := a.appendContent(dst, choice, id)
	if err != nil {
		return dst[:from], err
	}
	dst = append(dst, `],`...)
	dst = end.append(dst)
	dst = append(dst, `,"usage":`...)
	return append(u.append(dst), '}'), nil
}

// maxID bounds an engine's id that is kept in a message's.
const maxID = 128

// appendID appends a message's id: the engine's, if its form is harmless, else ours.
func appendID(dst, engine []byte, own string) []byte {
	dst = append(dst, "msg_"...)
	if len(engine) == 0 || len(engine) > maxID {
		return append(dst, own...)
	}
	for _, ch := range engine {
		switch {
		case ch-'0' <= 9, ch-'a' <= 25, ch-'A' <= 25, ch == '-', ch == '_', ch == '.':
		default:
			return append(dst, own...)
		}
	}
	return append(dst, engine...)
}

// appendContent appends the blocks of a choice.
func (a *Answer) appendContent(dst, choice, id []byte) ([]byte, ending, error) {
	var end ending
	var message []byte
	m := wire.ReadMembers(choice)
	for m.Next() {
		switch string(m.Name) {
		case "message":
			message = m.Value
		case "finish_reason":
			end.finish = finished(m.Value)
		case "stop_reason", "matched_stop":
			end.match = matched(m.Value)
		}
	}
	var s said
	if !s.read(message) {
		return dst, end, answerError("its choice has no message")
	}
	blocks := 0
	for _, piece := range []struct {
		kind  string
		value []byte
	}{{kindThinking, s.thoughts}, {kindText, s.text}, {kindText, s.refusal}} {
		inside, ok := wire.Inside(piece.value)
		switch {
		case !ok && len(piece.value) > 0 && piece.value[0] != 'n':
			return dst, end, answerError("its content is no text")
		case len(inside) == 0 || piece.kind == kindThinking && a.HideThinking:
			continue
		}
		dst = appendComma(dst, &blocks)
		dst = append(dst, openings[piece.kind]...)
		dst = append(dst, inside...)
		dst = append(dst, `"}`...)
	}
	refusal, _ := wire.Inside(s.refusal)
	end.refused = len(refusal) > 0
	e := wire.ReadElements(s.calls)
	for e.Next() {
		if e.Index == MaxCalls {
			return dst, end, answerError("it has too many tool calls")
		}
		c, ok := readCall(e.Value)
		if !ok || len(c.name) == 0 {
			return dst, end, answerError("it has a tool call without a name")
		}
		end.tools = true
		dst = appendComma(dst, &blocks)
		dst = appendToolHead(dst, &c, e.Index, id, a.ID)
		var err error
		if dst, err = appendInput(dst, c.arguments, end.finish == "length"); err != nil {
			return dst, end, err
		}
		dst = append(dst, '}')
	}
	return dst, end, nil
}

// openings begin a block up to its text.
var openings = map[string]string{
	kindText:     `{"type":"text","text":"`,
	kindThinking: `{"type":"thinking","signature":"","thinking":"`,
}

func appendComma(dst []byte, n *int) []byte {
	if *n++; *n > 1 {
		dst = append(dst, ',')
	}
	return dst
}

// appendToolHead appends a tool's block up to the value of input. A call without an id gets one that is its own.
func appendToolHead(dst []byte, c *call, index int, id []byte, own string) []byte {
	dst = append(dst, `{"type":"tool_use","id":"`...)
	if len(c.id) > 0 {
		dst = append(dst, c.id...)
	} else {
		dst = append(dst, "toolu_"...)
		dst = appendID(dst, id, own)
		dst = append(dst, '_')
		dst = strconv.AppendInt(dst, int64(index), 10)
	}
	dst = append(dst, `","name":"`...)
	dst = append(dst, c.name...)
	return append(dst, `","input":`...)
}

// appendInput appends the arguments of a call as what they are. Those that were cut by the limit of tokens are left
// out; the stop_reason tells.
func appendInput(dst, arguments []byte, cut bool) ([]byte, error) {
	var text string
	quoted := append(append([]byte{'"'}, arguments...), '"')
	if err := json.Unmarshal(quoted, &text); err != nil {
		return dst, answerError("the arguments of a tool call are no text")
	}
	m := wire.ReadMembers([]byte(text))
	for m.Next() {
	}
	switch {
	case text == "" || text == "null":
		return append(dst, "{}"...), nil
	case wire.Valid([]byte(text)) && !m.Malformed():
		return append(dst, text...), nil
	case cut:
		return append(dst, "{}"...), nil
	}
	return dst, answerError("the arguments of a tool call are no JSON object")
}
