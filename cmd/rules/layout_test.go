package rules

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// topDirs are the folders at the top of the repository: the rooms of the
// product and what surrounds it. A new idea goes into one of them.
var topDirs = []string{".ci", "bench", "cmd", "docs", "examples", "fill", "gateway", "nodes", "router", "slo"}

func TestTopFolders(t *testing.T) {
	for _, w := range checkTopFolders(mustRead(t).topDirs) {
		t.Error(w)
	}
}

func checkTopFolders(have []string) []string {
	var out []string
	for _, d := range have {
		if !slices.Contains(topDirs, d) {
			out = append(out, fmt.Sprintf("%s/: not one of the folders at the top (%s): put it into one of them", d, strings.Join(topDirs, " ")))
		}
	}
	for _, d := range topDirs {
		if !slices.Contains(have, d) {
			out = append(out, fmt.Sprintf("%s/: missing", d))
		}
	}
	return out
}

func TestTopFilesAreThere(t *testing.T) {
	for _, name := range []string{"README.md", "CHANGELOG.md", "LICENSE", "Makefile", ".gitignore", ".ci/run", ".ci/tools/go.mod", "docs/ARCHITECTURE.md"} {
		if _, err := os.Stat(filepath.Join(rootDir, name)); err != nil {
			t.Error(err)
		}
	}
}

// checkGoMod refuses directives that make a build depend on one checkout.
func checkGoMod(body string) []string {
	var out []string
	for i, line := range strings.Split(body, "\n") {
		word := strings.Trim(strings.SplitN(strings.TrimSpace(line), " ", 2)[0], "(")
		if word == "replace" || word == "exclude" || word == "toolchain" || word == "tool" || strings.Contains(line, " => ") {
			out = append(out, fmt.Sprintf("go.mod:%d: %s: the product's go.mod has requirements only; tools stand in .ci/tools", i+1, strings.TrimSpace(line)))
		}
	}
	return out
}

func TestGoModHasRequirementsOnly(t *testing.T) {
	body, err := os.ReadFile(filepath.Join(rootDir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range checkGoMod(string(body)) {
		t.Error(w)
	}
}

// TestModulesAreKnown wants a row in the table of modules for each direct
// requirement. A row without requirement may stay: it says where the module
// may be used, if ever.
func TestModulesAreKnown(t *testing.T) {
	body, err := os.ReadFile(filepath.Join(rootDir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	l := mustReadLayers(t)
	for line := range strings.SplitSeq(string(body), "\n") {
		parts := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(parts) != 2 || !strings.HasPrefix(parts[1], "v") || !strings.Contains(parts[0], ".") {
			continue // no requirement, or an indirect one
		}
		if l.moduleOf(parts[0]) == nil {
			t.Errorf("go.mod requires %s, which has no row in docs/ARCHITECTURE.md", parts[0])
		}
	}
}

// checkExample holds the form of a file in examples/: it begins with what it
// is, and a page tells of it.
func checkExample(f textFile, pages []textFile) []string {
	var out []string
	line, _, _ := bytes.Cut(f.body, []byte("\n"))
	switch filepath.Ext(f.path) {
	case ".yaml", ".yml", ".py", ".sh", ".md":
		if !bytes.HasPrefix(line, []byte("#")) && !bytes.HasPrefix(line, []byte(`"""`)) {
			out = append(out, fmt.Sprintf("%s:1: begin with a comment that says what this file is", f.path))
		}
	}
	told := func(page textFile) bool { return page.path != f.path && bytes.Contains(page.body, []byte(f.path)) }
	if !slices.ContainsFunc(pages, told) {
		out = append(out, fmt.Sprintf("%s: no page tells of it: link to it from README.md or docs/", f.path))
	}
	return out
}

func TestExamplesAreToldOf(t *testing.T) {
	var pages []textFile
	for _, f := range mustRead(t).textFiles {
		if filepath.Ext(f.path) == ".md" {
			pages = append(pages, f)
		}
	}
	for _, f := range mustRead(t).textFiles {
		if !strings.HasPrefix(f.path, "examples/") {
			continue
		}
		for _, w := range checkExample(f, pages) {
			t.Error(w)
		}
	}
}

var pageLink = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)\s]*)?\)`)

// TestLinksLead finds links in our pages that lead to no file.
func TestLinksLead(t *testing.T) {
	for _, f := range mustRead(t).textFiles {
		if filepath.Ext(f.path) != ".md" {
			continue
		}
		for _, m := range pageLink.FindAllSubmatch(f.body, -1) {
			target := string(m[1])
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			if _, err := os.Stat(filepath.Join(rootDir, filepath.Dir(f.path), target)); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", f.path, target)
			}
		}
	}
}

func TestLayoutRulesBite(t *testing.T) {
	if w := checkTopFolders(append(slices.Clone(topDirs), "pkg")); len(w) != 1 {
		t.Errorf("a folder too much: %q", w)
	}
	if w := checkTopFolders(topDirs[1:]); len(w) != 1 {
		t.Errorf("a folder missing: %q", w)
	}
	for body, want := range map[string]int{
		"module m\n\ngo 1.26.0\n\nrequire a.org/b v1.0.0\n": 0,
		"replace a.org/b => ../b\n":                         1,
		"replace (\n\ta.org/b => ../b\n)\n":                 2,
		"tool a.org/b/cmd\n":                                1,
	} {
		if w := checkGoMod(body); len(w) != want {
			t.Errorf("%q: %d found, want %d: %q", body, len(w), want, w)
		}
	}
	pages := []textFile{{"README.md", []byte("see [a](examples/a.yaml)")}}
	for _, c := range []struct {
		path, body string
		want       int
	}{
		{"examples/a.yaml", "# A model\nname: a\n", 0},
		{"examples/a.yaml", "name: a\n", 1},
		{"examples/b.yaml", "# Another\nname: b\n", 1},
	} {
		if w := checkExample(textFile{c.path, []byte(c.body)}, pages); len(w) != c.want {
			t.Errorf("%s %q: %d found, want %d: %q", c.path, c.body, len(w), c.want, w)
		}
	}
}
