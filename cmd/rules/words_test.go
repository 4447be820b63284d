package rules

import (
	"bytes"
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// emptyNames say nothing about what a package or file holds.
var emptyNames = []string{"util", "utils", "common", "helpers", "manager", "managers", "base", "misc"}

// Words that this file forbids are written in two parts, so that it may be
// checked like any other.
var (
	reminders    = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)
	machinePaths = regexp.MustCompile(`(^|[^\w.])/(wo` + `rk|ro` + `ot)/`)
)

// checkSleep finds time.Sleep in a test. Inside a synctest bubble time is made
// up and sleeping costs nothing, so there it may stand: in the bubble itself,
// and in what is no test of its own, in a file that has bubbles.
func checkSleep(f *goFile) []finding {
	clock, synctest := importName(f, "time"), importName(f, "testing/synctest")
	if !f.test || clock == "" {
		return nil
	}
	var out []finding
	for _, decl := range f.ast.Decls {
		d, isFunc := decl.(*ast.FuncDecl)
		isTest := isFunc && d.Recv == nil && strings.HasPrefix(d.Name.Name, "Test")
		if synctest != "" && isFunc && !isTest {
			continue
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && isSelector(call.Fun, synctest, "Test") {
				return false
			}
			if e, ok := n.(ast.Expr); ok && isSelector(e, clock, "Sleep") {
				out = append(out, finding{f.path, f.at(n.Pos()) + ": time.Sleep in a test: use a synctest bubble, a channel, or a ticker with a deadline"})
			}
			return true
		})
	}
	return out
}

func isSelector(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || pkg == "" || s.Sel.Name != name {
		return false
	}
	id, ok := s.X.(*ast.Ident)
	return ok && id.Name == pkg
}

// checkNames finds packages and files whose names say nothing.
func checkNames(f *goFile) []finding {
	var out []finding
	stem := strings.TrimSuffix(strings.TrimSuffix(path.Base(f.path), ".go"), "_test")
	for _, name := range []string{path.Base(f.dir), f.ast.Name.Name, stem} {
		if slices.Contains(emptyNames, strings.TrimSuffix(name, "_test")) {
			out = append(out, finding{f.path, fmt.Sprintf("%s:1: the name %q says nothing: name what it holds or decides", f.path, name)})
		}
	}
	return out
}

// checkWords finds reminders and paths of one machine in any text.
func checkWords(f textFile) []finding {
	var out []finding
	for i, line := range bytes.Split(f.body, []byte("\n")) {
		if m := reminders.Find(line); m != nil {
			out = append(out, finding{f.path, fmt.Sprintf("%s:%d: %s: do it, or open an issue", f.path, i+1, m)})
		}
		if m := machinePaths.Find(line); m != nil {
			out = append(out, finding{f.path, fmt.Sprintf("%s:%d: %s is a path of one machine: use a relative one, or a temporary folder", f.path, i+1, bytes.TrimSpace(m))})
		}
	}
	return out
}

func TestNoSleepingInTests(t *testing.T) {
	for _, f := range mustRead(t).goFiles {
		hold(t, checkSleep(f))
	}
}

func TestNamesSaySomething(t *testing.T) {
	for _, f := range mustRead(t).goFiles {
		hold(t, checkNames(f))
	}
}

func TestNoRemindersAndNoMachinePaths(t *testing.T) {
	for _, f := range mustRead(t).textFiles {
		hold(t, checkWords(f))
	}
}

func TestWordRulesBite(t *testing.T) {
	for body, want := range map[string]int{
		"import \"time\"\nfunc f() { time.Sleep(1) }":   1,
		"import clock \"time\"\nvar wait = clock.Sleep": 1,
		"func f() { x.Sleep(1) }":                       0,
		"import (\n\"testing/synctest\"\n\"time\"\n)\nfunc f() { synctest.Test(t, func() { time.Sleep(1) }) }":     0,
		"import (\n\"testing/synctest\"\n\"time\"\n)\nfunc f() { time.Sleep(1)\nsynctest.Test(t, func() {}) }":     0,
		"import (\n\"testing/synctest\"\n\"time\"\n)\nfunc TestX() { time.Sleep(1)\nsynctest.Test(t, func() {}) }": 1,
	} {
		if got := checkSleep(snippet(t, "p/p_test.go", "package p\n"+body+"\n")); len(got) != want {
			t.Errorf("%q: %d found, want %d", body, len(got), want)
		}
	}
	for name, want := range map[string]int{"util/x.go": 1, "p/helpers.go": 1, "p/helpers_test.go": 1, "p/database.go": 0} {
		if got := checkNames(snippet(t, name, "package p\n")); len(got) != want {
			t.Errorf("%s: %d found, want %d", name, len(got), want)
		}
	}
	for text, want := range map[string]int{
		"// TO" + "DO: later":                    1,
		"mktemp -d x.X" + strings.Repeat("X", 5): 0,
		"cd /wo" + "rk/main && ls":               1,
		"url: http://host/ro" + "ot/file":        0,
		"\"/ro" + "ot/.cache\"":                  1,
		"path/wo" + "rk/x":                       0,
	} {
		if got := checkWords(textFile{"a.md", []byte(text)}); len(got) != want {
			t.Errorf("%q: %d found, want %d: %v", text, len(got), want, got)
		}
	}
}
