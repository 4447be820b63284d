package rules

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// rootDir is the repository, seen from this package.
const rootDir = "../.."

// skippedDirs hold nothing that a person wrote for this project: the
// repository itself and what .gitignore names.
var skippedDirs = []string{".git", "bin", "data", "node_modules", "__pycache__"}

// goFile is one parsed Go file.
type goFile struct {
	path  string // slash-separated, from the repository's root
	dir   string // the package's folder, "." for the root
	test  bool
	lines int
	fset  *token.FileSet
	ast   *ast.File
}

// at is the place of a node as people click it.
func (f *goFile) at(pos token.Pos) string {
	return fmt.Sprintf("%s:%d", f.path, f.fset.Position(pos).Line)
}

// line is the line of a position.
func (f *goFile) line(pos token.Pos) int { return f.fset.Position(pos).Line }

// finding is one violation of one rule.
type finding struct {
	path string // the file that the exceptions count it for
	text string // place, what is wrong, what to do
}

// source is the repository as the rules see it.
type source struct {
	goFiles   []*goFile
	textFiles []textFile
	topDirs   []string
}

// textFile is any file that people read, Go or not.
type textFile struct {
	path string
	body []byte
}

// maxTextBytes leaves out recorded data, which nobody reads line by line.
const maxTextBytes = 1 << 20

// parseGo reads one Go file; the self-tests give it snippets.
func parseGo(name string, body []byte) (*goFile, error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, name, body, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}
	return &goFile{
		path: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go"),
		lines: countLines(body), fset: fset, ast: tree,
	}, nil
}

func countLines(body []byte) int {
	n := bytes.Count(body, []byte("\n"))
	if len(body) > 0 && body[len(body)-1] != '\n' {
		n++
	}
	return n
}

// snippet parses a made-up file for a self-test.
func snippet(t *testing.T, name, body string) *goFile {
	t.Helper()
	f, err := parseGo(name, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// repository reads the tree once for all rules.
var repository = sync.OnceValues(func() (*source, error) { return readSource(rootDir) })

func mustRead(t *testing.T) *source {
	t.Helper()
	src, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	if len(src.goFiles) < 10 {
		t.Fatalf("only %d Go files found below %s: the rules would judge nothing", len(src.goFiles), rootDir)
	}
	return src
}

func readSource(root string) (*source, error) {
	src := &source{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if slices.Contains(skippedDirs, d.Name()) {
				return filepath.SkipDir
			}
			if rel != "." && !strings.Contains(rel, "/") {
				src.topDirs = append(src.topDirs, rel)
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		return src.add(name, rel)
	})
	if err != nil {
		return nil, fmt.Errorf("read the repository: %w", err)
	}
	return src, nil
}

// add reads one file, if it is one that people write.
func (s *source) add(name, rel string) error {
	if !isText(rel) {
		return nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if info.Size() > maxTextBytes {
		return nil
	}
	body, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	s.textFiles = append(s.textFiles, textFile{rel, body})
	if path.Ext(rel) != ".go" || strings.Contains("/"+rel, "/testdata/") {
		return nil
	}
	f, err := parseGo(rel, body)
	if err != nil {
		return err
	}
	s.goFiles = append(s.goFiles, f)
	return nil
}

// textKinds are the endings of files that people write and read.
var textKinds = []string{
	".go", ".md", ".yaml", ".yml", ".py", ".c", ".h", ".sh", ".html", ".js", ".mjs",
	".css", ".svg", ".mod", ".toml", ".service", ".txt",
}

func isText(rel string) bool {
	name := path.Base(rel)
	if slices.Contains(textKinds, path.Ext(name)) {
		return true
	}
	return name == "Makefile" || name == ".gitignore" || (strings.HasPrefix(rel, ".ci/") && path.Ext(name) == "")
}

// code returns the files that are built into the product.
func (s *source) code() []*goFile {
	return slices.DeleteFunc(slices.Clone(s.goFiles), func(f *goFile) bool { return f.test })
}
