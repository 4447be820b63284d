package anthropic

import (
	"strconv"
	"strings"

	"sluice/gateway/wire"
)

// block is one content block of a request, its values as they were sent.
type block struct {
	kind                              string
	text, source, title, context      []byte
	id, name, input                   []byte
	toolUseID, content, isError, flag []byte
}

// fields are what a block of each kind may hold beside type and cache_control.
var fields = map[string]string{
	"text": "text citations", "image": "source", "document": "source title context citations",
	"tool_use": "id name input caller", "tool_result": "tool_use_id content is_error", "thinking": "thinking signature",
}

// readBlock reads the block at path.
func readBlock(raw []byte, path string) (b block, err error) {
	kind := []byte(nil)
	m := wire.ReadMembers(raw)
	for m.Next() {
		if string(m.Name) == "type" {
			kind = m.Value
		}
	}
	if m.Malformed() {
		return b, refuse(path, "the block must be an object")
	}
	inside, _ := wire.Inside(kind)
	b.kind = string(inside)
	known, ok := fields[b.kind]
	if !ok {
		return b, refuse(path+".type", "the engine cannot be given blocks of this type")
	}
	for m = wire.ReadMembers(raw); m.Next(); {
		name := string(m.Name)
		if name == "type" || name == "cache_control" {
			continue
		}
		at := b.field(name)
		if at == nil || !listed(known, name) {
			return b, refuse(path+"."+name, "the engine cannot be told this; leave it out")
		}
		if m.Value[0] != 'n' {
			*at = m.Value
		}
	}
	return b, b.check(path)
}

func listed(names, name string) bool {
	for one := range strings.FieldsSeq(names) {
		if one == name {
			return true
		}
	}
	return false
}

func (b *block) field(name string) *[]byte {
	switch name {
	case "text", "thinking":
		return &b.text
	case "source":
		return &b.source
	case "title":
		return &b.title
	case "context":
		return &b.context
	case "id":
		return &b.id
	case "name":
		return &b.name
	case "input":
		return &b.input
	case "tool_use_id":
		return &b.toolUseID
	case "content":
		return &b.content
	case "is_error":
		return &b.isError
	case "citations", "signature", "caller": // what an answer carried, or a wish that check looks at
		return &b.flag
	}
	return nil
}

// check looks for what a block of its kind must have.
func (b *block) check(path string) error {
	type need struct {
		name  string
		value []byte
		first byte
	}
	var needs []need
	switch b.kind {
	case "text":
		needs = []need{{"text", b.text, '"'}}
	case "thinking":
		needs = []need{{"thinking", b.text, '"'}}
	case "image":
		needs = []need{{"source", b.source, '{'}}
	case "document":
		needs = []need{{"source", b.source, '{'}}
		if on := strings.ReplaceAll(string(b.flag), " ", ""); on != "" && on != `{"enabled":false}` {
			return refuse(path+".citations", "the engine cannot cite; leave it out")
		}
	case "tool_use":
		needs = []need{{"id", b.id, '"'}, {"name", b.name, '"'}, {"input", b.input, '{'}}
	case "tool_result":
		needs = []need{{"tool_use_id", b.toolUseID, '"'}}
	}
	for _, n := range needs {
		if len(n.value) == 0 || n.value[0] != n.first {
			return refuse(path+"."+n.name, "the field is missing or of a wrong type")
		}
	}
	return nil
}

// blocks reads a list of blocks.
func blocks(raw []byte, path string) (list []block, err error) {
	e := wire.ReadElements(raw)
	for e.Next() {
		b, err := readBlock(e.Value, path+"."+strconv.Itoa(e.Index))
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	if e.Malformed() {
		return nil, refuse(path, "the field must be a string or a list of blocks")
	}
	return list, nil
}

// joiner stands between the texts that become one.
const joiner = `\n\n`

// system writes the system's message, with its comma.
func (t *translation) system(raw []byte) error {
	if raw == nil || string(raw) == `""` {
		return nil
	}
	list := []block{{text: raw}}
	if raw[0] != '"' {
		var err error
		if list, err = blocks(raw, "system"); err != nil || len(list) == 0 {
			return err
		}
		for i, b := range list {
			if b.kind != "text" {
				return refuse("system."+strconv.Itoa(i)+".type", "the system's blocks must be text")
			}
		}
	}
	t.add(`{"role":"system","content":`)
	t.joined(list, joiner)
	t.add("},")
	return nil
}

// joined writes the texts of blocks as one string.
func (t *translation) joined(list []block, between string) {
	t.add(`"`)
	for i, b := range list {
		if i > 0 {
			t.add(between)
		}
		inside, _ := wire.Inside(b.text)
		t.raw(inside)
	}
	t.add(`"`)
}

// messages writes the conversation. continued: the last message is an assistant's, which the engine is to go on with.
func (t *translation) messages(raw []byte) (continued bool, err error) {
	e := wire.ReadElements(raw)
	for e.Next() {
		if e.Index > 0 {
			t.add(",")
		}
		if continued, err = t.message(e.Value, "messages."+strconv.Itoa(e.Index)); err != nil {
			return false, err
		}
	}
	if e.Malformed() || e.Index < 0 {
		return false, refuse("messages", "the field must be a list of one message or more")
	}
	return continued, nil
}

func (t *translation) message(raw []byte, path string) (continued bool, err error) {
	var role, content []byte
	m := wire.ReadMembers(raw)
	for m.Next() {
		switch string(m.Name) {
		case "role":
			role = m.Value
		case "content":
			content = m.Value
		default:
			return false, refuse(path+"."+string(m.Name), "the engine cannot be told this; leave it out")
		}
	}
	if m.Malformed() {
		return false, refuse(path, "the message must be an object")
	}
	assistant := string(role) == `"assistant"`
	if !assistant && string(role) != `"user"` {
		return false, refuse(path+".role", `the field must be "user" or "assistant"`)
	}
	path += ".content"
	if len(content) == 0 {
		return false, refuse(path, "the field is missing")
	}
	if content[0] == '"' {
		t.add(`{"role":`)
		t.raw(role)
		t.add(`,"content":`)
		t.raw(content)
		t.add("}")
		return assistant && len(content) > 2, nil
	}
	list, err := blocks(content, path)
	if err != nil {
		return false, err
	}
	if assistant {
		return t.assistant(list, path)
	}
	if len(list) == 0 {
		return false, refuse(path, "a user's message must say something")
	}
	return false, t.userMessage(list, path)
}

// assistant writes what a model said before.
func (t *translation) assistant(list []block, path string) (continued bool, err error) {
	var texts, thoughts, calls []block
	for i, b := range list {
		switch b.kind {
		case "text":
			texts = append(texts, b)
		case "thinking":
			thoughts = append(thoughts, b)
		case "tool_use":
			calls = append(calls, b)
		default:
			return false, refuse(path+"."+strconv.Itoa(i)+".type", "an assistant's message cannot have blocks of this type")
		}
	}
	t.add(`{"role":"assistant","content":`)
	if len(texts) == 0 && len(calls) > 0 {
		t.add("null")
	} else {
		t.joined(texts, "")
	}
	if len(thoughts) > 0 {
		t.add(`,"reasoning_content":`)
		t.joined(thoughts, joiner)
	}
	for i, call := range calls {
		t.add([]string{`,"tool_calls":[`, ","}[min(i, 1)] + `{"id":`)
		t.raw(call.id)
		t.add(`,"type":"function","function":{"name":`)
		t.raw(call.name)
		t.add(`,"arguments":`)
		t.out = wire.AppendQuoted(t.out, string(call.input))
		t.add("}}")
	}
	if len(calls) > 0 {
		t.add("]")
	}
	t.add("}")
	return len(texts) > 0 && len(calls) == 0, nil
}

// userMessage writes the results of tools, a message each, and then the user's own words.
func (t *translation) userMessage(list []block, path string) error {
	var own []part
	written := 0
	for i, b := range list {
		if b.kind != "tool_result" {
			continue
		}
		if written++; written > 1 {
			t.add(",")
		}
		images, err := t.toolResult(&b, path+"."+strconv.Itoa(i))
		if err != nil {
			return err
		}
		own = append(own, images...)
	}
	for i, b := range list {
		at := path + "." + strconv.Itoa(i)
		switch b.kind {
		case "tool_result":
			continue
		case "text", "image", "document":
			own = append(own, part{block: b, path: at})
		default:
			return refuse(at+".type", "a user's message cannot have blocks of this type")
		}
	}
	if len(own) == 0 {
		return nil
	}
	if written > 0 {
		t.add(",")
	}
	t.add(`{"role":"user","content":`)
	if err := t.parts(own); err != nil {
		return err
	}
	t.add("}")
	return nil
}

// part is a piece of a user's message. of: the tool call whose result it is from.
type part struct {
	block
	path string
	of   []byte
}

// toolResult writes one result and returns its images.
func (t *translation) toolResult(b *block, path string) (images []part, err error) {
	t.add(`{"role":"tool","tool_call_id":`)
	t.raw(b.toolUseID)
	t.add(`,"content":"`)
	switch string(b.isError) {
	case "", "false":
	case "true":
		t.add("Error: ")
	default:
		return nil, refuse(path+".is_error", "the field must be true or false")
	}
	if inside, ok := wire.Inside(b.content); ok {
		t.raw(inside)
	} else if b.content != nil {
		path += ".content"
		list, err := blocks(b.content, path)
		if err != nil {
			return nil, err
		}
		texts := 0
		for i, inner := range list {
			at := path + "." + strconv.Itoa(i)
			if inner.kind == "image" {
				images = append(images, part{inner, at, b.toolUseID})
				continue
			}
			if texts++; texts > 1 {
				t.add(joiner)
			}
			if err := t.text(&inner, at); err != nil {
				return nil, err
			}
		}
	}
	t.add(`"}`)
	return images, nil
}

// text writes the inside of a string: a text, or a document of plain text.
func (t *translation) text(b *block, path string) error {
	switch b.kind {
	case "text":
		inside, _ := wire.Inside(b.text)
		t.raw(inside)
	case "document":
		return t.document(b, path)
	default:
		return refuse(path+".type", "there cannot be blocks of this type here")
	}
	return nil
}

func (t *translation) document(b *block, path string) error {
	var s source
	if err := s.read(b.source, path+".source"); err != nil {
		return err
	}
	data, ok := wire.Inside(s.data)
	if s.kind != "text" || !ok || string(s.media) != `"text/plain"` {
		return refuse(path+".source", "the engine can be given documents of plain text only")
	}
	for _, head := range [][]byte{b.title, b.context} {
		if inside, ok := wire.Inside(head); ok {
			t.raw(inside)
			t.add(joiner)
		} else if head != nil {
			return refuse(path, "title and context must be strings")
		}
	}
	t.raw(data)
	return nil
}

// source is where an image or a document comes from.
type source struct {
	kind             string
	media, data, url []byte
}

func (s *source) read(raw []byte, path string) error {
	m := wire.ReadMembers(raw)
	for m.Next() {
		switch string(m.Name) {
		case "type":
			inside, _ := wire.Inside(m.Value)
			s.kind = string(inside)
		case "media_type":
			s.media = m.Value
		case "data":
			s.data = m.Value
		case "url":
			s.url = m.Value
		default:
			return refuse(path+"."+string(m.Name), "the engine cannot be given this")
		}
	}
	return nil
}

// parts writes the content of a user's message: one string if all of it is text.
func (t *translation) parts(list []part) error {
	plain := true
	for _, p := range list {
		plain = plain && p.kind != "image"
	}
	if plain {
		t.add(`"`)
		for i := range list {
			if i > 0 {
				t.add(joiner)
			}
			if err := t.text(&list[i].block, list[i].path); err != nil {
				return err
			}
		}
		t.add(`"`)
		return nil
	}
	for i := range list {
		t.add([]string{"[", ","}[min(i, 1)])
		p := &list[i]
		if p.kind == "image" {
			if err := t.image(p); err != nil {
				return err
			}
			continue
		}
		t.add(`{"type":"text","text":"`)
		if err := t.text(&p.block, p.path); err != nil {
			return err
		}
		t.add(`"}`)
	}
	t.add("]")
	return nil
}

func (t *translation) image(p *part) error {
	if of, ok := wire.Inside(p.of); ok {
		t.add(`{"type":"text","text":"Image from the result of `)
		t.raw(of)
		t.add(`:"},`)
	}
	var s source
	if err := s.read(p.source, p.path+".source"); err != nil {
		return err
	}
	t.add(`{"type":"image_url","image_url":{"url":`)
	media, ok := wire.Inside(s.media)
	data, filled := wire.Inside(s.data)
	_, linked := wire.Inside(s.url)
	switch {
	case s.kind == "base64" && ok && filled:
		t.add(`"data:`)
		t.raw(media)
		t.add(";base64,")
		t.raw(data)
		t.add(`"`)
	case s.kind == "url" && linked:
		t.raw(s.url)
	default:
		return refuse(p.path+".source", `the field must be of type "base64" with media_type and data, or "url" with url`)
	}
	t.add("}}")
	return nil
}
