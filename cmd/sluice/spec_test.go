package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sluice/nodes/registry"
	"sluice/slo"
)

// The table of fields is complete: each field of the API has its name in the
// files, its type fits, and the documents describe it.
func TestFieldsAreComplete(t *testing.T) {
	for kind, typ := range map[string]reflect.Type{kindModel: reflect.TypeFor[registry.ModelSpec](), kindJob: reflect.TypeFor[registry.JobSpec](), kindTenant: reflect.TypeFor[registry.TenantSpec]()} {
		checkFields(t, kind, fields[kind], typ)
	}
	checkFields(t, "objective", objectiveFields, reflect.TypeFor[slo.Objective]())
	for file, kinds := range map[string][]string{"model-yaml.md": {kindModel}, "job-yaml.md": {kindJob, kindTenant}} {
		doc, err := os.ReadFile(filepath.Join("..", "..", "docs", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range kinds {
			known := fields[kind]
			if kind == kindModel {
				known = append(slices.Clone(known), objectiveFields...)
			}
			for _, f := range known {
				if !strings.Contains(string(doc), "\n| `"+f.name+"` |") {
					t.Errorf("docs/%s does not describe %s of %s", file, f.name, kind)
				}
			}
		}
	}
}

func checkFields(t *testing.T, kind string, known []field, typ reflect.Type) {
	t.Helper()
	var missing []string
	inType := slices.DeleteFunc(reflect.VisibleFields(typ), func(f reflect.StructField) bool { return f.Anonymous })
	for _, f := range inType {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !slices.ContainsFunc(known, func(f field) bool { return f.json == name }) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 || len(known) != len(inType) {
		t.Errorf("%s: %d fields in the table, %d in the type; missing %v", kind, len(known), len(inType), missing)
	}
	for _, f := range known {
		if f.name != f.json && fileNames.Replace(f.json) != f.name {
			t.Errorf("%s: messages do not turn %s into %s", kind, f.json, f.name)
		}
	}
}

func TestExamplesAndDocumentsParse(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "*.yaml"))
	if err != nil || len(files) < 6 {
		t.Fatalf("%v %v", files, err)
	}
	for _, file := range files {
		if _, err := readSpecs(file, nil, ""); err != nil {
			t.Error(err)
		}
	}
	for file, kind := range map[string]string{"model-yaml.md": kindModel, "job-yaml.md": kindJob} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "docs", file))
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range strings.Split(string(raw), "```yaml\n")[1:] {
			text, _, _ := strings.Cut(block, "```")
			if _, err := parseSpecs(file, []byte(text), kind); err != nil {
				t.Errorf("block %d: %v", i, err)
			}
		}
	}
}

func TestModelFile(t *testing.T) {
	specs, err := parseSpecs("m.yaml", []byte(`
name: chat
command: [engine, --port, "{{port}}", --seed, 007, --flag, true]
env: {A: 1.50, B: "x y", C: on}
activeMemory: 24GiB
residentMemory: 1.5 GiB
startTimeout: 1m30s
objectives:
  - {metric: ttft, quantile: 0.9, threshold: 500ms}
---
# nothing here
---
kind: Model
name: other
url: http://127.0.0.1:9000
`), kindModel)
	if err != nil || len(specs) != 2 {
		t.Fatal(specs, err)
	}
	m := specs[0].Model
	if m.ActiveBytes != 24<<30 || m.ResidentBytes != 3<<29 || m.StartTimeoutMs != 90_000 || m.Objectives[0] != (slo.Objective{Metric: slo.TTFT, Quantile: 0.9, ThresholdMs: 500}) {
		t.Errorf("%+v", m)
	}
	// Numbers in commands and variables stay as they are written.
	if got := strings.Join(m.Command, " "); got != "engine --port {{port}} --seed 007 --flag true" {
		t.Errorf("command %q", got)
	}
	if m.Env["A"] != "1.50" || m.Env["B"] != "x y" || m.Env["C"] != "on" {
		t.Errorf("env %v", m.Env)
	}
	if m.MaxInFlight != 64 || specs[1].where != "m.yaml:13" {
		t.Errorf("%d %q", m.MaxInFlight, specs[1].where)
	}
}

func TestSpecFaults(t *testing.T) {
	const head = "name: chat\ncommand: [e, \"{{port}}\"]\n" // two lines
	for name, c := range map[string]struct{ text, want string }{
		"unknown":           {head + "minReplica: 1\n", "x.yaml:3:1: minReplica: there is no such field; did you mean minReplicas?"},
		"behind marker":     {head + "--- {name: x}\n", "x.yaml:3:1: something stands behind ---"},
		"first token":       {head + "requestTimeout: 1s\nfirstToken: 2s\n", "x.yaml:4:13: firstToken: 2000 is above requestTimeout 1000"},
		"far off":           {head + "colour: red\n", "x.yaml:3:1: colour: there is no such field; known fields: activeMemory, "},
		"the API's name":    {head + "activeBytes: 5\n", "x.yaml:3:1: activeBytes: there is no such field; did you mean activeMemory?"},
		"no unit":           {head + "activeMemory: 24\n", `x.yaml:3:15: activeMemory: "24" does not fit; write a size with its unit, as 24GiB or 500MiB`},
		"wrong unit":        {head + "activeMemory: 24GIB\n", "write a size with its unit"},
		"time without unit": {head + "startTimeout: 30\n", `x.yaml:3:15: startTimeout: "30" does not fit; write a time with its unit`},
		"text as number":    {head + "minReplicas: two\n", `x.yaml:3:14: minReplicas: "two" does not fit; write a whole number`},
		"fraction":          {head + "minReplicas: 1.5\n", "x.yaml:3:14: minReplicas"},
		"number as text":    {"name: 123\nurl: http://h:1\n", `x.yaml:1:7: name: "123" does not fit; write text; put numbers`},
		"nothing":           {head + "tenant:\n", "tenant: nothing does not fit"},
		"list as text":      {head + "tenant: [a]\n", "x.yaml:3:9: tenant: a list does not fit"},
		"text as list":      {"name: chat\ncommand: engine --port 1\n", "x.yaml:2:10: command: "},
		"map in list":       {"name: chat\ncommand: [e, {a: b}]\n", "x.yaml:2:14: command[1]: a map does not fit"},
		"braces":            {"name: chat\ncommand: [e, {{port}}]\n", "x.yaml:2:"},
		"twice":             {head + "name: other\n", "x.yaml:3:1: mapping key \"name\" already defined"},
		"not closed":        {"name: chat\ncommand: [e\n", "x.yaml:2:"},
		"tab":               {"name: chat\n\turl: x\n", "x.yaml:2:"},
		"anchor":            {"name: &a chat\nurl: http://h:1\nengineModel: *a\n", "a YAML anchor or alias does not fit"},
		"tag":               {"name: !!str chat\nurl: http://h:1\n", "a YAML tag does not fit"},
		"no map":            {"- name: chat\n", "the document is no map"},
		"empty":             {"# nothing\n", "holds no document"},
		"kind":              {"kind: Job\n" + head, "x.yaml:1:7: kind: is Job, and this verb takes Model; use `sluice apply -f`"},
		"no kind":           {"kind: Pod\n" + head, "x.yaml:1:7: kind: is no kind of document"},
		"rule":              {head + "minReplicas: 3\nmaxReplicas: 2\n", "x.yaml:3:14: minReplicas: 3 is above maxReplicas 2"},
		"rule in file's":    {head + "activeMemory: 1GiB\nresidentMemory: 2GiB\n", "x.yaml:4:17: residentMemory: 2147483648 is above activeMemory"},
		"missing":           {"name: chat\nminReplicas: 1\n", "x.yaml:1:1: command: is missing"},
		"quantile":          {head + "objectives:\n  - {metric: ttft, quantile: 90, threshold: 1s}\n", "x.yaml:4:30: objectives[0].quantile: 90 is no quantile"},
		"metric":            {head + "objectives:\n  - {metric: latency, quantile: 0.9, threshold: 1s}\n", `x.yaml:4:14: objectives[0].metric: "latency" does not fit; write ttft, itl or e2e`},
		"objective short":   {head + "objectives:\n  - {metric: ttft, quantile: 0.9}\n", "objectives[0].threshold: is missing"},
		"objective unknown": {head + "objectives:\n  - {metric: ttft, quantile: 0.9, thresholdMs: 5}\n", "did you mean threshold?"},
		"second document":   {head + "---\nname: X\nurl: http://h:1\n", "x.yaml:4:7: name: \"X\" is not a name"},
		"metadata":          {"name: m\nurl: http://169.254.169.254/\n", "x.yaml:2:6: url: is a link-local address"},
		"inf":               {head + "objectives:\n  - {metric: ttft, quantile: .nan, threshold: 1s}\n", "objectives[0].quantile"},
		"env list":          {head + "env: [A=1]\n", "x.yaml:3:6: env: a list does not fit; write a map"},
		"env value":         {head + "env:\n  A: [1]\n", "x.yaml:4:6: env.A: a list does not fit"},
		"env of the agent":  {head + "env:\n  RANK: 1\n", "x.yaml:4:9: env.RANK: is set by the agent"},
	} {
		_, err := parseSpecs("x.yaml", []byte(c.text), kindModel)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\n\twant %s", name, err, c.want)
		}
	}
	// All faults at once, in the order of lines.
	_, err := parseSpecs("x.yaml", []byte("nam: chat\nurl: http://h:1\nminReplicas: x\n"), kindModel)
	if err == nil || len(strings.Split(err.Error(), "\n")) != 2 {
		t.Errorf("%v", err)
	}
	if _, err := parseSpecs("x.yaml", []byte("name: chat\nurl: http://h:1\n"), ""); err == nil || !strings.Contains(err.Error(), "kind: is missing") {
		t.Errorf("%v", err)
	}
}

func TestSpecFileLimits(t *testing.T) {
	big := filepath.Join(t.TempDir(), "big.yaml")
	if err := os.WriteFile(big, []byte("name: x\nurl: http://h:1\n#"+strings.Repeat("x", maxSpecFile)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readSpecs(big, nil, kindModel); err == nil || !strings.Contains(err.Error(), "split it") {
		t.Errorf("%v", err)
	}
	for _, deep := range []string{strings.Repeat("[", maxSpecFile-20), "a: " + strings.Repeat("{a: ", maxSpecFile/5), strings.Repeat("- ", maxSpecFile/2-20),
		strings.Repeat("? ", 1000), strings.Repeat("a: 1\n", maxSpecFile/6), strings.Repeat("[\n", 1000), "a: " + strings.Repeat("[", 1000) + strings.Repeat("]", 1000), strings.Repeat("---\na: 1\n", maxSpecFile/10)} {
		if _, err := parseSpecs("deep.yaml", []byte(deep), kindModel); err == nil {
			t.Error("a deep document is accepted")
		}
	}
}

// No text makes the reader panic, and every fault names a place.
func FuzzSpecs(f *testing.F) {
	f.Add("name: chat\nurl: http://h:1\n")
	f.Add("kind: Job\nname: x\ncommand: [a, {b: *c}]\nobjectives: [1, {metric: [}]\n")
	f.Add("a: &a [*a]\n---\n- ? x\n  : |\n   y\n")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		_, err := parseSpecs("f.yaml", []byte(text), "")
		if err != nil && !strings.Contains(err.Error(), "f.yaml") {
			t.Errorf("%v", err)
		}
	})
}

func TestUnits(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "1B": 1, "24GiB": 24 << 30, "1.5GiB": 3 << 29, "80GB": 80e9, " 2 MiB ": 2 << 20, "1TiB": 1 << 40,
		"": -1, "24": -1, "24G": -1, "GiB": -1, "-1GiB": -1, "1e9GiB": -1, "9999999TiB": -1, "1.2.3GiB": -1} {
		if got, err := parseSize(text); (want < 0) != (err != nil) || err == nil && got != want {
			t.Errorf("size %q: %d %v, want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]int64{"0": 0, "30s": 30_000, "500ms": 500, "2m": 120_000, "1h30m": 5_400_000, "": -1, "30": -1, "-5s": -1, "1us": -1, "1d": -1} {
		if got, err := parseTime(text); (want < 0) != (err != nil) || err == nil && got != want {
			t.Errorf("time %q: %d %v, want %d", text, got, err, want)
		}
	}
}

// What the examples and the help show must not fail on any number of GPUs that is free.
func TestTrainerFitsTheExamples(t *testing.T) {
	n, err := newTrainerCmd().Flags().GetInt("micro-batches")
	if err != nil {
		t.Fatal(err)
	}
	for _, world := range []int{1, 2, 3, 4, 6, 8} {
		if n%world != 0 {
			t.Errorf("%d ranks cannot share the trainer's %d micro-batches", world, n)
		}
	}
}
