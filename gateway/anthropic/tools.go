package anthropic

import (
	"strconv"

	"sluice/gateway/wire"
)

// toolsAndChoice writes the tools that the model may call, and whether it must.
func (t *translation) toolsAndChoice(r *request) error {
	given := false
	if r.tools != nil {
		e := wire.ReadElements(r.tools)
		for e.Next() {
			t.add([]string{`,"tools":[`, ","}[min(e.Index, 1)])
			if err := t.tool(e.Value, "tools."+strconv.Itoa(e.Index)); err != nil {
				return err
			}
		}
		if e.Malformed() {
			return refuse("tools", "the field must be a list of tools")
		}
		if given = e.Index >= 0; given {
			t.add("]")
		}
	}
	if r.toolChoice == nil {
		return nil
	}
	return t.choice(r.toolChoice, given)
}

func (t *translation) tool(raw []byte, path string) error {
	var name, description, schema, strict []byte
	m := wire.ReadMembers(raw)
	for m.Next() {
		switch string(m.Name) {
		case "type":
			if m.Value[0] != 'n' && string(m.Value) != `"custom"` {
				return refuse(path+".type", "the engine has no tools of its own; describe yours with a name and an input_schema")
			}
		case "name":
			name = m.Value
		case "description":
			description = m.Value
		case "input_schema":
			schema = m.Value
		case "strict":
			strict = m.Value
		case "cache_control", "eager_input_streaming":
		default:
			return refuse(path+"."+string(m.Name), "the engine cannot be told this; leave it out")
		}
	}
	if _, ok := wire.Inside(name); !ok {
		return refuse(path+".name", "the field is missing or no string")
	}
	if len(schema) == 0 || schema[0] != '{' {
		return refuse(path+".input_schema", "the field is missing or no object")
	}
	t.add(`{"type":"function","function":{"name":`)
	t.raw(name)
	if len(description) > 0 && description[0] != 'n' {
		t.add(`,"description":`)
		t.raw(description)
	}
	t.add(`,"parameters":`)
	t.raw(schema)
	if len(strict) > 0 && strict[0] != 'n' {
		t.add(`,"strict":`)
		t.raw(strict)
	}
	t.add("}}")
	return nil
}

func (t *translation) choice(raw []byte, given bool) error {
	var kind, name []byte
	alone := false
	m := wire.ReadMembers(raw)
	for m.Next() {
		switch string(m.Name) {
		case "type":
			kind = m.Value
		case "name":
			name = m.Value
		case "disable_parallel_tool_use":
			if alone = m.Value[0] == 't'; !alone && m.Value[0] != 'f' && m.Value[0] != 'n' {
				return refuse("tool_choice.disable_parallel_tool_use", "the field must be true or false")
			}
		default:
			return refuse("tool_choice."+string(m.Name), "the engine cannot be told this; leave it out")
		}
	}
	forced := false
	switch string(kind) {
	case `"auto"`, `"none"`:
	case `"any"`, `"tool"`:
		forced = true
	default:
		return refuse("tool_choice.type", `the field must be "auto", "any", "tool" or "none"`)
	}
	switch {
	case !given && forced:
		return refuse("tools", "tool_choice wants a tool to be used, and there are none")
	case !given:
		return nil
	case string(kind) == `"tool"`:
		if _, ok := wire.Inside(name); !ok {
			return refuse("tool_choice.name", "the field is missing or no string")
		}
		t.add(`,"tool_choice":{"type":"function","function":{"name":`)
		t.raw(name)
		t.add("}}")
	case forced:
		t.add(`,"tool_choice":"required"`)
	default:
		t.add(`,"tool_choice":`)
		t.raw(kind)
	}
	if alone {
		t.add(`,"parallel_tool_calls":false`)
	}
	return nil
}
