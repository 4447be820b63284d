package rules

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// casesPage has a row for each field case of the gateway.
const casesPage = "docs/gateway-cases.md"

// Cases that the page must have, by area and number, and the mark of a row that no test holds yet.
var caseAreas = map[string]int{"GW": 35, "SEC": 11}

const noTest = "–"

var (
	caseRow  = regexp.MustCompile(`^\| ([A-Z]+-\d\d) \| (.+) \| (.+) \|$`)
	caseTest = regexp.MustCompile("`(Test\\w+)`")
	caseName = regexp.MustCompile(`^TestCase_([A-Z]+)_(\d\d)_`)
)

// checkCases holds the page to the tests: each case has one row, each test that a row names exists, and each test named
// after a case of these areas stands in its row.
func checkCases(page string, tests map[string]bool) (wrong []string, untested []string) {
	rows := map[string]string{}
	for i, line := range strings.Split(page, "\n") {
		m := caseRow.FindStringSubmatch(line)
		switch {
		case m == nil && strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| id "):
			wrong = append(wrong, fmt.Sprintf("%s:%d: a row is `| id | behaviour | test |`", casesPage, i+1))
		case m == nil:
		case rows[m[1]] != "":
			wrong = append(wrong, fmt.Sprintf("%s:%d: %s has a second row: keep one", casesPage, i+1, m[1]))
		default:
			rows[m[1]] = m[3]
			named := caseTest.FindAllStringSubmatch(m[3], -1)
			if len(named) == 0 && m[3] != noTest {
				wrong = append(wrong, fmt.Sprintf("%s:%d: %s names no test: write `TestName`, or %s", casesPage, i+1, m[1], noTest))
			}
			for _, n := range named {
				if !tests[n[1]] {
					wrong = append(wrong, fmt.Sprintf("%s:%d: there is no %s: name the test that holds %s", casesPage, i+1, n[1], m[1]))
				}
			}
		}
	}
	for area, n := range caseAreas {
		for i := range n {
			id := fmt.Sprintf("%s-%02d", area, i+1)
			switch rows[id] {
			case "":
				wrong = append(wrong, fmt.Sprintf("%s: %s has no row", casesPage, id))
			case noTest:
				untested = append(untested, id)
			}
		}
	}
	for name := range tests {
		m := caseName.FindStringSubmatch(name)
		if m == nil || caseAreas[m[1]] == 0 {
			continue
		}
		if id := m[1] + "-" + m[2]; !strings.Contains(rows[id], "`"+name+"`") {
			wrong = append(wrong, fmt.Sprintf("%s: the row of %s does not name %s: add it", casesPage, id, name))
		}
	}
	return wrong, untested
}

// testNames are the names of all test functions.
func testNames(files []*goFile) map[string]bool {
	names := map[string]bool{}
	for _, f := range files {
		for _, decl := range f.ast.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok && f.test && d.Recv == nil && strings.HasPrefix(d.Name.Name, "Test") {
				names[d.Name.Name] = true
			}
		}
	}
	return names
}

func TestFieldCasesHaveRowsAndTests(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(rootDir, casesPage))
	if err != nil {
		t.Fatal(err)
	}
	wrong, untested := checkCases(string(page), testNames(mustRead(t).goFiles))
	for _, w := range wrong {
		t.Error(w)
	}
	t.Logf("not held by a test yet: %v", untested)
}

func TestCaseRuleBites(t *testing.T) {
	whole := ""
	for area, n := range caseAreas {
		for i := range n {
			whole += fmt.Sprintf("| %s-%02d | b | – |\n", area, i+1)
		}
	}
	tests := map[string]bool{"TestCase_GW_01_a": true, "TestOther": true, "TestCase_ND_01_b": true}
	for name, c := range map[string]struct {
		from, to string
		wrong    int
	}{
		"as it should be":   {"| GW-01 | b | – |", "| GW-01 | b | `TestCase_GW_01_a`, `TestOther` (p) |", 0},
		"a row too few":     {"| GW-01 | b | – |\n", "", 2}, // no row, and a test without one
		"a test that is no": {"| GW-01 | b | – |", "| GW-01 | b | `TestCase_GW_01_a`, `TestGone` |", 1},
		"a test unnamed":    {"| GW-02 | b | – |", "| GW-02 | b | `TestOther` |", 1},
		"no test named":     {"| GW-01 | b | – |", "| GW-01 | b | soon |", 2},
		"twice":             {"| GW-01 | b | – |", "| GW-01 | b | `TestCase_GW_01_a` |\n| GW-01 | b | – |", 1},
		"no row at all":     {"| GW-01 | b | – |", "| GW-01 | b | `TestCase_GW_01_a` |\n| what | else |", 1},
	} {
		if wrong, _ := checkCases(strings.Replace(whole, c.from, c.to, 1), tests); len(wrong) != c.wrong {
			t.Errorf("%s: %d complaints, want %d: %q", name, len(wrong), c.wrong, wrong)
		}
	}
}
