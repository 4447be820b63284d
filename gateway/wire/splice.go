package wire

// Edits says what the engine must see other than the client wrote.
type Edits struct {
	// Model replaces the model's name when it is not empty and differs, or when the client wrote it with escapes.
	Model string
	// IncludeUsage makes stream_options.include_usage true, whatever the client said; the other options stay. Forms have none.
	IncludeUsage bool
}

// MaxParts is how many pieces AppendEdits makes of a body at most.
const MaxParts = 5

// AppendEdits appends to parts the pieces of the body to send, in order; together they are the body with the edits and
// nothing else changed. Pieces point into body and into scratch, which is returned grown. The body must be the one
// that Scan accepted. Without edits the body itself is the only part.
func (h *Head) AppendEdits(parts [][]byte, scratch, body []byte, e Edits) ([][]byte, []byte) {
	type cut struct {
		at   Span
		text Span // in scratch
	}
	var cuts [2]cut
	n := 0
	if e.Model != "" && h.ModelSpan.Len() > 0 && (h.escaped || string(h.Model) != e.Model) {
		from := len(scratch)
		if h.form {
			scratch = append(scratch, e.Model...)
		} else {
			scratch = AppendQuoted(scratch, e.Model)
		}
		cuts[n] = cut{h.ModelSpan, Span{from, len(scratch)}}
		n++
	}
	if e.IncludeUsage && !h.IncludeUsage && !h.form {
		from := len(scratch)
		var at Span
		at, scratch = h.usageEdit(scratch)
		cuts[n] = cut{at, Span{from, len(scratch)}}
		n++
	}
	if n == 2 && cuts[1].at.Start < cuts[0].at.Start {
		cuts[0], cuts[1] = cuts[1], cuts[0]
	}
	from := 0
	for _, c := range cuts[:n] {
		if c.at.Start > from {
			parts = append(parts, body[from:c.at.Start])
		}
		parts = append(parts, scratch[c.text.Start:c.text.End])
		from = c.at.End
	}
	if from < len(body) {
		parts = append(parts, body[from:])
	}
	return parts, scratch
}

// usageEdit appends the text that asks for usage and returns the span it replaces, an empty one to insert.
func (h *Head) usageEdit(scratch []byte) (Span, []byte) {
	switch {
	case h.usage.Len() > 0:
		return h.usage, append(scratch, "true"...)
	case h.options.Len() == 0:
		scratch = append(scratch, `"stream_options":{"include_usage":true}`...)
		if !h.empty {
			scratch = append(scratch, ',')
		}
		return Span{h.open, h.open}, scratch
	case h.optionsNull:
		return h.options, append(scratch, `{"include_usage":true}`...)
	default:
		scratch = append(scratch, `"include_usage":true`...)
		if !h.optionsEmpty {
			scratch = append(scratch, ',')
		}
		return Span{h.options.Start + 1, h.options.Start + 1}, scratch
	}
}
