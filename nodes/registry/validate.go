package registry

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"sluice/nodes"
	"sluice/slo"
)

// Limits of a spec. A spec beyond one of them is refused by Validate.
const (
	MaxNameLen     = 63
	MaxAliasLen    = 128
	MaxAliases     = 32
	MaxAdapters    = 256
	MaxArgs        = 512
	MaxArgLen      = 32 << 10
	MaxEnv         = 256
	MaxObjectives  = 16
	MaxReplicas    = 4096
	MaxWorldSize   = 65536
	MaxGPUsPerUnit = 64 // of one replica or one rank: more do not fit a node
	MaxBytes       = 1 << 50
	MaxTimeoutMs   = 24 * 3600 * 1000
	MaxPriority    = 1000
	MaxRestarts    = 1000
)

// DefaultTenant owns what names no tenant.
const DefaultTenant = "default"

// PortMark is replaced by the replica's port in command and env.
const PortMark = "{{port}}"

// FieldError is one thing wrong with a spec: where (the JSON name, "env.HOME",
// "objectives[1].quantile"), what, and what to write instead.
type FieldError struct {
	Field   string `json:"field"`
	Problem string `json:"problem"`
	Remedy  string `json:"remedy"`
}

// Error is "field: problem; remedy".
func (e FieldError) Error() string { return e.Field + ": " + e.Problem + "; " + e.Remedy }

// faults collects field errors.
type faults []FieldError

func (f *faults) add(field, problem, remedy string) {
	*f = append(*f, FieldError{Field: field, Problem: problem, Remedy: remedy})
}

func (f *faults) unless(ok bool, field, problem, remedy string) {
	if !ok {
		f.add(field, problem, remedy)
	}
}

// between checks lo ≤ n ≤ hi.
func (f *faults) between(field string, n, lo, hi int64) {
	f.unless(n >= lo && n <= hi, field, fmt.Sprintf("%d is out of range", n), fmt.Sprintf("write %d to %d", lo, hi))
}

// Default fills in what a tenant's spec leaves out.
func (t *TenantSpec) Default() {
	if t.Weight == 0 {
		t.Weight = 1
	}
}

// Validate returns all that is wrong with the spec, nil when nothing is. Call Default first.
func (t *TenantSpec) Validate() []FieldError {
	var f faults
	f.label("name", t.Name)
	f.between("guaranteeGpus", int64(t.GuaranteeGPUs), 0, 1<<20)
	f.between("limitGpus", int64(t.LimitGPUs), 0, 1<<20)
	f.unless(t.LimitGPUs == 0 || t.LimitGPUs >= t.GuaranteeGPUs, "limitGpus",
		fmt.Sprintf("%d is below guaranteeGpus %d", t.LimitGPUs, t.GuaranteeGPUs), "raise the limit, or write 0 for no limit")
	f.unless(t.Weight > 0 && t.Weight <= 1e6, "weight", fmt.Sprintf("%g is out of range", t.Weight), "write a number above 0 and up to 1000000")
	return append(f, t.Limits.Validate()...)
}

// Limits of limits: above, a limit is none.
const (
	MaxPerMin = 1_000_000_000
	MaxBudget = 1_000_000_000_000_000
)

// Validate returns all that is wrong with the limits, nil when nothing is.
func (l *Limits) Validate() []FieldError {
	var f faults
	for _, x := range []struct {
		field string
		n     int64
		most  int64
	}{
		{"requestsPerMin", int64(l.RequestsPerMin), MaxPerMin}, {"tokensPerMin", int64(l.TokensPerMin), MaxPerMin},
		{"concurrent", int64(l.Concurrent), MaxPerMin}, {"tokensPerDay", l.TokensPerDay, MaxBudget}, {"tokensPerMonth", l.TokensPerMonth, MaxBudget},
	} {
		f.unless(x.n >= 0 && x.n <= x.most, x.field, fmt.Sprintf("%d is out of range", x.n), fmt.Sprintf("write 1 to %d, or 0 for no limit", x.most))
	}
	f.unless(l.TokensPerMonth == 0 || l.TokensPerDay <= l.TokensPerMonth, "tokensPerDay",
		fmt.Sprintf("%d is above tokensPerMonth %d", l.TokensPerDay, l.TokensPerMonth), "lower it, or raise the month's budget")
	return f
}

// Default fills in what a model's spec leaves out.
func (m *ModelSpec) Default() {
	orString(&m.Tenant, DefaultTenant)
	orString(&m.EngineModel, m.Name)
	orString(&m.HealthPath, "/health")
	orInt(&m.MaxInFlight, 64)
	if m.URL != "" {
		return // someone else runs it: the rest has no meaning
	}
	orInt(&m.GPUsPerReplica, 1)
	orMs(&m.StartTimeoutMs, 300_000) // large weights from a cold disk
	orMs(&m.WakeTimeoutMs, 30_000)
	orMs(&m.DrainTimeoutMs, 120_000)
}

// Validate returns all that is wrong with the spec, nil when nothing is. Call
// Default first. Whether the tenant exists is for the caller to check.
func (m *ModelSpec) Validate() []FieldError {
	var f faults
	f.dnsName("name", m.Name)
	f.label("tenant", m.Tenant)
	f.aliases(m)
	f.adapters(m)
	f.speaks(m)
	f.text("engineModel", m.EngineModel, 256)
	f.unless(strings.HasPrefix(m.HealthPath, "/") && !strings.ContainsAny(m.HealthPath, " #"), "healthPath", "is not a path",
		"start it with a slash, as /health, and write a space as %20")
	f.text("healthPath", m.HealthPath, 256)
	f.between("maxInFlight", int64(m.MaxInFlight), 1, 65536)
	f.between("requestTimeoutMs", m.RequestTimeoutMs, 0, MaxTimeoutMs)
	f.between("firstTokenMs", m.FirstTokenMs, 0, MaxTimeoutMs)
	f.unless(m.RequestTimeoutMs == 0 || m.FirstTokenMs <= m.RequestTimeoutMs, "firstTokenMs",
		fmt.Sprintf("%d is above requestTimeoutMs %d", m.FirstTokenMs, m.RequestTimeoutMs), "lower it or raise requestTimeoutMs")
	f.objectives(m)
	switch {
	case m.URL != "" && len(m.Command) > 0:
		f.add("url", "stands beside command", "keep command (sluice runs the engine) or url (someone else does)")
	case m.URL != "":
		f.external(m)
	case len(m.Command) == 0:
		f.add("command", "is missing", "write the engine's command with {{port}} for its port, or url for an engine that someone else runs")
	default:
		f.engine(m)
	}
	return f
}

func (f *faults) aliases(m *ModelSpec) {
	f.unless(len(m.Aliases) <= MaxAliases, "aliases", fmt.Sprintf("has %d entries", len(m.Aliases)), fmt.Sprintf("keep at most %d", MaxAliases))
	for i, a := range m.Aliases {
		at := fmt.Sprintf("aliases[%d]", i)
		f.unless(aliasOK(a), at, fmt.Sprintf("%s is not a model name", quote(a)),
			"use 1 to 128 letters, digits and . _ - / : @, starting with a letter or digit")
		f.unless(a != m.Name && !slices.Contains(m.Aliases[:i], a), at, fmt.Sprintf("%s is there twice", quote(a)), "name each once")
	}
}

func (f *faults) adapters(m *ModelSpec) {
	f.unless(len(m.Adapters) <= MaxAdapters, "adapters", fmt.Sprintf("has %d entries", len(m.Adapters)), fmt.Sprintf("keep at most %d", MaxAdapters))
	for i, a := range m.Adapters {
		at := fmt.Sprintf("adapters[%d]", i)
		f.unless(aliasOK(a), at, fmt.Sprintf("%s is not an adapter's name", quote(a)),
			"use 1 to 128 letters, digits and . _ - / : @, starting with a letter or digit")
		f.unless(a != m.Name && !slices.Contains(m.Aliases, a) && !slices.Contains(m.Adapters[:i], a), at,
			fmt.Sprintf("%s is there twice", quote(a)), "name each once among name, aliases and adapters")
	}
}

func (f *faults) speaks(m *ModelSpec) {
	for i, api := range m.Speaks {
		at := fmt.Sprintf("speaks[%d]", i)
		f.unless(api == SpeaksMessages || api == SpeaksResponses, at, fmt.Sprintf("%s is no API that engines differ in", quote(api)),
			"write messages (Anthropic's) or responses (OpenAI's); the other APIs need no mention")
		f.unless(!slices.Contains(m.Speaks[:i], api), at, fmt.Sprintf("%s is there twice", quote(api)), "name each once")
	}
}

func (f *faults) objectives(m *ModelSpec) {
	f.unless(len(m.Objectives) <= MaxObjectives, "objectives", fmt.Sprintf("has %d entries", len(m.Objectives)),
		fmt.Sprintf("keep at most %d", MaxObjectives))
	for i, o := range m.Objectives {
		at := fmt.Sprintf("objectives[%d]", i)
		f.unless(o.Quantile > 0 && o.Quantile < 1, at+".quantile", fmt.Sprintf("%v is no quantile", o.Quantile), "write a fraction between 0 and 1, as 0.9")
		f.unless(int(o.Metric) < slo.NumMetrics, at+".metric", "is none of the metrics", "write ttft, itl or e2e")
		f.unless(o.ThresholdMs > 0 && o.ThresholdMs <= slo.HistogramMaxMs, at+".thresholdMs", fmt.Sprintf("%v is out of range", o.ThresholdMs),
			fmt.Sprintf("write a time above 0 and up to %g s", slo.HistogramMaxMs/1000))
		for _, p := range m.Objectives[:i] {
			f.unless(p.Metric != o.Metric || p.Quantile != o.Quantile, at, "repeats metric and quantile of an earlier one", "keep one of the two")
		}
	}
}

func (f *faults) external(m *ModelSpec) {
	f.engineURL("url", m.URL)
	const remedy = "leave it out: sluice does not start an engine given by url"
	f.unless(m.MinReplicas == 0, "minReplicas", "has no meaning with url", remedy)
	f.unless(m.MaxReplicas == 0, "maxReplicas", "has no meaning with url", remedy)
	f.unless(m.GPUsPerReplica == 0, "gpusPerReplica", "has no meaning with url", remedy)
	f.unless(m.GuaranteeGPUs == 0, "guaranteeGpus", "has no meaning with url", remedy)
	f.unless(m.Sleep == nodes.SleepNone, "sleep", "has no meaning with url", remedy)
	f.unless(m.ActiveBytes == 0 && m.ResidentBytes == 0, "activeBytes", "has no meaning with url", remedy)
	f.unless(len(m.Env) == 0, "env", "has no meaning with url", remedy)
	f.unless(m.Workdir == "", "workdir", "has no meaning with url", remedy)
	f.unless(m.User == "", "user", "has no meaning with url", remedy)
}

func (f *faults) engine(m *ModelSpec) {
	f.command(m.Command)
	f.env(m.Env)
	f.place(m.Workdir, m.User)
	port := slices.ContainsFunc(m.Command, hasPort)
	for _, v := range m.Env {
		port = port || hasPort(v)
	}
	f.unless(port, "command", "names no port", "write {{port}} where the engine takes its port, in command or env")
	f.between("gpusPerReplica", int64(m.GPUsPerReplica), 1, MaxGPUsPerUnit)
	f.between("minReplicas", int64(m.MinReplicas), 0, MaxReplicas)
	f.between("maxReplicas", int64(m.MaxReplicas), 0, MaxReplicas)
	f.unless(m.MaxReplicas == 0 || m.MinReplicas <= m.MaxReplicas, "minReplicas",
		fmt.Sprintf("%d is above maxReplicas %d", m.MinReplicas, m.MaxReplicas), "lower it, raise maxReplicas, or write maxReplicas 0 for no cap")
	f.between("guaranteeGpus", int64(m.GuaranteeGPUs), 0, 1<<20)
	f.memory(m.ActiveBytes, m.ResidentBytes)
	f.unless(m.Sleep == nodes.SleepNone || m.Sleep == nodes.SleepVLLM, "sleep", fmt.Sprintf("%s is no sleep interface", quote(string(m.Sleep))),
		"write vllm, or leave it out for an engine that is stopped instead")
	f.unless(m.Sleep == nodes.SleepNone || m.ActiveBytes > 0, "sleep", "needs declared memory", "write activeBytes and residentBytes too")
	f.between("startTimeoutMs", m.StartTimeoutMs, 1, MaxTimeoutMs)
	f.between("wakeTimeoutMs", m.WakeTimeoutMs, 1, MaxTimeoutMs)
	f.between("drainTimeoutMs", m.DrainTimeoutMs, 1, MaxTimeoutMs)
}

// Default fills in what a job's spec leaves out.
func (j *JobSpec) Default() {
	orString(&j.Tenant, DefaultTenant)
	orInt(&j.WorldMultiple, 1)
	orInt(&j.MinWorld, max(1, min(j.WorldMultiple, MaxWorldSize)))
	orInt(&j.MaxWorld, j.MinWorld)
	orInt(&j.GPUsPerRank, 1)
	if j.Launcher == "" {
		j.Launcher = nodes.LaunchRanks
	}
	orString(&j.Protocol, "v1")
	orString(&j.StopSignal, "SIGTERM")
	orMs(&j.GraceMs, 30_000)
	orInt(&j.MaxRestarts, 3)
	orMs(&j.StartTimeoutMs, 300_000) // imports, compilers, loading of the checkpoint
}

// Validate returns all that is wrong with the spec, nil when nothing is. Call
// Default first. Whether the tenant exists is for the caller to check.
func (j *JobSpec) Validate() []FieldError {
	var f faults
	f.label("name", j.Name)
	f.label("tenant", j.Tenant)
	f.unless(len(j.Command) > 0, "command", "is missing", "write the command of one rank")
	f.command(j.Command)
	f.env(j.Env)
	f.place(j.Workdir, j.User)
	f.text("image", j.Image, 512)
	f.unless(j.CheckpointDir == "" || strings.HasPrefix(j.CheckpointDir, "/"), "checkpointDir", "is not absolute", "write the whole path, from /")
	f.text("checkpointDir", j.CheckpointDir, 4096)
	f.world(j)
	f.between("gpusPerRank", int64(j.GPUsPerRank), 1, MaxGPUsPerUnit)
	f.unless(j.Launcher == nodes.LaunchRanks || j.Launcher == nodes.LaunchTorchrun, "launcher",
		fmt.Sprintf("%s is no launcher", quote(string(j.Launcher))), "write ranks (one process a rank) or torchrun (one a node)")
	f.unless(j.Launcher != nodes.LaunchTorchrun || j.GPUsPerRank == 1, "gpusPerRank", "is not 1", "torchrun gives each rank one GPU: write 1, or launcher ranks")
	f.unless(j.Protocol == "v1" || j.Protocol == "none", "protocol", fmt.Sprintf("%s is no protocol", quote(j.Protocol)),
		"write v1 (rank protocol) or none (stopped by signal)")
	f.unless(j.StopSignal == "SIGTERM" || j.StopSignal == "SIGUSR1", "stopSignal", fmt.Sprintf("%s is not used to stop", quote(j.StopSignal)),
		"write SIGTERM or SIGUSR1")
	f.between("graceMs", j.GraceMs, 1, MaxTimeoutMs)
	f.memory(j.ActiveBytes, j.ResidentBytes)
	f.between("priority", int64(j.Priority), -MaxPriority, MaxPriority)
	f.between("maxRestarts", int64(j.MaxRestarts), 0, MaxRestarts)
	f.between("startTimeoutMs", j.StartTimeoutMs, 1, MaxTimeoutMs)
	return f
}

func (f *faults) world(j *JobSpec) {
	before := len(*f)
	f.between("minWorld", int64(j.MinWorld), 1, MaxWorldSize)
	f.between("maxWorld", int64(j.MaxWorld), 1, MaxWorldSize)
	f.between("worldMultiple", int64(j.WorldMultiple), 1, MaxWorldSize)
	if len(*f) > before {
		return
	}
	f.unless(j.MinWorld <= j.MaxWorld, "minWorld", fmt.Sprintf("%d is above maxWorld %d", j.MinWorld, j.MaxWorld), "lower it or raise maxWorld")
	largest := j.MaxWorld - j.MaxWorld%j.WorldMultiple
	f.unless(j.MinWorld > j.MaxWorld || largest >= j.MinWorld, "worldMultiple",
		fmt.Sprintf("no multiple of %d lies within %d to %d", j.WorldMultiple, j.MinWorld, j.MaxWorld), "widen minWorld to maxWorld or lower worldMultiple")
}

// label is a DNS label: it becomes part of ids, directories and metrics.
func (f *faults) label(field, s string) {
	f.unless(dnsOK(s, false), field, fmt.Sprintf("%s is not a name", quote(s)),
		"use 1 to 63 of a-z, 0-9 and -, starting and ending with a letter or digit")
}

// dnsName allows dots too, as in llama-3.1-8b.
func (f *faults) dnsName(field, s string) {
	f.unless(dnsOK(s, true), field, fmt.Sprintf("%s is not a name", quote(s)),
		"use 1 to 63 of a-z, 0-9, - and single dots, starting and ending with a letter or digit; other spellings go to aliases")
}

// text refuses control characters: CR and LF would become header lines.
func (f *faults) text(field, s string, limit int) {
	f.unless(len(s) <= limit, field, fmt.Sprintf("has %d bytes", len(s)), fmt.Sprintf("keep it to %d", limit))
	f.unless(!strings.ContainsFunc(s, isControl), field, "holds a control character", "remove line breaks and other control characters")
}

// command allows line breaks and tabs inside an argument (bash -c, python -c):
// arguments go to exec as they are and never into a header.
func (f *faults) command(args []string) {
	f.unless(len(args) <= MaxArgs, "command", fmt.Sprintf("has %d arguments", len(args)), fmt.Sprintf("keep at most %d", MaxArgs))
	for i, a := range args {
		at := fmt.Sprintf("command[%d]", i)
		f.unless(i > 0 || a != "", at, "is empty", "write the program's name")
		f.unless(len(a) <= MaxArgLen, at, fmt.Sprintf("has %d bytes", len(a)), fmt.Sprintf("keep it to %d; put longer scripts in a file", MaxArgLen))
		inner := strings.NewReplacer("\n", "", "\t", "").Replace(a)
		f.unless((i == 0 && !strings.ContainsFunc(a, isControl)) || (i > 0 && !strings.ContainsFunc(inner, isControl)),
			at, "holds a control character", "remove NUL, carriage returns and the like")
	}
}

// agentEnv is set by the agent; a spec's value would be overwritten.
var agentEnv = []string{"CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}

func (f *faults) env(env map[string]string) {
	f.unless(len(env) <= MaxEnv, "env", fmt.Sprintf("has %d entries", len(env)), fmt.Sprintf("keep at most %d", MaxEnv))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		at := "env." + cut(k)
		f.unless(envNameOK(k), at, "is not a variable's name", "use letters, digits and _, not starting with a digit")
		f.unless(!strings.HasPrefix(k, "SLUICE_") && !slices.Contains(agentEnv, k), at, "is set by the agent", "leave it out")
		f.text(at, env[k], MaxArgLen)
	}
}

func (f *faults) place(workdir, user string) {
	f.unless(workdir == "" || strings.HasPrefix(workdir, "/"), "workdir", "is not absolute", "write the whole path, from /")
	f.text("workdir", workdir, 4096)
	f.unless(user == "" || userOK(user), "user", fmt.Sprintf("%s is not a user's name", quote(user)), "write a user known on the nodes")
}

func (f *faults) memory(active, resident int64) {
	f.between("activeBytes", active, 0, MaxBytes)
	f.between("residentBytes", resident, 0, MaxBytes)
	f.unless(resident <= active, "residentBytes", fmt.Sprintf("%d is above activeBytes %d", resident, active),
		"declare both: what stays while asleep or yielded is part of what is used while computing")
}

// engineURL holds to http and refuses addresses that only lead
// inside the machine's own management (SEC-05): link-local and cloud metadata,
// in any spelling. Private networks are where engines live and are allowed;
// who dials checks the resolved address again.
func (f *faults) engineURL(field, raw string) {
	f.text(field, raw, 2048)
	u, err := url.Parse(raw)
	if err != nil {
		f.add(field, "is not a URL", "write http://host:port")
		return
	}
	f.unless(u.Scheme == "http", field, fmt.Sprintf("has scheme %s", quote(u.Scheme)), "use http; put a proxy before an engine that speaks TLS only")
	f.unless(u.User == nil, field, "holds a user or password", "leave them out; engines get no credential, so put a proxy that adds it before one that wants it")
	f.unless(u.RawQuery == "" && u.Fragment == "" && !u.ForceQuery, field, "holds a query or fragment", "end it after the path")
	f.unless(u.Hostname() != "", field, "names no host", "write http://host:port")
	if _, port, given := strings.Cut(u.Host[strings.LastIndexByte(u.Host, ']')+1:], ":"); given {
		n, err := strconv.ParseUint(port, 10, 16)
		f.unless(err == nil && n > 0, field, fmt.Sprintf("has port %s", quote(port)), "write a port of 1 to 65535, or none for 80")
	}
	if problem := hostProblem(u.Hostname()); problem != "" {
		f.add(field, problem, "name the engine's own host")
	}
}

// metadataHosts answer with a machine's credentials.
var metadataHosts = []string{"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}

var metadataAddr = netip.MustParseAddr("fd00:ec2::254")

func hostProblem(host string) string {
	h := strings.ToLower(strings.TrimSuffix(host, "."))
	if a, err := netip.ParseAddr(h); err == nil {
		return AddrProblem(a)
	}
	if slices.Contains(metadataHosts, h) {
		return "is a metadata service"
	}
	// The last label decides whether resolvers take a name for a number:
	// 2852039166, 0x7f.1 and 0251.254.169.254 are IPv4 in disguise.
	last := h[strings.LastIndexByte(h, '.')+1:]
	if last != "" && (strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x")) {
		return "spells an address in an unusual way"
	}
	return ""
}

// AddrProblem says why an engine must not be dialled at a resolved address;
// empty when it may be. Use it at each dial: a name may resolve anew.
func AddrProblem(a netip.Addr) string {
	a = a.Unmap().WithZone("")
	switch {
	case a.IsLinkLocalUnicast(), a.IsLinkLocalMulticast():
		return "is a link-local address"
	case a == metadataAddr:
		return "is a metadata service"
	case a.IsUnspecified(), a.IsMulticast():
		return "is not the address of one host"
	}
	return ""
}

func hasPort(s string) bool { return strings.Contains(s, PortMark) }

func isControl(r rune) bool {
	return r < 0x20 || (r >= 0x7f && r < 0xa0) || r == '\u2028' || r == '\u2029' || r == '\ufffd'
}

func alnum(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

func dnsOK(s string, dots bool) bool {
	if len(s) == 0 || len(s) > MaxNameLen || !alnum(s[0]) || !alnum(s[len(s)-1]) || strings.Contains(s, "..") {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !alnum(c) && c != '-' && !(dots && c == '.') {
			return false
		}
	}
	return true
}

func aliasOK(s string) bool {
	if len(s) == 0 || len(s) > MaxAliasLen {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !alnum(c) && (c < 'A' || c > 'Z') && (i == 0 || strings.IndexByte("._-/:@", c) < 0) || c >= 0x80 {
			return false
		}
	}
	return true
}

func envNameOK(s string) bool {
	if s == "" || len(s) > 256 || s[0] >= '0' && s[0] <= '9' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_') {
			return false
		}
	}
	return true
}

func userOK(s string) bool {
	if len(s) > 32 || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_-.", c) >= 0) {
			return false
		}
	}
	return true
}

// quote shows text of a spec in a message: cut, and escaped.
func quote(s string) string { return fmt.Sprintf("%q", cut(s)) }

func cut(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

func orString(p *string, v string) {
	if *p == "" {
		*p = v
	}
}

func orInt(p *int, v int) {
	if *p == 0 {
		*p = v
	}
}

func orMs(p *int64, v int64) {
	if *p == 0 {
		*p = v
	}
}
