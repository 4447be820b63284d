package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"sluice/slo"
)

// document is one YAML document on its way to a spec.
type document struct {
	file         string
	before       int // lines of the file before this document
	line, column int
	kind         string
	values       map[string]any    // by the API's names
	at           map[string][2]int // line and column, by the API's path
	faults       *specErrors
}

func (d *document) fault(line, column int, field, problem, remedy string) {
	*d.faults = append(*d.faults, &specError{d.file, line, column, field, problem, remedy})
}

// parseSpecs reads all documents and reports all faults at once.
func parseSpecs(file string, raw []byte, want string) ([]spec, error) {
	parts, faults := split(file, string(raw))
	var out []spec
	for _, part := range parts {
		tree, err := parser.ParseBytes([]byte(part.text), 0)
		if err != nil {
			faults = append(faults, syntaxError(file, part.line, err))
			continue
		}
		for _, doc := range tree.Docs {
			if s := readDocument(file, part.line, doc.Body, want, &faults); s != nil {
				out = append(out, *s)
			}
		}
	}
	if len(faults) > 0 {
		slices.SortStableFunc(faults, func(a, b *specError) int { return a.line - b.line })
		return nil, faults
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("spec file %s holds no document; docs/model-yaml.md and docs/job-yaml.md show what to write", file)
	}
	return out, nil
}

// readDocument reads one parsed document; nil when it is empty or faulty.
func readDocument(file string, before int, body ast.Node, want string, faults *specErrors) *spec {
	if _, comment := body.(*ast.CommentGroupNode); comment || body == nil {
		return nil // between two "---" there is nothing
	}
	d := &document{file: file, before: before, values: map[string]any{}, at: map[string][2]int{}, faults: faults}
	n := len(*faults)
	if d.read(body, want); len(*faults) > n {
		return nil
	}
	return d.finish()
}

// syntaxError keeps the parser's message and place, without its picture.
func syntaxError(file string, before int, err error) *specError {
	e := &specError{file: file, line: before + 1, column: 1, problem: err.Error(), remedy: "correct the YAML"}
	if m, ok := err.(interface{ GetMessage() string }); ok {
		e.problem = m.GetMessage()
	}
	if t, ok := err.(interface{ GetToken() *token.Token }); ok && t.GetToken() != nil {
		e.line, e.column = before+t.GetToken().Position.Line, t.GetToken().Position.Column
	}
	if strings.Contains(e.problem, "flow map") {
		e.remedy = `put text with braces in quotes, as "{{port}}"`
	}
	return e
}

func (d *document) place(n ast.Node) (line, column int) {
	if n == nil || n.GetToken() == nil {
		return d.before + 1, 1
	}
	p := n.GetToken().Position
	return d.before + p.Line, p.Column
}

// source is the text of a scalar as it is written in the file.
func source(n ast.Node) string {
	if n.GetToken() == nil {
		return ""
	}
	return n.GetToken().Value
}

// read takes the top level of a document.
func (d *document) read(body ast.Node, want string) {
	top, ok := body.(*ast.MappingNode)
	if !ok {
		line, column := d.place(body)
		d.fault(line, column, "", "the document is no map", "write fields, one a line, as `name: chat`")
		return
	}
	d.line, d.column = d.before+1, 1
	if len(top.Values) > 0 {
		d.line, d.column = d.place(top.Values[0].Key)
	}
	if !d.chooseKind(top, want) {
		return
	}
	d.values = d.mapping(top, fields[d.kind], "", "kind")
}

// chooseKind finds `kind:` or takes the wanted one.
func (d *document) chooseKind(top *ast.MappingNode, want string) bool {
	d.kind = want
	for _, v := range top.Values {
		if v.Key.String() != "kind" {
			continue
		}
		line, column := d.place(v.Value)
		text, ok := v.Value.(*ast.StringNode)
		if !ok || fields[text.Value] == nil {
			d.fault(line, column, "kind", "is no kind of document", "write Model, Job or Tenant")
			return false
		}
		if want != "" && text.Value != want {
			d.fault(line, column, "kind", fmt.Sprintf("is %s, and this verb takes %s", text.Value, want), "use `sluice apply -f` for files of mixed kinds")
			return false
		}
		d.kind = text.Value
	}
	if d.kind == "" {
		d.fault(d.line, d.column, "kind", "is missing", "write kind: Model, Job or Tenant in each document")
		return false
	}
	return true
}

// mapping reads a map of known fields. skip is a key that was read before.
func (d *document) mapping(m *ast.MappingNode, known []field, path, skip string) map[string]any {
	out := map[string]any{}
	for _, v := range m.Values {
		line, column := d.place(v.Key)
		key, ok := v.Key.(*ast.StringNode)
		if !ok {
			d.fault(line, column, "", "a field's name must be plain text", "write one of: "+names(known))
			continue
		}
		if skip != "" && key.Value == skip {
			continue
		}
		i := slices.IndexFunc(known, func(f field) bool { return f.name == key.Value })
		if i < 0 {
			remedy := "known fields: " + names(known)
			if n := near(key.Value, known); n != "" {
				remedy = fmt.Sprintf("did you mean %s?", n)
			}
			d.fault(line, column, key.Value, "there is no such field", remedy)
			continue
		}
		f := known[i]
		full := path + f.json
		if _, twice := out[f.json]; twice {
			d.fault(line, column, key.Value, "is there twice", "keep one")
			continue
		}
		line, column = d.place(v.Value)
		d.at[full] = [2]int{line, column}
		if value, ok := d.value(f, v.Value, full, line, column); ok {
			out[f.json] = value
		}
	}
	return out
}

// value converts one node; false after a fault.
func (d *document) value(f field, n ast.Node, path string, line, column int) (any, bool) {
	bad := func(want string) (any, bool) {
		d.fault(line, column, fileNames.Replace(path), d.describe(n)+" does not fit", want)
		return nil, false
	}
	switch f.is {
	case textField, metricField, sizeField, timeField:
		text, ok := plainText(n)
		if !ok && f.is == textField {
			return bad("write text; put numbers and words like true in quotes")
		}
		return d.unitValue(f, n, text, bad)
	case intField:
		if i, ok := integer(n); ok {
			return i, true
		}
		return bad("write a whole number")
	case numberField:
		if x, ok := number(n); ok {
			return x, true
		}
		return bad("write a number, as 0.9")
	case textsField:
		return d.texts(n, path, bad)
	case envField:
		return d.env(n, path, bad)
	default:
		return d.objectives(n, path, bad)
	}
}

// unitValue converts text with a meaning.
func (d *document) unitValue(f field, n ast.Node, text string, bad func(string) (any, bool)) (any, bool) {
	switch f.is {
	case metricField:
		if m, err := slo.ParseMetric(text); err == nil {
			return m.String(), true
		}
		return bad("write ttft, itl or e2e")
	case sizeField:
		if text == "" {
			text = source(n)
		}
		if b, err := parseSize(text); err == nil {
			return b, true
		}
		return bad("write a size with its unit, as 24GiB or 500MiB")
	case timeField:
		if text == "" {
			text = source(n)
		}
		if ms, err := parseTime(text); err == nil {
			return ms, true
		}
		return bad("write a time with its unit, as 30s, 500ms or 2m")
	}
	return text, true
}

func (d *document) texts(n ast.Node, path string, bad func(string) (any, bool)) (any, bool) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return bad(`write a list, as ["engine", "--port", "{{port}}"]`)
	}
	out := make([]string, 0, len(seq.Values))
	for i, item := range seq.Values {
		line, column := d.place(item)
		at := fmt.Sprintf("%s[%d]", path, i)
		d.at[at] = [2]int{line, column}
		text, ok := anyText(item)
		if !ok {
			d.fault(line, column, at, d.describe(item)+" does not fit", "write text, in quotes where it has braces or colons")
			continue
		}
		out = append(out, text)
	}
	return out, true
}

func (d *document) env(n ast.Node, path string, bad func(string) (any, bool)) (any, bool) {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		return bad("write a map, one variable a line, as `HF_HOME: /models`")
	}
	out := map[string]string{}
	for _, v := range m.Values {
		line, column := d.place(v.Value)
		key := v.Key.String()
		if k, ok := v.Key.(*ast.StringNode); ok {
			key = k.Value
		}
		d.at[path+"."+key] = [2]int{line, column}
		text, ok := anyText(v.Value)
		if !ok {
			d.fault(line, column, path+"."+key, d.describe(v.Value)+" does not fit", "write text, in quotes where it has braces or colons")
			continue
		}
		out[key] = text
	}
	return out, true
}

func (d *document) objectives(n ast.Node, path string, bad func(string) (any, bool)) (any, bool) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return bad("write a list, each entry with metric, quantile and threshold")
	}
	out := make([]map[string]any, 0, len(seq.Values))
	for i, item := range seq.Values {
		at := fmt.Sprintf("%s[%d]", path, i)
		line, column := d.place(item)
		d.at[at] = [2]int{line, column}
		m, ok := item.(*ast.MappingNode)
		if !ok {
			d.fault(line, column, at, d.describe(item)+" does not fit", "write metric, quantile and threshold")
			continue
		}
		before := len(*d.faults)
		o := d.mapping(m, objectiveFields, at+".", "")
		for _, f := range objectiveFields {
			if _, has := o[f.json]; !has && len(*d.faults) == before {
				d.fault(line, column, at+"."+f.name, "is missing", "write metric, quantile and threshold")
			}
		}
		out = append(out, o)
	}
	return out, true
}

// describe names what stands where something else was expected.
func (d *document) describe(n ast.Node) string {
	switch n.(type) {
	case *ast.NullNode:
		return "nothing"
	case *ast.MappingNode:
		return "a map"
	case *ast.SequenceNode:
		return "a list"
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return "a YAML anchor or alias" // they make small files large
	case *ast.TagNode:
		return "a YAML tag"
	}
	text := source(n)
	if len(text) > 40 {
		text = text[:40] + "…"
	}
	return strconv.Quote(text)
}

// plainText is a text node's value.
func plainText(n ast.Node) (string, bool) {
	switch s := n.(type) {
	case *ast.StringNode:
		return s.Value, true
	case *ast.LiteralNode:
		return s.Value.Value, true
	}
	return "", false
}

// anyText also takes numbers and booleans, as they are written in the file.
func anyText(n ast.Node) (string, bool) {
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return source(n), true
	}
	return plainText(n)
}

func integer(n ast.Node) (int64, bool) {
	i, ok := n.(*ast.IntegerNode)
	if !ok {
		return 0, false
	}
	switch v := i.Value.(type) {
	case int64:
		return v, true
	case uint64:
		return int64(v), v <= math.MaxInt32
	}
	return 0, false
}

func number(n ast.Node) (float64, bool) {
	if i, ok := integer(n); ok {
		return float64(i), true
	}
	f, ok := n.(*ast.FloatNode)
	if !ok {
		return 0, false
	}
	return f.Value, !math.IsInf(f.Value, 0) && !math.IsNaN(f.Value)
}
