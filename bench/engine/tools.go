package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// Limits of tools and of what is made from a schema.
const (
	maxCalls       = 16 // calls of one answer
	maxSchemaDepth = 8
	maxProperties  = 64 // of one object
)

// tool is a function that may be called.
type tool struct {
	name   string
	schema json.RawMessage // of its arguments
}

// toolUse is what a request says about its tools.
type toolUse struct {
	tools []tool
	bytes int    // of their declaration, which is part of the prompt
	force string // the name that must be called; "*" is any
	none  bool   // none may be called
	one   bool   // not more than one call
}

// calls are those that an answer to text makes: one for every "call:NAME" in it
// that names a tool, in that order; if a call is demanded and none is named,
// the first tool is called. Their arguments follow the tool's schema.
func (u *toolUse) calls(text []byte, seed uint64) []*toolCall {
	if u.none || len(u.tools) == 0 {
		return nil
	}
	limit := maxCalls
	if u.one {
		limit = 1
	}
	var out []*toolCall
	add := func(t *tool) {
		n := len(out)
		id := mix(seed + uint64(n))
		out = append(out, &toolCall{index: n, id: fmt.Sprintf("call_%016x", id), name: t.name, arguments: madeFrom(t.schema, id)})
	}
	if u.force != "" && u.force != "*" {
		if t := u.find(u.force); t != nil {
			add(t)
		}
		return out
	}
	for rest := text; len(out) < limit; {
		_, after, found := bytes.Cut(rest, []byte("call:"))
		if !found {
			break
		}
		rest = after
		name := after
		if end := bytes.IndexFunc(name, notInName); end >= 0 {
			name = name[:end]
		}
		if t := u.find(string(name)); t != nil {
			add(t)
		}
	}
	if len(out) == 0 && u.force == "*" {
		add(&u.tools[0])
	}
	return out
}

func (u *toolUse) find(name string) *tool {
	i := slices.IndexFunc(u.tools, func(t tool) bool { return t.name == name })
	if i < 0 {
		return nil
	}
	return &u.tools[i]
}

// schema is the part of JSON Schema that is followed.
type schema struct {
	Type       any                        `json:"type"` // a name, or a list of them: the first counts
	Enum       []json.RawMessage          `json:"enum"`
	Const      json.RawMessage            `json:"const"`
	Properties map[string]json.RawMessage `json:"properties"`
	Items      json.RawMessage            `json:"items"`
	AnyOf      []json.RawMessage          `json:"anyOf"`
}

// madeFrom is a JSON value that fits a schema's types, the same for the same
// seed: all properties are there, in the order of their names, strings are
// words, lists have one item.
func madeFrom(raw json.RawMessage, seed uint64) string {
	return string(appendValue(nil, raw, seed, 0))
}

func appendValue(dst []byte, raw json.RawMessage, seed uint64, depth int) []byte {
	var s schema
	if len(raw) == 0 || json.Unmarshal(raw, &s) != nil || depth > maxSchemaDepth {
		return append(dst, "{}"...)
	}
	kind, _ := s.Type.(string)
	if list, ok := s.Type.([]any); ok && len(list) > 0 {
		kind, _ = list[0].(string)
	}
	switch {
	case len(s.Const) > 0:
		return append(dst, s.Const...)
	case len(s.Enum) > 0:
		return append(dst, s.Enum[mix(seed)%uint64(len(s.Enum))]...)
	case len(s.AnyOf) > 0:
		return appendValue(dst, s.AnyOf[0], seed, depth+1)
	}
	switch kind {
	case "string":
		return append(appendWords(append(dst, '"'), seed, 0, 2), '"')
	case "integer", "number":
		return fmt.Append(dst, mix(seed)%100)
	case "boolean":
		return append(dst, "true"...)
	case "null":
		return append(dst, "null"...)
	case "array":
		dst = append(dst, '[')
		if len(s.Items) > 0 {
			dst = appendValue(dst, s.Items, seed+1, depth+1)
		}
		return append(dst, ']')
	}
	names := make([]string, 0, len(s.Properties))
	for name := range s.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	dst = append(dst, '{')
	for i, name := range names[:min(len(names), maxProperties)] {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendQuoted(dst, name), ':')
		dst = appendValue(dst, s.Properties[name], seed+uint64(i)+1, depth+1)
	}
	return append(dst, '}')
}

// chatTools reads tools and tool_choice of the chat API.
func chatTools(rawTools, rawChoice json.RawMessage, parallel *bool) (toolUse, error) {
	u := toolUse{one: parallel != nil && !*parallel}
	var list []struct {
		Function struct {
			Name       string          `json:"name"`
			Parameters json.RawMessage `json:"parameters"`
		} `json:"function"`
	}
	if len(rawTools) > 0 {
		if err := json.Unmarshal(rawTools, &list); err != nil {
			return u, badRequest("tools must be a list of functions: %v", err)
		}
		u.bytes = len(rawTools)
	}
	for i, t := range list {
		if t.Function.Name == "" {
			return u, &apiError{status: 400, kind: "BadRequestError", message: "a tool has no function.name", param: fmt.Sprintf("tools[%d].function.name", i)}
		}
		u.tools = append(u.tools, tool{name: t.Function.Name, schema: t.Function.Parameters})
	}
	return u, u.readChoice(rawChoice)
}

// readChoice reads tool_choice: a word, or an object that names a function.
func (u *toolUse) readChoice(raw json.RawMessage) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	if raw[0] == '"' {
		switch word := string(unquote(raw)); word {
		case "auto":
		case "none":
			u.none = true
		case "required":
			u.force = "*"
		default:
			return badRequest("tool_choice must be auto, none, required or a function, not %q", word)
		}
		return nil
	}
	var named struct {
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if err := json.Unmarshal(raw, &named); err != nil {
		return badRequest("tool_choice must be a word or an object: %v", err)
	}
	u.force = named.Function.Name
	if u.force == "" {
		u.force = named.Name
	}
	if u.find(u.force) == nil {
		return badRequest("tool_choice names %q, which is not among the tools", u.force)
	}
	return nil
}
