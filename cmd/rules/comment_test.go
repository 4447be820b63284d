package rules

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// minPackageComment is the shortest package comment that can say what a
// package decides and what its caller owes it, in characters.
const minPackageComment = 120

// checkPackageComments wants one comment a package that begins as godoc does.
func checkPackageComments(files []*goFile) []finding {
	comment := map[string]string{}
	first := map[string]*goFile{}
	for _, f := range files {
		if first[f.dir] == nil {
			first[f.dir] = f
		}
		if text := f.ast.Doc.Text(); text != "" {
			comment[f.dir] += text
		}
	}
	var out []finding
	for dir, f := range first {
		want := "Package " + f.ast.Name.Name
		if f.ast.Name.Name == "main" {
			want = "Command "
		}
		switch text := comment[dir]; {
		case text == "":
			out = append(out, finding{f.path, fmt.Sprintf("%s:1: package %s has no package comment: add a doc.go that says what it decides and what its caller owes it", f.path, dir)})
		case !strings.HasPrefix(text, want):
			out = append(out, finding{f.path, fmt.Sprintf("%s:1: the comment of package %s does not begin with %q", f.path, dir, want)})
		case len(text) < minPackageComment:
			out = append(out, finding{f.path, fmt.Sprintf("%s:1: the comment of package %s has %d characters: say what it decides, what its caller owes it, what it does not do", f.path, dir, len(text))})
		}
	}
	return out
}

// plainMethods mean what their interface says, everywhere.
var plainMethods = []string{
	"Error", "String", "Unwrap", "Is", "As", "Len", "Less", "Swap", "Read", "Write", "Close", "ServeHTTP",
	"MarshalJSON", "UnmarshalJSON", "MarshalText", "UnmarshalText", "Format", "LogValue",
}

// checkExportedDocs finds exported names without a doc comment. Fields are
// left to their reader: a struct's comment may explain them together.
func checkExportedDocs(f *goFile) []finding {
	var out []finding
	complain := func(pos token.Pos, what, name string) {
		out = append(out, finding{f.path, fmt.Sprintf("%s: exported %s %s has no doc comment: give units, zero value, concurrency and errors where they matter", f.at(pos), what, name)})
	}
	for _, decl := range f.ast.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if !d.Name.IsExported() || d.Doc.Text() != "" {
				continue
			}
			if d.Recv == nil {
				complain(d.Pos(), "function", d.Name.Name)
			} else if recv := receiver(d); ast.IsExported(recv) && !slices.Contains(plainMethods, d.Name.Name) {
				complain(d.Pos(), "method", recv+"."+d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				undocumented(d, spec, complain)
			}
		}
	}
	return out
}

// undocumented complains about the exported names of one spec. A comment on
// the group counts, and for values one behind the line does too.
func undocumented(d *ast.GenDecl, spec ast.Spec, complain func(token.Pos, string, string)) {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		alone := !d.Lparen.IsValid() && d.Doc.Text() != ""
		if s.Name.IsExported() && s.Doc.Text() == "" && s.Comment.Text() == "" && !alone {
			complain(s.Pos(), "type", s.Name.Name)
		}
	case *ast.ValueSpec:
		if d.Doc.Text() != "" || s.Doc.Text() != "" || s.Comment.Text() != "" {
			return
		}
		for _, name := range s.Names {
			if name.IsExported() {
				complain(name.Pos(), d.Tok.String(), name.Name)
			}
		}
	}
}

// receiver is the name of a method's type.
func receiver(d *ast.FuncDecl) string {
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	hold(t, checkPackageComments(mustRead(t).code()))
}

func TestExportedNamesHaveComments(t *testing.T) {
	var found []finding
	for _, f := range mustRead(t).code() {
		found = append(found, checkExportedDocs(f)...)
	}
	holdRatchet(t, ruleUndocumented, found)
}

func TestCommentRulesBite(t *testing.T) {
	long := strings.Repeat(" and so on", 20)
	for body, bad := range map[string]bool{
		"package p":                                       true,
		"// It does things.\npackage p":                   true,
		"// Package p does things.\npackage p":            true,
		"// Package p does" + long + ".\npackage p":       false,
		"// Command p does" + long + ".\npackage main":    false,
		"// Package main does" + long + ".\npackage main": true,
	} {
		if got := len(checkPackageComments([]*goFile{snippet(t, "p/p.go", body+"\n")})) > 0; got != bad {
			t.Errorf("%q: found %v, want %v", body, got, bad)
		}
	}
	for body, want := range map[string]int{
		"func F() {}":                            1,
		"// F is.\nfunc F() {}":                  0,
		"func f() {}":                            0,
		"type T int\nfunc (T) M() {}":            2,
		"type T int\nfunc (T) String() string":   1,
		"type t int\nfunc (t) M() {}":            0,
		"type T[A any] int\nfunc (*T[A]) M() {}": 2,
		"const A, B = 1, 2":                      2,
		"// Both.\nconst (\nA = 1\nB = 2\n)":     0,
		"const (\nA = 1 // one\nB = 2\n)":        1,
		"// All.\ntype (\nT int\n)":              1,
		"var E = 1":                              1,
	} {
		if got := checkExportedDocs(snippet(t, "p/p.go", "package p\n"+body+"\n")); len(got) != want {
			t.Errorf("%q: %d found, want %d: %v", body, len(got), want, got)
		}
	}
}
