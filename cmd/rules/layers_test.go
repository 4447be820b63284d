package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// module is this module's path, the first part of our own imports.
const module = "sluice"

// layers is what docs/ARCHITECTURE.md says.
type layers struct {
	rooms   []room
	modules []thirdParty
}

// room is one row of the table of packages.
type room struct {
	pattern string   // a package, or "x/..." for x and all below
	imports []string // patterns of our own packages
	core    bool     // a pure decision core
}

// thirdParty is one row of the table of modules.
type thirdParty struct {
	path      string
	packages  []string // patterns
	testsOnly bool
}

// matches understands "x" and "x/..." as the go command does.
func matches(pattern, pkg string) bool {
	if pattern == "..." {
		return true
	}
	if top, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == top || strings.HasPrefix(pkg, top+"/")
	}
	return pattern == pkg
}

func anyMatches(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, pkg) })
}

// roomOf is the most exact row: the package itself, else the longest pattern.
func (l *layers) roomOf(pkg string) *room {
	var best *room
	for i := range l.rooms {
		r := &l.rooms[i]
		if r.pattern == pkg {
			return r
		}
		if matches(r.pattern, pkg) && (best == nil || len(r.pattern) > len(best.pattern)) {
			best = r
		}
	}
	return best
}

// moduleOf is the row of the longest module path that holds the import.
func (l *layers) moduleOf(imported string) *thirdParty {
	var best *thirdParty
	for i := range l.modules {
		m := &l.modules[i]
		if matches(m.path+"/...", imported) && (best == nil || len(m.path) > len(best.path)) {
			best = m
		}
	}
	return best
}

// parseLayers reads the two tables: rows below a heading cell "package", and
// rows below a heading cell "module".
func parseLayers(page string) (*layers, error) {
	l := &layers{}
	table := ""
	for i, line := range strings.Split(page, "\n") {
		if !strings.HasPrefix(line, "|") {
			table = ""
			continue
		}
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "|"), "|"), "|")
		for j := range cells {
			cells[j] = strings.TrimSpace(cells[j])
		}
		switch {
		case table == "" && (cells[0] == "package" || cells[0] == "module"):
			table = cells[0]
			continue
		case table == "" || strings.HasPrefix(cells[0], "---"):
			continue
		case len(cells) < 3:
			return nil, fmt.Errorf("docs/ARCHITECTURE.md:%d: a row of the %s table has 3 cells or more", i+1, table)
		}
		first := strings.Trim(cells[0], "`")
		if table == "package" {
			l.rooms = append(l.rooms, room{first, list(cells[1]), cells[2] == "core"})
		} else {
			l.modules = append(l.modules, thirdParty{first, list(cells[1]), strings.Contains(cells[2], "tests only")})
		}
	}
	if len(l.rooms) == 0 || len(l.modules) == 0 {
		return nil, fmt.Errorf("docs/ARCHITECTURE.md: no table with a heading `package` or none with `module`")
	}
	return l, nil
}

// list reads "`a`, `b/...`"; a dash is an empty list.
func list(cell string) []string {
	var out []string
	for _, item := range strings.Split(cell, ",") {
		item = strings.Trim(strings.TrimSpace(item), "`")
		if item != "" && item != "–" && item != "-" {
			out = append(out, item)
		}
	}
	return out
}

func mustReadLayers(t *testing.T) *layers {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(rootDir, "docs", "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := parseLayers(string(page))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// checkImports holds both tables against one file.
func (l *layers) checkImports(f *goFile) []finding {
	var out []finding
	complain := func(spec string, line int, format string, args ...any) {
		out = append(out, finding{f.path, fmt.Sprintf("%s:%d: imports %s: ", f.path, line, spec) + fmt.Sprintf(format, args...)})
	}
	r := l.roomOf(f.dir)
	if r == nil {
		return []finding{{f.path, fmt.Sprintf("%s:1: package %s has no row in docs/ARCHITECTURE.md: add one that says what it may import", f.path, f.dir)}}
	}
	for _, spec := range f.ast.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser took it, so this cannot be
		}
		line := f.line(spec.Pos())
		if imported == module || strings.HasPrefix(imported, module+"/") {
			own := strings.TrimPrefix(strings.TrimPrefix(imported, module), "/")
			if own != f.dir && !l.mayImport(f, r, own) { // a package's _test package imports it
				complain(imported, line, "%s may import of ours: %s (docs/ARCHITECTURE.md); take an interface that the package above fills, or move the code", f.dir, orNothing(r.imports))
			}
			continue
		}
		if !strings.Contains(strings.Split(imported, "/")[0], ".") {
			continue // the standard library
		}
		m := l.moduleOf(imported)
		switch {
		case m == nil:
			complain(imported, line, "the module is not in the table of docs/ARCHITECTURE.md: do without it, or add a row that says where it may be used")
		case m.testsOnly && !f.test:
			complain(imported, line, "for tests only")
		case !anyMatches(m.packages, f.dir):
			complain(imported, line, "allowed only in %s", strings.Join(m.packages, ", "))
		}
	}
	return out
}

// mayImport lets a test use what its row names, and beside that the whole of
// the rooms that its row names: a test of a planner may drive a real part.
func (l *layers) mayImport(f *goFile, r *room, own string) bool {
	if anyMatches(r.imports, own) {
		return true
	}
	sameRoom := func(pattern string) bool {
		return strings.SplitN(pattern, "/", 2)[0] == strings.SplitN(own, "/", 2)[0]
	}
	return f.test && slices.ContainsFunc(r.imports, sameRoom)
}

func orNothing(patterns []string) string {
	if len(patterns) == 0 {
		return "nothing"
	}
	return strings.Join(patterns, ", ")
}

func TestImportsFollowTheLayers(t *testing.T) {
	l := mustReadLayers(t)
	for _, f := range mustRead(t).goFiles {
		hold(t, l.checkImports(f))
	}
}

// TestLayersSayWhatTheyMust pins the lines that no edit of the page may lose.
func TestLayersSayWhatTheyMust(t *testing.T) {
	l := mustReadLayers(t)
	for _, c := range []struct {
		pkg, imported string
		may           bool
	}{
		{"slo", "nodes", false},
		{"nodes", "slo", true}, {"nodes", "router", false}, {"nodes/agent", "fill", false}, {"nodes/agent", "gateway", false},
		{"router", "slo", true}, {"router", "nodes", true}, {"router", "fill", false}, {"router/own", "fill", false},
		{"fill", "slo", true}, {"fill", "nodes", true}, {"fill", "router", false}, {"fill/exec", "router", false}, {"fill/exec", "gateway/admin", false},
		{"gateway", "router", true}, {"gateway", "fill", false}, {"gateway/admin", "fill", false}, {"gateway/admin", "fill/exec", false},
		{"bench/engine", "nodes/simgpu", true}, {"bench/trainer", "nodes/rank", true}, {"bench/load", "slo", true}, {"bench/load", "gateway", false},
		{"cmd/sluice", "fill/exec", true}, {"cmd/sluice", "gateway/admin", true},
	} {
		if got := anyMatches(l.roomOf(c.pkg).imports, c.imported); got != c.may {
			t.Errorf("docs/ARCHITECTURE.md: %s may import %s: %v, must be %v", c.pkg, c.imported, got, c.may)
		}
	}
	for _, core := range []string{"slo", "nodes", "nodes/registry", "router", "router/prefix", "fill", "gateway/wire"} {
		if !l.roomOf(core).core {
			t.Errorf("docs/ARCHITECTURE.md: %s must be marked core", core)
		}
	}
	for _, c := range []struct {
		module, pkg string
		may         bool
	}{
		{"github.com/hashicorp/memberlist", "nodes/gossip", true}, {"github.com/hashicorp/memberlist", "nodes/agent", false},
		{"github.com/NVIDIA/go-nvml", "nodes/nvml", true}, {"github.com/NVIDIA/go-nvml", "nodes/agent", false},
		{"github.com/hashicorp/raft", "nodes/replog", true}, {"github.com/hashicorp/raft", "fill/exec", false},
		{"github.com/hashicorp/raft-boltdb/v2", "nodes/replog", true}, {"github.com/hashicorp/raft-boltdb/v2", "nodes/registry", false},
		{"github.com/valyala/fasthttp", "gateway", true}, {"github.com/valyala/fasthttp", "gateway/admin", false}, {"github.com/valyala/fasthttp", "bench/load", true},
		{"github.com/spf13/cobra", "cmd/sluice", true}, {"github.com/spf13/cobra", "gateway", false},
		{"charm.land/bubbletea/v2", "cmd/sluice", true}, {"charm.land/bubbletea/v2", "gateway/admin", false},
		{"charm.land/lipgloss/v2", "cmd/sluice", true}, {"charm.land/lipgloss/v2", "fill", false},
	} {
		m := l.moduleOf(c.module)
		if got := m != nil && anyMatches(m.packages, c.pkg); got != c.may {
			t.Errorf("docs/ARCHITECTURE.md: %s in %s: %v, must be %v", c.module, c.pkg, got, c.may)
		}
	}
}

// TestLayerTableIsNotStale finds rows for packages that are gone.
func TestLayerTableIsNotStale(t *testing.T) {
	l := mustReadLayers(t)
	used := map[string]bool{}
	for _, f := range mustRead(t).goFiles {
		if r := l.roomOf(f.dir); r != nil {
			used[r.pattern] = true
		}
	}
	for _, r := range l.rooms {
		if !used[r.pattern] {
			t.Errorf("docs/ARCHITECTURE.md: no package matches the row %s: remove it", r.pattern)
		}
	}
}

func TestImportRulesBite(t *testing.T) {
	l, err := parseLayers("| package | imports | kind |\n|---|---|---|\n| `a` | – | core |\n| `b/...` | `a` | |\n\n" +
		"| module | in | note |\n|---|---|---|\n| `x.org/m` | `b` | |\n| `x.org/t` | `...` | tests only |\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file, imported string
		bad            bool
	}{
		{"a/a.go", "sluice/b", true},
		{"a/a_test.go", "sluice/a", false},
		{"a/a.go", "strings", false},
		{"a/a.go", "x.org/m", true},
		{"b/b.go", "sluice/a", false},
		{"b/b.go", "sluice/b/c", true},
		{"b/b.go", "x.org/m/sub", false},
		{"b/c/c.go", "x.org/m", true},
		{"b/b.go", "sluice/a/sub", true},
		{"b/b_test.go", "sluice/a/sub", false},
		{"b/b_test.go", "sluice/c", true},
		{"b/b.go", "x.org/mother", true},
		{"b/b.go", "x.org/t", true},
		{"b/b_test.go", "x.org/t", false},
		{"c/c.go", "strings", true},
	} {
		f := snippet(t, c.file, "package p\nimport _ "+strconv.Quote(c.imported)+"\n")
		if got := len(l.checkImports(f)) > 0; got != c.bad {
			t.Errorf("%s imports %s: found %v, want %v", c.file, c.imported, got, c.bad)
		}
	}
}
