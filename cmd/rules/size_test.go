package rules

import (
	"fmt"
	"go/ast"
	"strings"
	"testing"
)

// Limits of size, in lines. A file aims at half of the limit.
const (
	maxFileLines     = 600
	maxFunctionLines = 70
)

// Rules that may have exceptions.
const (
	ruleLongFile     = "long-file"
	ruleLongFunction = "long-function"
	ruleUndocumented = "undocumented"
)

var ratcheted = []string{ruleLongFile, ruleLongFunction, ruleUndocumented}

func checkFileSize(f *goFile) []finding {
	if f.lines <= maxFileLines {
		return nil
	}
	return []finding{{f.path, fmt.Sprintf("%s:%d: %d lines, at most %d: a file holds one idea, so split it by ideas", f.path, maxFileLines+1, f.lines, maxFileLines)}}
}

// checkFunctionSize counts from the line of func to the closing brace.
func checkFunctionSize(f *goFile) []finding {
	var out []finding
	for _, decl := range f.ast.Decls {
		d, ok := decl.(*ast.FuncDecl)
		if !ok || d.Body == nil {
			continue
		}
		if n := f.line(d.Body.Rbrace) - f.line(d.Pos()) + 1; n > maxFunctionLines {
			out = append(out, finding{f.path, fmt.Sprintf("%s: function %s has %d lines, at most %d: the parent branches, leaves compute", f.at(d.Pos()), d.Name.Name, n, maxFunctionLines)})
		}
	}
	return out
}

func TestFilesAreShort(t *testing.T) {
	var found []finding
	for _, f := range mustRead(t).goFiles {
		found = append(found, checkFileSize(f)...)
	}
	holdRatchet(t, ruleLongFile, found)
}

func TestFunctionsAreShort(t *testing.T) {
	var found []finding
	for _, f := range mustRead(t).goFiles {
		found = append(found, checkFunctionSize(f)...)
	}
	holdRatchet(t, ruleLongFunction, found)
}

func TestSizeRulesBite(t *testing.T) {
	for lines, want := range map[int]int{maxFileLines: 0, maxFileLines + 1: 1} {
		f := snippet(t, "p/p.go", "package p"+strings.Repeat("\n", lines))
		if got := checkFileSize(f); len(got) != want {
			t.Errorf("%d lines: %d found, want %d", lines, len(got), want)
		}
	}
	for lines, want := range map[int]int{maxFunctionLines: 0, maxFunctionLines + 1: 1} {
		f := snippet(t, "p/p.go", "package p\n\n// Comments do not count.\nfunc f() {"+strings.Repeat("\n", lines-1)+"}\n")
		if got := checkFunctionSize(f); len(got) != want {
			t.Errorf("a function of %d lines: %d found, want %d", lines, len(got), want)
		}
	}
}
