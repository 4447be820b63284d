package registry

import (
	"sluice/nodes"
	"sluice/slo"
)

// TenantSpec is a team's workspace.
type TenantSpec struct {
	Name string `json:"name" yaml:"name"`
	// GuaranteeGPUs come back to the tenant whenever its jobs ask for them.
	GuaranteeGPUs int `json:"guaranteeGpus,omitempty" yaml:"guaranteeGpus,omitempty"`
	// LimitGPUs caps what the tenant's jobs hold; 0 means no cap.
	LimitGPUs int `json:"limitGpus,omitempty" yaml:"limitGpus,omitempty"`
	// Weight shares what nobody is guaranteed; 0 counts as 1.
	Weight float64 `json:"weight,omitempty" yaml:"weight,omitempty"`
	// Limits bound all keys of the tenant together.
	Limits `yaml:",inline"`
}

// Limits bound the requests of a key or of a tenant. 0 means no limit. Days and months are those of UTC.
type Limits struct {
	RequestsPerMin int   `json:"requestsPerMin,omitempty" yaml:"requestsPerMin,omitempty"`
	TokensPerMin   int   `json:"tokensPerMin,omitempty" yaml:"tokensPerMin,omitempty"`
	Concurrent     int   `json:"concurrent,omitempty" yaml:"concurrent,omitempty"` // requests at once
	TokensPerDay   int64 `json:"tokensPerDay,omitempty" yaml:"tokensPerDay,omitempty"`
	TokensPerMonth int64 `json:"tokensPerMonth,omitempty" yaml:"tokensPerMonth,omitempty"`
}

// ModelSpec is a served name and how to run its engine. Field by field in
// docs/model-yaml.md.
type ModelSpec struct {
	Name    string            `json:"name" yaml:"name"`
	Tenant  string            `json:"tenant,omitempty" yaml:"tenant,omitempty"`
	Aliases []string          `json:"aliases,omitempty" yaml:"aliases,omitempty"`
	Command []string          `json:"command,omitempty" yaml:"command,omitempty"`
	URL     string            `json:"url,omitempty" yaml:"url,omitempty"`
	Env     map[string]string `json:"env,omitempty" yaml:"env,omitempty"`
	Workdir string            `json:"workdir,omitempty" yaml:"workdir,omitempty"`
	User    string            `json:"user,omitempty" yaml:"user,omitempty"`
	// EngineModel is the name that the engine itself knows the model by;
	// empty means Name.
	EngineModel string `json:"engineModel,omitempty" yaml:"engineModel,omitempty"`
	// Adapters are the LoRA adapters that the engine has loaded, by the names
	// that it knows them by.
	Adapters []string `json:"adapters,omitempty" yaml:"adapters,omitempty"`
	// Speaks lists the APIs that the engine has beyond OpenAI's completions,
	// embeddings and the like: SpeaksMessages, SpeaksResponses.
	Speaks         []string        `json:"speaks,omitempty" yaml:"speaks,omitempty"`
	GPUsPerReplica int             `json:"gpusPerReplica,omitempty" yaml:"gpusPerReplica,omitempty"`
	ActiveBytes    int64           `json:"activeBytes,omitempty" yaml:"activeBytes,omitempty"`
	ResidentBytes  int64           `json:"residentBytes,omitempty" yaml:"residentBytes,omitempty"`
	Sleep          nodes.SleepAPI  `json:"sleep,omitempty" yaml:"sleep,omitempty"`
	HealthPath     string          `json:"healthPath,omitempty" yaml:"healthPath,omitempty"`
	MinReplicas    int             `json:"minReplicas,omitempty" yaml:"minReplicas,omitempty"`
	MaxReplicas    int             `json:"maxReplicas,omitempty" yaml:"maxReplicas,omitempty"`
	GuaranteeGPUs  int             `json:"guaranteeGpus,omitempty" yaml:"guaranteeGpus,omitempty"`
	MaxInFlight    int             `json:"maxInFlight,omitempty" yaml:"maxInFlight,omitempty"` // per replica
	Objectives     []slo.Objective `json:"objectives,omitempty" yaml:"objectives,omitempty"`
	// StartTimeoutMs, WakeTimeoutMs and DrainTimeoutMs bound the transitional
	// phases of a replica.
	StartTimeoutMs int64 `json:"startTimeoutMs,omitempty" yaml:"startTimeoutMs,omitempty"`
	WakeTimeoutMs  int64 `json:"wakeTimeoutMs,omitempty" yaml:"wakeTimeoutMs,omitempty"`
	DrainTimeoutMs int64 `json:"drainTimeoutMs,omitempty" yaml:"drainTimeoutMs,omitempty"`
	// RequestTimeoutMs bounds a request from arrival to last byte, FirstTokenMs
	// each try of a stream up to its first token; 0 leaves it to the gateway.
	RequestTimeoutMs int64 `json:"requestTimeoutMs,omitempty" yaml:"requestTimeoutMs,omitempty"`
	FirstTokenMs     int64 `json:"firstTokenMs,omitempty" yaml:"firstTokenMs,omitempty"`
}

// APIs that not every engine has, the values of ModelSpec.Speaks.
const (
	SpeaksMessages  = "messages"  // Anthropic's /v1/messages
	SpeaksResponses = "responses" // OpenAI's /v1/responses
)

// JobSpec is a training run. Field by field in docs/job-yaml.md.
type JobSpec struct {
	Name    string            `json:"name" yaml:"name"`
	Tenant  string            `json:"tenant,omitempty" yaml:"tenant,omitempty"`
	Command []string          `json:"command" yaml:"command"`
	Env     map[string]string `json:"env,omitempty" yaml:"env,omitempty"`
	Workdir string            `json:"workdir,omitempty" yaml:"workdir,omitempty"`
	User    string            `json:"user,omitempty" yaml:"user,omitempty"`
	Image   string            `json:"image,omitempty" yaml:"image,omitempty"`
	// MinWorld, MaxWorld and WorldMultiple bound the world size in ranks.
	MinWorld      int            `json:"minWorld,omitempty" yaml:"minWorld,omitempty"`
	MaxWorld      int            `json:"maxWorld,omitempty" yaml:"maxWorld,omitempty"`
	WorldMultiple int            `json:"worldMultiple,omitempty" yaml:"worldMultiple,omitempty"`
	GPUsPerRank   int            `json:"gpusPerRank,omitempty" yaml:"gpusPerRank,omitempty"`
	Launcher      nodes.Launcher `json:"launcher,omitempty" yaml:"launcher,omitempty"`
	// Protocol is "v1", or "none" for a job that is stopped by signal.
	Protocol      string `json:"protocol,omitempty" yaml:"protocol,omitempty"`
	StopSignal    string `json:"stopSignal,omitempty" yaml:"stopSignal,omitempty"`
	GraceMs       int64  `json:"graceMs,omitempty" yaml:"graceMs,omitempty"`
	ActiveBytes   int64  `json:"activeBytes,omitempty" yaml:"activeBytes,omitempty"`
	ResidentBytes int64  `json:"residentBytes,omitempty" yaml:"residentBytes,omitempty"`
	// CheckpointDir is the root under which each generation gets a directory of
	// its own; empty means the server's default. Must be absolute.
	CheckpointDir string `json:"checkpointDir,omitempty" yaml:"checkpointDir,omitempty"`
	Priority      int    `json:"priority,omitempty" yaml:"priority,omitempty"` // higher goes first within a tenant
	MaxRestarts   int    `json:"maxRestarts,omitempty" yaml:"maxRestarts,omitempty"`
	// StartTimeoutMs bounds prepare and hello together.
	StartTimeoutMs int64 `json:"startTimeoutMs,omitempty" yaml:"startTimeoutMs,omitempty"`
}

// KeySpec is a tenant's API key; the secret itself is never stored.
type KeySpec struct {
	ID           string    `json:"id"`
	Tenant       string    `json:"tenant"`
	HashHex      string    `json:"hashHex"` // sha256 of the secret
	Models       []string  `json:"models,omitempty"`
	ClassCeiling slo.Class `json:"classCeiling"`
	Limits
}

// TokenSpec is a join token or an operator's token, stored hashed.
type TokenSpec struct {
	ID      string `json:"id"`
	Role    string `json:"role"` // agent or operator
	HashHex string `json:"hashHex"`
}

// World says whether n ranks are a legal world size for the job.
func (j *JobSpec) World(n int) bool {
	return n >= j.MinWorld && n <= j.MaxWorld && n%max(1, j.WorldMultiple) == 0
}

// SpeaksProtocol tells whether the ranks are ordered through the rank protocol.
func (j *JobSpec) SpeaksProtocol() bool { return j.Protocol != "none" }
