package registry

import (
	"net/netip"
	"strings"
	"testing"

	"sluice/nodes"
	"sluice/slo"
)

func goodModel() ModelSpec {
	m := ModelSpec{Name: "chat", Command: []string{"engine", "--port", PortMark}}
	m.Default()
	return m
}

func goodJob() JobSpec {
	j := JobSpec{Name: "bert", Command: []string{"python", "train.py"}}
	j.Default()
	return j
}

// want checks that exactly one fault was found, at field ("" for none), and
// that it tells what to do.
func want(t *testing.T, name, field string, got []FieldError) {
	t.Helper()
	if field == "" {
		if len(got) != 0 {
			t.Errorf("%s: %v", name, got)
		}
		return
	}
	if len(got) != 1 || got[0].Field != field || got[0].Problem == "" || got[0].Remedy == "" {
		t.Errorf("%s: %v, want one fault at %s", name, got, field)
	}
}

func TestModelDefaults(t *testing.T) {
	m := goodModel()
	want(t, "defaults", "", m.Validate())
	if m.Tenant != "default" || m.HealthPath != "/health" || m.EngineModel != "chat" || m.MaxReplicas != 0 || m.MaxInFlight != 64 || m.GPUsPerReplica != 1 || m.DrainTimeoutMs == 0 {
		t.Errorf("%+v", m)
	}
	url := ModelSpec{Name: "x", URL: "http://10.0.0.5:8000/v1"}
	url.Default()
	want(t, "external", "", url.Validate())
	before := m
	m.Default()
	if m.Name != before.Name || m.MaxInFlight != before.MaxInFlight {
		t.Error("Default twice changes something")
	}
}

func TestModelRules(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*ModelSpec)
		field  string
	}{
		"dots":             {func(m *ModelSpec) { m.Name = "llama-3.1-8b" }, ""},
		"upper case":       {func(m *ModelSpec) { m.Name = "Chat" }, "name"},
		"slash":            {func(m *ModelSpec) { m.Name = "../etc" }, "name"},
		"two dots":         {func(m *ModelSpec) { m.Name = "a..b" }, "name"},
		"long":             {func(m *ModelSpec) { m.Name = strings.Repeat("a", 64) }, "name"},
		"longest":          {func(m *ModelSpec) { m.Name = strings.Repeat("a", 63) }, ""},
		"alias":            {func(m *ModelSpec) { m.Aliases = []string{"meta-llama/Llama-3.1-8B", "a:b"} }, ""},
		"adapters":         {func(m *ModelSpec) { m.Adapters = []string{"sql", "team/legal:v2"} }, ""},
		"adapter twice":    {func(m *ModelSpec) { m.Adapters = []string{"a", "a"} }, "adapters[1]"},
		"adapter is alias": {func(m *ModelSpec) { m.Aliases, m.Adapters = []string{"a"}, []string{"a"} }, "adapters[0]"},
		"adapter no name":  {func(m *ModelSpec) { m.Adapters = []string{"a b"} }, "adapters[0]"},
		"speaks":           {func(m *ModelSpec) { m.Speaks = []string{"messages", "responses"} }, ""},
		"speaks more":      {func(m *ModelSpec) { m.Speaks = []string{"messages", "grpc"} }, "speaks[1]"},
		"speaks twice":     {func(m *ModelSpec) { m.Speaks = []string{"messages", "messages"} }, "speaks[1]"},
		"alias twice":      {func(m *ModelSpec) { m.Aliases = []string{"a", "a"} }, "aliases[1]"},
		"alias is name":    {func(m *ModelSpec) { m.Aliases = []string{"chat"} }, "aliases[0]"},
		"alias with line":  {func(m *ModelSpec) { m.Aliases = []string{"a\r\nX-User: admin"} }, "aliases[0]"},
		"alias control":    {func(m *ModelSpec) { m.Aliases = []string{"\x10\x19"} }, "aliases[0]"},
		"alias capitals":   {func(m *ModelSpec) { m.Aliases = []string{"AZ@[a]"} }, "aliases[0]"},
		"health space":     {func(m *ModelSpec) { m.HealthPath = "/x HTTP/1.1" }, "healthPath"},
		"alias not ASCII":  {func(m *ModelSpec) { m.Aliases = []string{"modèle"} }, "aliases[0]"},
		"no command":       {func(m *ModelSpec) { m.Command = nil }, "command"},
		"both":             {func(m *ModelSpec) { m.URL = "http://h:1" }, "url"},
		"no port":          {func(m *ModelSpec) { m.Command = []string{"engine"} }, "command"},
		"port in env":      {func(m *ModelSpec) { m.Command = []string{"engine"}; m.Env = map[string]string{"PORT": PortMark} }, ""},
		"empty program":    {func(m *ModelSpec) { m.Command[0] = "" }, "command[0]"},
		"NUL in argument":  {func(m *ModelSpec) { m.Command = append(m.Command, "a\x00b") }, "command[3]"},
		"CR in argument":   {func(m *ModelSpec) { m.Command = append(m.Command, "a\rb") }, "command[3]"},
		"script":           {func(m *ModelSpec) { m.Command = []string{"bash", "-c", "set -e\n\texec engine " + PortMark} }, ""},
		"line in program":  {func(m *ModelSpec) { m.Command[0] = "a\nb" }, "command[0]"},
		"env line":         {func(m *ModelSpec) { m.Env = map[string]string{"A": "x\ny"} }, "env.A"},
		"env name":         {func(m *ModelSpec) { m.Env = map[string]string{"A B": "x"} }, "env.A B"},
		"env of the agent": {func(m *ModelSpec) { m.Env = map[string]string{"CUDA_VISIBLE_DEVICES": "0"} }, "env.CUDA_VISIBLE_DEVICES"},
		"workdir":          {func(m *ModelSpec) { m.Workdir = "models" }, "workdir"},
		"user":             {func(m *ModelSpec) { m.User = "-u root" }, "user"},
		"gpus":             {func(m *ModelSpec) { m.GPUsPerReplica = -1 }, "gpusPerReplica"},
		"min above max":    {func(m *ModelSpec) { m.MinReplicas, m.MaxReplicas = 3, 2 }, "minReplicas"},
		"min, no cap":      {func(m *ModelSpec) { m.MinReplicas = 3 }, ""},
		"negative":         {func(m *ModelSpec) { m.MinReplicas = -1 }, "minReplicas"},
		"resident":         {func(m *ModelSpec) { m.ActiveBytes, m.ResidentBytes = 1, 2 }, "residentBytes"},
		"sleep":            {func(m *ModelSpec) { m.Sleep = "nap"; m.ActiveBytes = 1 }, "sleep"},
		"sleep, no memory": {func(m *ModelSpec) { m.Sleep = nodes.SleepVLLM }, "sleep"},
		"health":           {func(m *ModelSpec) { m.HealthPath = "health" }, "healthPath"},
		"timeout":          {func(m *ModelSpec) { m.WakeTimeoutMs = -1 }, "wakeTimeoutMs"},
		"in flight":        {func(m *ModelSpec) { m.MaxInFlight = -1 }, "maxInFlight"},
		"quantile 1":       {func(m *ModelSpec) { m.Objectives = []slo.Objective{{Quantile: 1, ThresholdMs: 1}} }, "objectives[0].quantile"},
		"quantile 90":      {func(m *ModelSpec) { m.Objectives = []slo.Objective{{Quantile: 90, ThresholdMs: 1}} }, "objectives[0].quantile"},
		"threshold":        {func(m *ModelSpec) { m.Objectives = []slo.Objective{{Quantile: 0.9}} }, "objectives[0].thresholdMs"},
		"same objective": {func(m *ModelSpec) {
			m.Objectives = []slo.Objective{{Quantile: .9, ThresholdMs: 1}, {Quantile: .9, ThresholdMs: 2}}
		}, "objectives[1]"},
		"two quantiles": {func(m *ModelSpec) {
			m.Objectives = []slo.Objective{{Quantile: .9, ThresholdMs: 1}, {Quantile: .5, ThresholdMs: 2}}
		}, ""},
		"engineModel lines": {func(m *ModelSpec) { m.EngineModel = "a\nb" }, "engineModel"},
		"bad UTF-8":         {func(m *ModelSpec) { m.EngineModel = "a\xffb" }, "engineModel"},
	} {
		m := goodModel()
		c.change(&m)
		want(t, name, c.field, m.Validate())
	}
}

func TestJobRules(t *testing.T) {
	j := goodJob()
	if j.MinWorld != 1 || j.MaxWorld != 1 || j.WorldMultiple != 1 || j.Launcher != nodes.LaunchRanks || j.Protocol != "v1" || j.GraceMs != 30_000 || j.MaxRestarts != 3 {
		t.Errorf("defaults %+v", j)
	}
	for name, c := range map[string]struct {
		change func(*JobSpec)
		field  string
	}{
		"plain":          {func(*JobSpec) {}, ""},
		"dot":            {func(j *JobSpec) { j.Name = "a.g1" }, "name"},
		"no command":     {func(j *JobSpec) { j.Command = nil }, "command"},
		"range":          {func(j *JobSpec) { j.MinWorld, j.MaxWorld, j.WorldMultiple = 2, 8, 2 }, ""},
		"no multiple":    {func(j *JobSpec) { j.MinWorld, j.MaxWorld, j.WorldMultiple = 5, 7, 4 }, "worldMultiple"},
		"min above max":  {func(j *JobSpec) { j.MinWorld, j.MaxWorld = 4, 2 }, "minWorld"},
		"negative":       {func(j *JobSpec) { j.MinWorld = -1 }, "minWorld"},
		"launcher":       {func(j *JobSpec) { j.Launcher = "mpirun" }, "launcher"},
		"torchrun GPUs":  {func(j *JobSpec) { j.Launcher, j.GPUsPerRank = nodes.LaunchTorchrun, 2 }, "gpusPerRank"},
		"protocol":       {func(j *JobSpec) { j.Protocol = "v2" }, "protocol"},
		"signal":         {func(j *JobSpec) { j.StopSignal = "SIGKILL" }, "stopSignal"},
		"grace":          {func(j *JobSpec) { j.GraceMs = -1 }, "graceMs"},
		"priority":       {func(j *JobSpec) { j.Priority = 5000 }, "priority"},
		"env of a rank":  {func(j *JobSpec) { j.Env = map[string]string{"RANK": "0"} }, "env.RANK"},
		"env of sluice":  {func(j *JobSpec) { j.Env = map[string]string{"SLUICE_SOCKET": "/x"} }, "env.SLUICE_SOCKET"},
		"image newline":  {func(j *JobSpec) { j.Image = "a\nb" }, "image"},
		"checkpointDir":  {func(j *JobSpec) { j.CheckpointDir = "ckpt" }, "checkpointDir"},
		"tenant":         {func(j *JobSpec) { j.Tenant = "A B" }, "tenant"},
		"max restarts":   {func(j *JobSpec) { j.MaxRestarts = -1 }, "maxRestarts"},
		"resident alone": {func(j *JobSpec) { j.ResidentBytes = 5 }, "residentBytes"},
	} {
		j := goodJob()
		c.change(&j)
		want(t, name, c.field, j.Validate())
	}
	m := JobSpec{Name: "x", Command: []string{"t"}, WorldMultiple: 4}
	m.Default()
	want(t, "multiple alone", "", m.Validate())
	if m.MinWorld != 4 || m.MaxWorld != 4 {
		t.Errorf("world %d to %d, want 4", m.MinWorld, m.MaxWorld)
	}
}

func TestTenantRules(t *testing.T) {
	good := TenantSpec{Name: "web"}
	good.Default()
	want(t, "plain", "", good.Validate())
	bad := TenantSpec{Name: "web", Weight: -1}
	want(t, "weight", "weight", bad.Validate())
	bad = TenantSpec{Name: "web", Weight: 1, LimitGPUs: 1, GuaranteeGPUs: 2}
	want(t, "limit", "limitGpus", bad.Validate())
}

// No spelling of an address inside the machine's own management is accepted.
func TestCase_SEC_05_EngineURL(t *testing.T) {
	for _, bad := range []string{
		"http://169.254.169.254/latest/", "http://2852039166/", "http://[::ffff:169.254.169.254]/", "http://0x7f.1:9000/", "http://0xa9fea9fe/",
		"http://0251.0376.0251.0376/", "http://metadata.google.internal/", "http://METADATA.google.internal./", "http://metadata/", "http://[fe80::1%25eth0]/", "http://[fd00:ec2::254]/",
		"http://0.0.0.0:1/", "http://[::]:1/", "http://224.0.0.1/", "file:///etc/hosts", "gopher://h/", "http://user:pw@h/", "http:///x", "h:8000", "",
		"http://h:1/?key=SECRET", "http://h:1/#x", "http://h\r\nX: y/", "http://127.1/", "http://1.2.3/",
		"https://h:1", "http://h:99999", "http://h:0", "http://h:", "http://[::1]:", "http://[::1]:70000",
	} {
		m := ModelSpec{Name: "m", URL: bad}
		m.Default()
		if m.Validate() == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	for _, good := range []string{"http://127.0.0.1:8000", "http://10.0.0.5:8000/v1", "http://engine.example.com", "http://[::1]:8000", "http://node-7:8000", "http://h8.rack2:80"} {
		m := ModelSpec{Name: "m", URL: good}
		m.Default()
		want(t, good, "", m.Validate())
	}
	// A name may resolve to such an address later: who dials asks again.
	for addr, ok := range map[string]bool{"169.254.1.1": false, "::ffff:169.254.169.254": false, "fe80::1%eth0": false, "10.1.2.3": true, "127.0.0.1": true} {
		if got := AddrProblem(netip.MustParseAddr(addr)) == ""; got != ok {
			t.Errorf("%s: dialled %v, want %v", addr, got, ok)
		}
	}
}

// No fault quotes more than a piece of what was written, nor its control characters.
func TestFaultsAreShort(t *testing.T) {
	m := goodModel()
	m.Name = strings.Repeat("x\x1b[31m", 1000)
	m.Aliases = []string{strings.Repeat("é\n", 1000)}
	for _, f := range m.Validate() {
		if len(f.Error()) > 600 || strings.ContainsAny(f.Error(), "\n\x1b") {
			t.Errorf("%d bytes: %q", len(f.Error()), f.Error())
		}
	}
}
