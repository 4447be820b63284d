package wire

import (
	"fmt"
	"strconv"
)

// MaxModelBytes bounds a model's name, decoded.
const MaxModelBytes = 256

// Span is a range of a body: [Start, End). The zero value means absent.
type Span struct{ Start, End int }

// Len returns the bytes in the span.
func (s Span) Len() int { return s.End - s.Start }

// Head is what the gateway must know of a request body. The zero value is ready; one Head may scan many bodies, one
// after the other.
type Head struct {
	// Model is the decoded name. It points into the body, or into the Head when the name was written with escapes, and
	// lives until the body changes or the next Scan.
	Model []byte
	// ModelSpan covers the value as sent, quotes included.
	ModelSpan Span
	// Stream is the value of stream; false when absent or null.
	Stream bool
	// MaxTokens is max_output_tokens or max_completion_tokens, else max_tokens; 0 when none is there.
	MaxTokens int
	// N is how many choices are asked for; 1 when absent.
	N int
	// IncludeUsage is stream_options.include_usage.
	IncludeUsage bool
	// Prompt covers the value of messages, prompt, input, documents or text_2, the longest, for estimates and prefix hashes.
	Prompt Span
	// Encoding is encoding_format, the form in which vectors are wanted.
	Encoding Encoding
	// Previous is previous_response_id as written, inside the body; empty when absent, null or too long for an id.
	Previous []byte

	open         int  // just behind the outermost brace
	options      Span // the value of stream_options; absent: empty
	optionsEmpty bool
	optionsNull  bool
	empty        bool // the body is {}
	usage        Span // the value of stream_options.include_usage
	escaped      bool // the model was written with escapes
	form         bool // the body is multipart/form-data
	seen         field
	scratch      [MaxModelBytes + 8]byte
}

// field is a set of top-level members that may appear once only, since gateway and engine must read the same one.
type field uint16

const (
	fieldModel field = 1 << iota
	fieldStream
	fieldMaxTokens
	fieldMaxCompletionTokens
	fieldN
	fieldStreamOptions
	fieldPrompt
	fieldMaxOutputTokens
	fieldEncodingFormat
	fieldPrevious
	fieldOther field = 0
)

// fieldOf knows a member by its decoded name. Case matters: "Model" is a field that we do not know.
func fieldOf(name []byte) field {
	switch string(name) {
	case "model":
		return fieldModel
	case "stream":
		return fieldStream
	case "max_tokens":
		return fieldMaxTokens
	case "max_completion_tokens":
		return fieldMaxCompletionTokens
	case "n":
		return fieldN
	case "stream_options":
		return fieldStreamOptions
	case "max_output_tokens":
		return fieldMaxOutputTokens
	case "encoding_format":
		return fieldEncodingFormat
	case "previous_response_id":
		return fieldPrevious
	case "messages", "prompt", "input", "documents", "text_2":
		return fieldPrompt
	}
	return fieldOther
}

// maxNameBytes is longer than any name that fieldOf knows, even when each byte is decoded through the 4 bytes of room
// that plain asks for.
const maxNameBytes = 64

// BodyError says why a body was refused. Its text is fit for the client: it quotes nothing of the body.
type BodyError struct {
	Reason string
	Param  string // the member concerned, if any
	Offset int    // bytes from the start of the body
}

func (e *BodyError) Error() string {
	if e.Param != "" {
		return fmt.Sprintf("%s (field %q)", e.Reason, e.Param)
	}
	return fmt.Sprintf("%s (at byte %d)", e.Reason, e.Offset)
}

// Scan reads the body in one pass. It refuses, with a *BodyError, what is no JSON object, nests deeper than MaxDepth,
// names a known field twice in whatever spelling, or gives one a wrong type. Unknown fields pass. A body without a
// model is not refused here: Model is empty then.
func (h *Head) Scan(body []byte) error {
	h.reset()
	c := cursor{b: body}
	if c.peek() != '{' {
		if c.i >= len(body) {
			return &BodyError{Reason: "the body is empty; send a JSON object", Offset: c.i}
		}
		return &BodyError{Reason: "the body must be a JSON object", Offset: c.i}
	}
	c.i++
	h.open = c.i
	for first := true; ; first = false {
		name, more, f := c.member(first)
		if f != flawNone {
			return &BodyError{Reason: f.text(), Offset: c.i}
		}
		if !more {
			h.empty = first
			break
		}
		if err := h.member(&c, name); err != nil {
			return err
		}
	}
	if c.peek() != 0 || c.i < len(body) {
		return &BodyError{Reason: "something follows the JSON object", Offset: c.i}
	}
	return nil
}

func (h *Head) reset() {
	h.Model, h.ModelSpan, h.Stream, h.MaxTokens, h.N = nil, Span{}, false, 0, 1
	h.IncludeUsage, h.Prompt, h.open, h.options = false, Span{}, 0, Span{}
	h.Encoding, h.Previous = EncodingNone, nil
	h.optionsEmpty, h.optionsNull, h.empty, h.usage, h.escaped, h.form, h.seen = false, false, false, Span{}, false, false, 0
}

func (h *Head) member(c *cursor, name []byte) error {
	var room [maxNameBytes]byte
	decoded := plain(room[:0], name)
	id := fieldOf(decoded)
	if id != fieldOther && id != fieldPrompt {
		if h.seen&id != 0 {
			return &BodyError{Reason: "the field is given twice", Param: string(decoded), Offset: c.i}
		}
		h.seen |= id
	}
	from := c.i
	var f flaw
	if id == fieldStreamOptions && c.peek() == '{' {
		if err := h.streamOptions(c); err != nil {
			return err
		}
	} else if f = c.value(); f != flawNone {
		return &BodyError{Reason: f.text(), Offset: c.i}
	}
	raw := c.b[from:c.i]
	span := Span{from, c.i}
	switch id {
	case fieldModel:
		return h.model(raw, span)
	case fieldStream:
		return boolean(&h.Stream, raw, "stream", from)
	case fieldMaxTokens:
		if h.seen&(fieldMaxCompletionTokens|fieldMaxOutputTokens) == 0 {
			return number(&h.MaxTokens, raw, "max_tokens", from)
		}
		var ignored int
		return number(&ignored, raw, "max_tokens", from)
	case fieldMaxCompletionTokens:
		return number(&h.MaxTokens, raw, "max_completion_tokens", from)
	case fieldMaxOutputTokens:
		return number(&h.MaxTokens, raw, "max_output_tokens", from)
	case fieldEncodingFormat:
		h.Encoding = encodingOf(raw)
	case fieldPrevious:
		if raw[0] == '"' && len(raw)-2 <= MaxResponseIDBytes {
			h.Previous = raw[1 : len(raw)-1]
		}
	case fieldN:
		if err := number(&h.N, raw, "n", from); err != nil {
			return err
		}
		h.N = max(h.N, 1)
	case fieldStreamOptions:
		if raw[0] != '{' && raw[0] != 'n' {
			return &BodyError{Reason: "the field must be an object", Param: "stream_options", Offset: from}
		}
		h.options, h.optionsNull = span, raw[0] == 'n'
	case fieldPrompt:
		if h.Prompt.Len() < span.Len() {
			h.Prompt = span
		}
	}
	return nil
}

// Encoding is a form of vectors.
type Encoding uint8

const (
	EncodingNone   Encoding = iota // not said, or null
	EncodingFloat                  // lists of numbers
	EncodingBase64                 // little-endian float32
	EncodingOther                  // anything else
)

func encodingOf(raw []byte) Encoding {
	switch string(raw) {
	case "null":
		return EncodingNone
	case `"float"`:
		return EncodingFloat
	case `"base64"`:
		return EncodingBase64
	}
	return EncodingOther
}

func (h *Head) model(raw []byte, span Span) error {
	if raw[0] != '"' {
		return &BodyError{Reason: "the field must be a string", Param: "model", Offset: span.Start}
	}
	inside := raw[1 : len(raw)-1]
	name := plain(h.scratch[:0], inside)
	if name == nil || len(name) > MaxModelBytes {
		return &BodyError{Reason: "the name is too long or malformed", Param: "model", Offset: span.Start}
	}
	h.Model, h.ModelSpan = name, span
	h.escaped = len(name) != len(inside)
	return nil
}

// streamOptions reads the object at the cursor.
func (h *Head) streamOptions(c *cursor) error {
	c.i++
	for first := true; ; first = false {
		name, more, f := c.member(first)
		if f != flawNone {
			return &BodyError{Reason: f.text(), Offset: c.i}
		}
		if !more {
			h.optionsEmpty = first
			return nil
		}
		from := c.i
		if f := c.value(); f != flawNone {
			return &BodyError{Reason: f.text(), Offset: c.i}
		}
		var room [maxNameBytes]byte
		if string(plain(room[:0], name)) != "include_usage" {
			continue
		}
		if h.usage.Len() > 0 {
			return &BodyError{Reason: "the field is given twice", Param: "stream_options.include_usage", Offset: from}
		}
		if err := boolean(&h.IncludeUsage, c.b[from:c.i], "stream_options.include_usage", from); err != nil {
			return err
		}
		h.usage = Span{from, c.i}
	}
}

func boolean(dst *bool, raw []byte, param string, offset int) error {
	switch raw[0] {
	case 't':
		*dst = true
	case 'f', 'n':
		*dst = false
	default:
		return &BodyError{Reason: "the field must be true or false", Param: param, Offset: offset}
	}
	return nil
}

// number accepts every JSON number. One below 0, which some engines take for "no limit", reads as 0; the engine sees
// what was sent.
func number(dst *int, raw []byte, param string, offset int) error {
	if raw[0] == 'n' {
		return nil
	}
	if n := wholeNumber(raw); n >= 0 {
		*dst = n
		return nil
	}
	if raw[0] != '-' && raw[0]-'0' > 9 {
		return &BodyError{Reason: "the field must be a number", Param: param, Offset: offset}
	}
	x, err := strconv.ParseFloat(string(raw), 64)
	if err != nil && x <= 0 {
		return &BodyError{Reason: "the field must be a number", Param: param, Offset: offset}
	}
	*dst = int(min(max(x, 0), maxCount))
	return nil
}
