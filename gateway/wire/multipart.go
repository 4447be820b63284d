package wire

import "bytes"

// Limits of a multipart body.
const (
	// MaxFormParts bounds its parts. The longest form of the audio API has ten fields.
	MaxFormParts = 64
	// MaxPartHeadBytes bounds the header lines of one part.
	MaxPartHeadBytes = 8 << 10
	// maxBoundaryBytes is RFC 2046's, section 5.1.1.
	maxBoundaryBytes = 70
)

// ScanForm reads a multipart/form-data body (RFC 7578) in one pass, wherever the part called model stands. contentType
// is the request's. Known fields are model, stream and prompt; all others, and every byte of a file, pass unread.
//
// It refuses, with a *BodyError, what two parsers may read differently: a boundary line that goes on or does not begin
// behind CRLF, names with escapes or given twice, folded headers, known fields that are files or carry a transfer
// encoding. A body without a model is not refused here. AppendEdits replaces the model's value as it stands, without
// quotes; it never asks for usage in a form.
func (h *Head) ScanForm(contentType, body []byte) error {
	h.reset()
	h.form = true
	f := form{body: body}
	boundary, ok := formBoundary(append(h.scratch[:0], "--"...), contentType)
	if !ok {
		return &BodyError{Reason: "the Content-Type must be multipart/form-data with one boundary of 1 to 70 characters"}
	}
	f.boundary = boundary
	if err := f.open(); err != nil {
		return err
	}
	for range MaxFormParts {
		p, last, err := f.part()
		if err != nil {
			return err
		}
		if err := h.formField(&p, body); err != nil || last {
			return err
		}
	}
	return &BodyError{Reason: "the form has too many parts", Offset: f.at}
}

// formField takes a part that ScanForm knows.
func (h *Head) formField(p *part, body []byte) error {
	value := body[p.value.Start:p.value.End]
	id := fieldOf(p.name)
	switch id {
	case fieldModel, fieldStream, fieldPrompt:
	default:
		return nil
	}
	if h.seen&id != 0 && id != fieldPrompt {
		return &BodyError{Reason: "the field is given twice", Param: string(p.name), Offset: p.value.Start}
	}
	if p.file || p.encoded {
		return &BodyError{Reason: "the field must be plain text, not a file or encoded", Param: string(p.name), Offset: p.value.Start}
	}
	h.seen |= id
	switch id {
	case fieldModel:
		if len(value) > MaxModelBytes || bytes.ContainsFunc(value, isControl) {
			return &BodyError{Reason: "the name is too long or malformed", Param: "model", Offset: p.value.Start}
		}
		h.Model, h.ModelSpan = value, p.value
	case fieldStream:
		h.Stream = formTrue(value)
	case fieldPrompt:
		h.Prompt = p.value
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// formTrue reads a boolean of a form as Python's servers do.
func formTrue(value []byte) bool {
	for _, yes := range []string{"true", "1", "yes", "on", "t", "y"} {
		if len(value) == len(yes) && bytes.EqualFold(value, []byte(yes)) {
			return true
		}
	}
	return false
}

// formBoundary appends the boundary of a Content-Type to dst.
func formBoundary(dst, contentType []byte) ([]byte, bool) {
	kind, rest, _ := bytes.Cut(contentType, []byte(";"))
	if !bytes.EqualFold(bytes.Trim(kind, " \t"), []byte("multipart/form-data")) {
		return nil, false
	}
	from, found := len(dst), false
	for len(rest) > 0 {
		name, value, left, ok := parameter(rest)
		if !ok {
			return nil, false
		}
		rest = left
		if !bytes.EqualFold(name, []byte("boundary")) {
			continue
		}
		if found || len(value) == 0 {
			return nil, false
		}
		found = true
		quoted := value[0] == '"'
		if quoted {
			value = value[1 : len(value)-1]
		}
		for i := 0; i < len(value); i++ {
			ch := value[i]
			if ch == '\\' && quoted {
				i++
				ch = value[i]
			}
			if !boundaryByte(ch) || len(dst)-from == maxBoundaryBytes {
				return nil, false
			}
			dst = append(dst, ch)
		}
		if len(dst) == from || dst[len(dst)-1] == ' ' {
			return nil, false
		}
	}
	return dst, found
}

// boundaryByte knows bchars of RFC 2046, section 5.1.1.
func boundaryByte(ch byte) bool {
	switch {
	case ch-'0' <= 9, ch-'a' <= 25, ch-'A' <= 25:
		return true
	}
	return bytes.IndexByte([]byte("'()+_,-./:=? "), ch) >= 0
}

// parameter takes the first of the parameters behind a semicolon: name=token or name="quoted, \" escaped", whose value
// comes with its quotes.
func parameter(p []byte) (name, value, rest []byte, ok bool) {
	p = bytes.TrimLeft(p, " \t")
	if len(p) == 0 {
		return nil, nil, nil, true // a semicolon at the end
	}
	eq := bytes.IndexByte(p, '=')
	if eq <= 0 || bytes.ContainsAny(p[:eq], "\";") {
		return nil, nil, nil, false
	}
	name, p = bytes.TrimRight(p[:eq], " \t"), p[eq+1:]
	if len(p) > 0 && p[0] == '"' {
		end := 1
		for end < len(p) && p[end] != '"' {
			if p[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(p) {
			return nil, nil, nil, false
		}
		value, p = p[:end+1], bytes.TrimLeft(p[end+1:], " \t")
		if len(p) > 0 && p[0] != ';' {
			return nil, nil, nil, false
		}
		return name, value, p[min(1, len(p)):], true
	}
	value, rest, _ = bytes.Cut(p, []byte(";"))
	return name, bytes.TrimRight(value, " \t"), rest, true
}

// form walks the parts of a body.
type form struct {
	body     []byte
	boundary []byte // "--" and the boundary
	at       int    // behind the last delimiter line
}

// part is one of them.
type part struct {
	name    []byte
	value   Span
	file    bool // it has a file name
	encoded bool // it has a transfer encoding that changes bytes
}

// open steps over the preamble and the first delimiter line.
func (f *form) open() error {
	_, last, err := f.delimiter()
	if err == nil && last {
		err = &BodyError{Reason: "the form has no parts", Offset: f.at}
	}
	return err
}

// delimiter finds the next delimiter line and steps over it. before is where the bytes before it end; last: it closes
// the form.
func (f *form) delimiter() (before int, last bool, err error) {
	for from := f.at; ; {
		k := bytes.Index(f.body[from:], f.boundary)
		if k < 0 {
			return 0, false, &BodyError{Reason: "the form ends before its closing boundary", Offset: len(f.body)}
		}
		at := from + k
		from = at + len(f.boundary)
		switch {
		case at == 0:
		case f.body[at-1] != '\n' && f.body[at-1] != '\r':
			continue // inside a line: content
		case at < 2 || f.body[at-1] != '\n' || f.body[at-2] != '\r':
			return 0, false, &BodyError{Reason: "a boundary does not begin behind CRLF", Offset: at}
		}
		before = max(f.at, at-len("\r\n"))
		if bytes.HasPrefix(f.body[from:], []byte("--")) {
			f.at = from + len("--")
			return before, true, nil
		}
		end := from
		for end < len(f.body) && (f.body[end] == ' ' || f.body[end] == '\t') {
			end++
		}
		if !bytes.HasPrefix(f.body[end:], []byte("\r\n")) {
			return 0, false, &BodyError{Reason: "a boundary line goes on or has no end", Offset: end}
		}
		f.at = end + len("\r\n")
		return before, false, nil
	}
}

// part reads the part that begins at the cursor and steps over the delimiter behind it.
func (f *form) part() (p part, last bool, err error) {
	if err = f.head(&p); err != nil {
		return p, false, err
	}
	p.value.Start = f.at
	p.value.End, last, err = f.delimiter()
	return p, last, err
}

// head reads a part's header lines.
func (f *form) head(p *part) error {
	start := f.at
	named := false
	for { // ends: each line is stepped over, within MaxPartHeadBytes
		rest := f.body[f.at:]
		if limit := MaxPartHeadBytes - (f.at - start); len(rest) > limit {
			rest = rest[:limit]
		}
		end := bytes.Index(rest, []byte("\r\n"))
		if end < 0 {
			return &BodyError{Reason: "the headers of a part have no end within 8192 bytes", Offset: f.at}
		}
		line := rest[:end]
		at := f.at
		f.at += end + len("\r\n")
		if len(line) == 0 {
			if !named {
				return &BodyError{Reason: "a part has no Content-Disposition", Offset: at}
			}
			return nil
		}
		colon := bytes.IndexByte(line, ':')
		if colon <= 0 || line[0] == ' ' || line[0] == '\t' || bytes.IndexByte(line, '\n') >= 0 || bytes.IndexByte(line, '\r') >= 0 {
			return &BodyError{Reason: "a header of a part is malformed or folded", Offset: at}
		}
		value := bytes.Trim(line[colon+1:], " \t")
		switch name := line[:colon]; {
		case bytes.EqualFold(name, []byte("Content-Disposition")):
			if named || !p.disposition(value) {
				return &BodyError{Reason: "a part needs one Content-Disposition: form-data with one plain name", Offset: at}
			}
			named = true
		case bytes.EqualFold(name, []byte("Content-Transfer-Encoding")):
			p.encoded = !bytes.EqualFold(value, []byte("binary")) && !bytes.EqualFold(value, []byte("8bit")) && !bytes.EqualFold(value, []byte("7bit"))
		}
	}
}

// disposition reads the value of a Content-Disposition.
func (p *part) disposition(value []byte) bool {
	kind, rest, _ := bytes.Cut(value, []byte(";"))
	if !bytes.EqualFold(bytes.TrimRight(kind, " \t"), []byte("form-data")) {
		return false
	}
	named := false
	for len(rest) > 0 {
		name, value, left, ok := parameter(rest)
		if !ok {
			return false
		}
		rest = left
		switch {
		case bytes.EqualFold(name, []byte("name")):
			if named || len(value) == 0 {
				return false
			}
			if value[0] == '"' {
				value = value[1 : len(value)-1]
			}
			if len(value) == 0 || bytes.IndexByte(value, '\\') >= 0 || bytes.IndexByte(value, '%') >= 0 {
				return false
			}
			p.name, named = value, true
		case bytes.EqualFold(name, []byte("name*")):
			return false
		case bytes.EqualFold(name, []byte("filename")), bytes.EqualFold(name, []byte("filename*")):
			p.file = true
		}
	}
	return named
}
