package rules

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// metricsPage has a row for each metric.
const metricsPage = "docs/metrics.md"

var (
	metricName = regexp.MustCompile(`^(?:sluice|gen_ai)_[a-z0-9_]+`)
	metricRow  = regexp.MustCompile("^\\| `([a-z0-9_]+)` \\|")
)

// metricsOf finds the metrics that code names, with the place of one naming. A name is written out whole, so that it can
// be found; the simulated engine and the measuring tools have their own.
func metricsOf(files []*goFile) map[string]string {
	out := map[string]string{}
	for _, f := range files {
		if f.test || strings.HasPrefix(f.dir, "bench") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				return true // the parser took it, so this cannot be
			}
			if name := metricName.FindString(text); name != "" {
				out[name] = f.at(lit.Pos())
			}
			return true
		})
	}
	return out
}

func checkMetrics(page string, code map[string]string) (wrong []string) {
	rows := map[string]bool{}
	for i, line := range strings.Split(page, "\n") {
		m := metricRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if rows[m[1]] {
			wrong = append(wrong, fmt.Sprintf("%s:%d: %s has a second row", metricsPage, i+1, m[1]))
		}
		rows[m[1]] = true
		if code[m[1]] == "" {
			wrong = append(wrong, fmt.Sprintf("%s:%d: no code names %s: take the row out", metricsPage, i+1, m[1]))
		}
	}
	for name, at := range code {
		if !rows[name] {
			wrong = append(wrong, fmt.Sprintf("%s: %s has no row in %s: add `| name | type | labels | meaning |`", at, name, metricsPage))
		}
		if strings.HasSuffix(name, "_") {
			wrong = append(wrong, fmt.Sprintf("%s: %s is put together from pieces: write metrics out, so that they can be found", at, name))
		}
		for _, unit := range []string{"_ms", "_milliseconds", "_minutes", "_kb", "_mb"} {
			if strings.HasSuffix(strings.TrimSuffix(name, "_total"), unit) {
				wrong = append(wrong, fmt.Sprintf("%s: %s has an odd unit: metrics are in seconds and bytes", at, name))
			}
		}
	}
	return wrong
}

func TestMetricsAreDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(rootDir, metricsPage))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range checkMetrics(string(page), metricsOf(mustRead(t).goFiles)) {
		t.Error(w)
	}
}

func TestMetricRuleBites(t *testing.T) {
	files := []*goFile{snippet(t, "p/p.go", "package p\nvar _ = []string{\"sluice_a_total\", \"sluice_b{x=%q}\", \"not sluice_c\"}\n"),
		snippet(t, "p/p_test.go", "package p\nvar _ = \"sluice_d\"\n"), snippet(t, "bench/b.go", "package bench\nvar _ = \"sluice_e\"\n")}
	code := metricsOf(files)
	if len(code) != 2 || code["sluice_a_total"] == "" || code["sluice_b"] == "" {
		t.Fatalf("%v", code)
	}
	const a, b = "| `sluice_a_total` | counter |\n", "| `sluice_b` | gauge |\n"
	for page, want := range map[string]int{a + b: 0, a: 1, "": 2, a + b + b: 1, a + b + "| `sluice_gone` | gauge |": 1} {
		if wrong := checkMetrics(page, code); len(wrong) != want {
			t.Errorf("%q: %d complaints, want %d: %q", page, len(wrong), want, wrong)
		}
	}
	if wrong := checkMetrics("", map[string]string{"sluice_x_ms": "p.go:1", "sluice_": "p.go:1"}); len(wrong) != 4 {
		t.Errorf("%q", wrong)
	}
}
