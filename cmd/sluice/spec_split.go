package main

import (
	"fmt"
	"strings"
)

// Limits of one document, checked before it is parsed: the parser's time grows
// with the square of its lines and faster with its depth.
const (
	maxSpecLines = 2000
	maxSpecDepth = 32
)

// part is the text of one document and the lines of the file before it.
type part struct {
	text string
	line int
}

// split cuts a file at its "---" lines. The parser could do it, but drops the
// document that follows an empty one.
func split(file, text string) (parts []part, faults specErrors) {
	fault := func(line int, problem, remedy string) {
		faults = append(faults, &specError{file: file, line: line, column: 1, problem: problem, remedy: remedy})
	}
	var b strings.Builder
	start, number, tooDeep := 0, 0, false
	flush := func() {
		switch {
		case number-start > maxSpecLines:
			fault(start+1, fmt.Sprintf("the document has more than %d lines", maxSpecLines), "put long scripts in files of their own")
		case len(parts) == maxDocuments:
			fault(start+1, fmt.Sprintf("the file has more than %d documents", maxDocuments), "split it")
		case !tooDeep && b.Len() > 0 && len(faults) == 0:
			parts = append(parts, part{b.String(), start})
		}
		b.Reset()
		tooDeep = false
	}
	depth := 0
	for line := range strings.Lines(text) {
		number++
		if rest, ok := marker(line); ok {
			number--
			flush()
			number++
			start, depth = number, 0
			if rest != "" {
				fault(number, "something stands behind --- on its line", "begin the document on the next line")
			}
			continue
		}
		depth = max(0, depth+strings.Count(line, "[")+strings.Count(line, "{")-strings.Count(line, "]")-strings.Count(line, "}"))
		if !tooDeep && (depth > maxSpecDepth || leading(line) > maxSpecDepth || nesting(line) > 4*maxSpecDepth) {
			tooDeep = true
			fault(number, "the document is nested too deeply", "no field needs more than three levels; put text with brackets in quotes, in a file of its own if it is a script")
		}
		b.WriteString(line)
	}
	flush()
	return parts, faults
}

// marker tells a line that ends a document, and what follows on it.
func marker(line string) (rest string, ok bool) {
	line = strings.TrimRight(line, " \t\r\n")
	if line != "---" && line != "..." && !strings.HasPrefix(line, "--- ") && !strings.HasPrefix(line, "---\t") {
		return "", false
	}
	rest = strings.TrimSpace(line[3:])
	if strings.HasPrefix(rest, "#") {
		rest = ""
	}
	return rest, true
}

// leading counts the block indicators that open a line, as in "- - - a".
func leading(line string) int {
	n := 0
	for {
		line = strings.TrimLeft(line, " \t")
		if len(line) < 2 || (line[0] != '-' && line[0] != '?' && line[0] != ':') || (line[1] != ' ' && line[1] != '\t') {
			return n
		}
		line = line[1:]
		n++
	}
}

// nesting counts opening brackets of one line, closed or not.
func nesting(line string) int { return strings.Count(line, "[") + strings.Count(line, "{") }
