package rules

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// impurePackages must not be imported by a decision core: what they offer
// comes in as an argument. The tree below each is meant too.
var impurePackages = map[string]string{
	"sync":                               "a core has one owner and needs no lock",
	"os":                                 "files and processes belong to the caller",
	"io/ioutil":                          "files belong to the caller",
	"net":                                "sockets belong to the caller",
	"log":                                "return what happened; the caller logs",
	"math/rand":                          "take a random number as an argument",
	"crypto/rand":                        "take a random number as an argument",
	"context":                            "a decision is not cancelled in mid-way",
	"syscall":                            "the system belongs to the caller",
	"golang.org/x/sys":                   "the system belongs to the caller",
	"unsafe":                             "a core is plain Go",
	"runtime":                            "a core does not see the machine that it runs on",
	"github.com/VictoriaMetrics/metrics": "return what happened; the caller counts",
}

// pureNames are the parts of an impure package that only compute.
var pureNames = map[string][]string{
	"net": {"JoinHostPort", "SplitHostPort", "ParseIP", "IP"},
}

// purePackages lie below an impure one and compute only.
var purePackages = []string{"net/url", "net/netip", "net/textproto"}

// clockNames are the parts of package time that read a clock or wait for one.
// Durations and their arithmetic may be used.
var clockNames = []string{
	"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer", "Timer", "Ticker", "Local", "LoadLocation",
}

// checkPurity finds what a decision core must not have.
func checkPurity(f *goFile) []finding {
	var out []finding
	complain := func(pos token.Pos, what, remedy string) {
		out = append(out, finding{f.path, fmt.Sprintf("%s: %s in a decision core: %s", f.at(pos), what, remedy)})
	}
	for _, spec := range f.ast.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil || anyMatches(purePackages, imported) || usesOnly(f, imported, pureNames[imported]) {
			continue
		}
		for pkg, remedy := range impurePackages {
			if matches(pkg+"/...", imported) {
				complain(spec.Pos(), imported, remedy)
			}
		}
	}
	clock := importName(f, "time")
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			complain(n.Pos(), "a goroutine", "the caller owns concurrency")
		case *ast.ChanType:
			complain(n.Pos(), "a channel", "take arguments, return results")
		case *ast.SelectStmt:
			complain(n.Pos(), "a select", "take arguments, return results")
		case *ast.SendStmt:
			complain(n.Pos(), "a send", "take arguments, return results")
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				complain(n.Pos(), "a receive", "take arguments, return results")
			}
		case *ast.SelectorExpr:
			if id, ok := n.X.(*ast.Ident); ok && clock != "" && id.Name == clock {
				for _, name := range clockNames {
					if n.Sel.Name == name {
						complain(n.Pos(), "time."+name, "take nowMs as an argument")
					}
				}
			}
		}
		return true
	})
	return out
}

// usesOnly tells whether all that f uses of a package is among names.
func usesOnly(f *goFile, pkg string, names []string) bool {
	known := importName(f, pkg)
	if len(names) == 0 || known == "_" || known == "." {
		return false
	}
	only := true
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && isSelector(s, known, s.Sel.Name) {
			only = only && slices.Contains(names, s.Sel.Name)
		}
		return only
	})
	return only
}

// importName is the name by which the file knows a package, "" if it does not.
func importName(f *goFile, pkg string) string {
	for _, spec := range f.ast.Imports {
		if spec.Path.Value != strconv.Quote(pkg) {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return pkg[strings.LastIndex(pkg, "/")+1:]
	}
	return ""
}

func TestCoresArePure(t *testing.T) {
	l := mustReadLayers(t)
	cores := map[string]int{}
	for _, f := range mustRead(t).code() {
		if r := l.roomOf(f.dir); r == nil || !r.core {
			continue
		}
		cores[f.dir]++
		hold(t, checkPurity(f))
	}
	t.Logf("%d cores: %v", len(cores), cores)
}

func TestPurityBites(t *testing.T) {
	for name, body := range map[string]string{
		"goroutine":     "func f() { go f() }",
		"channel":       "var c chan int",
		"select":        "func f() { select {} }",
		"send":          "func f(c C) { c <- 1 }",
		"receive":       "func f(c C) { <-c }",
		"lock":          "import \"sync\"\nvar mu sync.Mutex",
		"atomic":        "import \"sync/atomic\"\nvar n atomic.Int64",
		"file":          "import \"os\"\nvar _ = os.Getpid",
		"socket":        "import \"net/http\"\nvar _ = http.StatusOK",
		"dial":          "import \"net\"\nvar _, _ = net.JoinHostPort, net.Dial",
		"logger":        "import \"log/slog\"\nvar _ = slog.Default",
		"random":        "import \"math/rand/v2\"\nvar _ = rand.Int",
		"metric":        "import \"github.com/VictoriaMetrics/metrics\"\nvar _ = metrics.NewCounter",
		"clock":         "import \"time\"\nvar _ = time.Now",
		"renamed clock": "import t \"time\"\nvar _ = t.Since",
		"timer":         "import \"time\"\nvar _ *time.Timer",
	} {
		if len(checkPurity(snippet(t, "slo/x.go", "package slo\n"+body+"\n"))) == 0 {
			t.Errorf("%s: not found in %q", name, body)
		}
	}
	pure := "package slo\nimport (\n\"math\"\n\"net\"\n\"net/netip\"\n\"time\"\n)\nconst tick = 5 * time.Second\nvar _ netip.Addr\nvar _ = net.JoinHostPort\n" +
		"func f(d time.Duration) float64 { return math.Abs(d.Seconds()) }\n"
	hold(t, checkPurity(snippet(t, "slo/x.go", pure)))
}
