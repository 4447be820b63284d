package rules

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// exceptionsFile grants violations, one line "rule path count" each.
const exceptionsFile = "testdata/exceptions.txt"

var shrink = flag.Bool("shrink", false, "lower the exceptions to what is there; never raises one")

// exceptionKey names one granted line.
type exceptionKey struct{ rule, path string }

// exceptions is the ratchet's content.
type exceptions map[exceptionKey]int

func parseExceptions(body string) (exceptions, error) {
	out := exceptions{}
	for i, line := range strings.Split(body, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Fields(line)
		if len(parts) != 3 {
			return nil, fmt.Errorf("%s:%d: write rule, path and count", exceptionsFile, i+1)
		}
		n, err := strconv.Atoi(parts[2])
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s:%d: the count %q must be a number above 0", exceptionsFile, i+1, parts[2])
		}
		if !slices.Contains(ratcheted, parts[0]) {
			return nil, fmt.Errorf("%s:%d: %q is no rule with exceptions; they are %s", exceptionsFile, i+1, parts[0], strings.Join(ratcheted, ", "))
		}
		key := exceptionKey{parts[0], parts[1]}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("%s:%d: %s %s is there twice", exceptionsFile, i+1, key.rule, key.path)
		}
		out[key] = n
	}
	return out, nil
}

func (e exceptions) String() string {
	var b strings.Builder
	b.WriteString(exceptionsHead)
	keys := slices.SortedFunc(maps.Keys(e), func(a, b exceptionKey) int {
		if c := strings.Compare(a.rule, b.rule); c != 0 {
			return c
		}
		return strings.Compare(a.path, b.path)
	})
	for _, k := range keys {
		fmt.Fprintf(&b, "%s %s %d\n", k.rule, k.path, e[k])
	}
	return b.String()
}

const exceptionsHead = `# Violations that are known and granted: rule, file, count. It only shrinks:
# when a file got better, "make shrink" lowers its line. Nothing raises one but
# a person, who says why in the commit.
`

// judge compares findings with what is granted for one rule. The first result
// is what is wrong, the second what the ratchet should say now.
func (e exceptions) judge(rule string, found []finding) (wrong []string, now exceptions) {
	now = exceptions{}
	byPath := map[string][]string{}
	for _, f := range found {
		byPath[f.path] = append(byPath[f.path], f.text)
	}
	for _, p := range slices.Sorted(maps.Keys(byPath)) {
		texts, granted := byPath[p], e[exceptionKey{rule, p}]
		if len(texts) > granted {
			if granted > 0 {
				texts = append(texts, fmt.Sprintf("%s: %d are granted, %d are there", p, granted, len(texts)))
			}
			wrong = append(wrong, texts...)
		}
		if n := min(len(byPath[p]), granted); n > 0 {
			now[exceptionKey{rule, p}] = n
		}
	}
	for k, granted := range e {
		if k.rule == rule && len(byPath[k.path]) < granted {
			wrong = append(wrong, fmt.Sprintf("%s: %s needs %d exceptions, %d are granted: run `make shrink`", exceptionsFile, k.path, len(byPath[k.path]), granted))
		}
	}
	return wrong, now
}

// holdRatchet fails t for everything that the exceptions do not grant.
func holdRatchet(t *testing.T, rule string, found []finding) {
	t.Helper()
	body, err := os.ReadFile(exceptionsFile)
	if err != nil {
		t.Fatal(err)
	}
	granted, err := parseExceptions(string(body))
	if err != nil {
		t.Fatal(err)
	}
	wrong, now := granted.judge(rule, found)
	if *shrink {
		for k, n := range granted {
			if k.rule != rule {
				now[k] = n
			}
		}
		if text := now.String(); text != string(body) {
			if err := os.WriteFile(exceptionsFile, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: lowered for rule %s", exceptionsFile, rule)
		}
		return
	}
	for _, w := range wrong {
		t.Error(w)
	}
	t.Logf("rule %s: %d found, %d granted", rule, len(found), sum(granted, rule))
}

func sum(e exceptions, rule string) int {
	n := 0
	for k, v := range e {
		if k.rule == rule {
			n += v
		}
	}
	return n
}

// hold fails t for every finding: a rule without exceptions.
func hold(t *testing.T, found []finding) {
	t.Helper()
	for _, f := range found {
		t.Error(f.text)
	}
}

func TestRatchetOnlyShrinks(t *testing.T) {
	granted, err := parseExceptions(exceptionsHead + "long-file a.go 2\nlong-file gone.go 1\nlong-function a.go 5\n")
	if err != nil {
		t.Fatal(err)
	}
	one := finding{"a.go", "one"}
	for _, c := range []struct {
		name  string
		found []finding
		wrong int
		now   int // what a.go is granted after a shrink
	}{
		{"as granted", []finding{one, one}, 1, 2},        // gone.go's line is stale
		{"more", []finding{one, one, one}, 3 + 1 + 1, 2}, // never raised
		{"less", []finding{one}, 1 + 1, 1},
		{"none", nil, 1 + 1, 0},
		{"a new file", []finding{one, one, {"b.go", "new"}}, 1 + 1, 2},
	} {
		wrong, now := granted.judge("long-file", c.found)
		if len(wrong) != c.wrong {
			t.Errorf("%s: %d complaints, want %d: %q", c.name, len(wrong), c.wrong, wrong)
		}
		if got := now[exceptionKey{"long-file", "a.go"}]; got != c.now {
			t.Errorf("%s: shrunk to %d, want %d", c.name, got, c.now)
		}
		if now[exceptionKey{"long-file", "b.go"}] != 0 {
			t.Errorf("%s: a new file was granted an exception", c.name)
		}
	}
}

func TestExceptionsAreReadStrictly(t *testing.T) {
	for _, bad := range []string{"long-file a.go", "long-file a.go none", "long-file a.go 0", "any a.go 1", "long-file a.go 1\nlong-file a.go 2"} {
		if _, err := parseExceptions(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	body, err := os.ReadFile(exceptionsFile)
	if err != nil {
		t.Fatal(err)
	}
	e, err := parseExceptions(string(body))
	if err != nil {
		t.Fatal(err)
	}
	if e.String() != string(body) && !*shrink {
		t.Errorf("%s is not in the form that `make shrink` writes: sorted by rule and path, below its heading", exceptionsFile)
	}
}
