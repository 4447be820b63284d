package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"sluice/nodes/registry"
)

// Limits of spec files.
const (
	maxSpecFile  = 256 << 10 // bytes
	maxDocuments = 1000
)

// spec is one document of a spec file; one of the three is set, with defaults
// filled in and checked.
type spec struct {
	where  string // file:line
	Model  *registry.ModelSpec
	Job    *registry.JobSpec
	Tenant *registry.TenantSpec
}

// Kinds of documents, the values of `kind:`.
const (
	kindModel  = "Model"
	kindJob    = "Job"
	kindTenant = "Tenant"
)

// fieldType is what a field of a spec file may hold.
type fieldType int

const (
	textField       fieldType = iota
	textsField                // list of texts; numbers and true, false are taken as written
	envField                  // map of texts, the same
	intField                  //
	numberField               //
	sizeField                 // 24GiB
	timeField                 // 30s, becomes ms
	metricField               // ttft, itl, e2e
	objectivesField           // list of maps, see objectiveFields
)

// field is a field of a spec file: its name there, and in the API. They differ
// where the API's name ends in a unit and the file takes the unit in the value.
type field struct {
	name, json string
	is         fieldType
}

var objectiveFields = []field{{"metric", "metric", metricField}, {"quantile", "quantile", numberField}, {"threshold", "thresholdMs", timeField}}

// fields lists every field of every kind. A test holds it complete against the
// types of nodes/registry and docs/*-yaml.md complete against it.
var fields = map[string][]field{
	kindModel: {
		{"name", "name", textField}, {"tenant", "tenant", textField}, {"aliases", "aliases", textsField},
		{"command", "command", textsField}, {"url", "url", textField}, {"env", "env", envField},
		{"workdir", "workdir", textField}, {"user", "user", textField}, {"engineModel", "engineModel", textField},
		{"adapters", "adapters", textsField}, {"speaks", "speaks", textsField},
		{"gpusPerReplica", "gpusPerReplica", intField}, {"activeMemory", "activeBytes", sizeField},
		{"residentMemory", "residentBytes", sizeField}, {"sleep", "sleep", textField}, {"healthPath", "healthPath", textField},
		{"minReplicas", "minReplicas", intField}, {"maxReplicas", "maxReplicas", intField},
		{"guaranteeGpus", "guaranteeGpus", intField}, {"maxInFlight", "maxInFlight", intField},
		{"objectives", "objectives", objectivesField}, {"startTimeout", "startTimeoutMs", timeField},
		{"wakeTimeout", "wakeTimeoutMs", timeField}, {"drainTimeout", "drainTimeoutMs", timeField},
		{"requestTimeout", "requestTimeoutMs", timeField}, {"firstToken", "firstTokenMs", timeField},
	},
	kindJob: {
		{"name", "name", textField}, {"tenant", "tenant", textField}, {"command", "command", textsField}, {"env", "env", envField},
		{"workdir", "workdir", textField}, {"user", "user", textField}, {"image", "image", textField}, {"checkpointDir", "checkpointDir", textField},
		{"minWorld", "minWorld", intField}, {"maxWorld", "maxWorld", intField}, {"worldMultiple", "worldMultiple", intField},
		{"gpusPerRank", "gpusPerRank", intField}, {"launcher", "launcher", textField}, {"protocol", "protocol", textField},
		{"stopSignal", "stopSignal", textField}, {"grace", "graceMs", timeField}, {"activeMemory", "activeBytes", sizeField},
		{"residentMemory", "residentBytes", sizeField}, {"priority", "priority", intField}, {"maxRestarts", "maxRestarts", intField},
		{"startTimeout", "startTimeoutMs", timeField},
	},
	kindTenant: {
		{"name", "name", textField}, {"guaranteeGpus", "guaranteeGpus", intField}, {"limitGpus", "limitGpus", intField},
		{"weight", "weight", numberField}, {"requestsPerMin", "requestsPerMin", intField}, {"tokensPerMin", "tokensPerMin", intField},
		{"concurrent", "concurrent", intField}, {"tokensPerDay", "tokensPerDay", intField}, {"tokensPerMonth", "tokensPerMonth", intField},
	},
}

// fileNames turns names of the API in a message into those of the files.
var fileNames = strings.NewReplacer("activeBytes", "activeMemory", "residentBytes", "residentMemory", "startTimeoutMs", "startTimeout",
	"wakeTimeoutMs", "wakeTimeout", "drainTimeoutMs", "drainTimeout", "requestTimeoutMs", "requestTimeout", "firstTokenMs", "firstToken",
	"graceMs", "grace", "thresholdMs", "threshold")

// specError is one thing wrong in a spec file.
type specError struct {
	file         string
	line, column int
	field        string
	problem      string
	remedy       string
}

// Error is "file:line:column: field: problem; remedy".
func (e *specError) Error() string {
	text := fmt.Sprintf("%s:%d:%d: ", e.file, e.line, e.column)
	if e.field != "" {
		text += e.field + ": "
	}
	text += e.problem
	if e.remedy != "" {
		text += "; " + e.remedy
	}
	return text
}

// specErrors are all that is wrong in a file, in the order of its lines.
type specErrors []*specError

func (s specErrors) Error() string {
	lines := make([]string, len(s))
	for i, e := range s {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// readSpecs reads all documents of a file ("-" is in). want is the only kind
// accepted and the kind of documents that do not name theirs; empty accepts
// all, each naming its own.
func readSpecs(file string, in io.Reader, want string) ([]spec, error) {
	name, raw, err := readSpecFile(file, in)
	if err != nil {
		return nil, err
	}
	return parseSpecs(name, raw, want)
}

func readSpecFile(file string, in io.Reader) (name string, raw []byte, err error) {
	name = file
	if file == "-" {
		name = "stdin"
	} else {
		f, err := os.Open(file)
		if err != nil {
			return "", nil, fmt.Errorf("spec file: %w", err)
		}
		defer f.Close()
		in = f
	}
	raw, err = io.ReadAll(io.LimitReader(in, maxSpecFile+1))
	if err != nil {
		return "", nil, fmt.Errorf("spec file %s: %w", name, err)
	}
	if len(raw) > maxSpecFile {
		return "", nil, fmt.Errorf("spec file %s has more than %d bytes; split it", name, maxSpecFile)
	}
	return name, raw, nil
}

// finish turns a checked document into a spec and applies defaults and the
// registry's own rules.
func (d *document) finish() *spec {
	s := &spec{where: fmt.Sprintf("%s:%d", d.file, d.line)}
	var into any
	var check func() []registry.FieldError
	switch d.kind {
	case kindModel:
		s.Model = &registry.ModelSpec{}
		into, check = s.Model, func() []registry.FieldError { s.Model.Default(); return s.Model.Validate() }
	case kindJob:
		s.Job = &registry.JobSpec{}
		into, check = s.Job, func() []registry.FieldError { s.Job.Default(); return s.Job.Validate() }
	default:
		s.Tenant = &registry.TenantSpec{}
		into, check = s.Tenant, func() []registry.FieldError { s.Tenant.Default(); return s.Tenant.Validate() }
	}
	raw, err := json.Marshal(d.values)
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		err = dec.Decode(into)
	}
	if err != nil {
		// Every value was checked by type: this is a hole in the table above.
		d.fault(d.line, d.column, "", err.Error(), "report this as a fault of sluice")
		return nil
	}
	for _, f := range check() {
		line, column := d.position(f.Field)
		d.fault(line, column, fileNames.Replace(f.Field), fileNames.Replace(f.Problem), fileNames.Replace(f.Remedy))
	}
	return s
}

// position finds where a field of the API's name stands: itself, or the
// nearest that holds it, or the document.
func (d *document) position(field string) (line, column int) {
	for field != "" {
		if p, ok := d.at[field]; ok {
			return p[0], p[1]
		}
		field = field[:max(0, strings.LastIndexAny(field, ".["))]
	}
	return d.line, d.column
}

// near finds the known name that s was probably meant to be; "" when none is near.
func near(s string, known []field) string {
	best, at := "", 3
	for _, f := range known {
		if f.json == s {
			return f.name
		}
		if n := distance(strings.ToLower(s), strings.ToLower(f.name)); n < at {
			best, at = f.name, n
		}
	}
	return best
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func names(known []field) string {
	out := make([]string, len(known))
	for i, f := range known {
		out[i] = f.name
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
