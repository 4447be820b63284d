package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestMembersAndElements(t *testing.T) {
	walked := func(raw string) string {
		var b strings.Builder
		m := ReadMembers([]byte(raw))
		for m.Next() {
			fmt.Fprintf(&b, "%s=%s;", m.Name, m.Value)
			e := ReadElements(m.Value)
			for e.Next() {
				fmt.Fprintf(&b, "%d:%s;", e.Index, e.Value)
			}
			if m.Value[0] == '[' && e.Malformed() {
				b.WriteString("!")
			}
		}
		if m.Malformed() {
			b.WriteString("malformed")
		}
		return b.String()
	}
	long := strings.Repeat(`\u0061`, maxNameBytes)
	for raw, want := range map[string]string{
		`{}`:                                   "",
		` { "a" : 1 , "b":[ ] } `:              "a=1;b=[ ];",
		`{"a":[ 1, "x" ,{"y":[2]} ],"b":null}`: `a=[ 1, "x" ,{"y":[2]} ];0:1;1:"x";2:{"y":[2]};b=null;`,
		`{"m\u006fdel":"x"}`:                   `model="x";`,
		`{"` + long + `":1}`:                   long + "=1;",
		`[]`:                                   "malformed",
		``:                                     "malformed",
		`{`:                                    "malformed",
		`{"a":1,}`:                             "a=1;malformed",
		`{"a":[1,]}`:                           "malformed",
		`{"a":` + strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1) + `}`: "malformed",
	} {
		if got := walked(raw); got != want {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
	}
}

func TestInsideAndCount(t *testing.T) {
	for raw, want := range map[string]string{`"a\n"`: `a\n true`, `""`: " true", `1`: " false", `"`: " false", ``: " false"} {
		if inside, ok := Inside([]byte(raw)); fmt.Sprintf("%s %v", inside, ok) != want {
			t.Errorf("%s: %q %v", raw, inside, ok)
		}
	}
	for raw, want := range map[string]string{`12`: "12 true", `0`: "0 true", `1.5`: "1 true", `-1`: "0 false", `"1"`: "0 false", ``: "0 false"} {
		if n, ok := Count([]byte(raw)); fmt.Sprintf("%d %v", n, ok) != want {
			t.Errorf("%s: %d %v", raw, n, ok)
		}
	}
}

// FuzzMembers holds that whatever the standard library reads as an object is walked to its end.
func FuzzMembers(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b":"c\""}],"d":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := ReadMembers(raw)
		n := 0
		for m.Next() {
			if n++; json.Valid(raw) && !json.Valid(m.Value) {
				t.Fatalf("%q has the value %q", raw, m.Value)
			}
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) == nil && object != nil && n < len(object) && strings.Count(string(raw), "[")+strings.Count(string(raw), "{") <= MaxDepth {
			t.Fatalf("%q: %d members of %d", raw, n, len(object))
		}
	})
}
