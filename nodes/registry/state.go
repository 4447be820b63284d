package registry

import "sluice/nodes"

// Limits of the state. What is full answers as its comment says.
const (
	maxSeenIDs   = 4096 // oldest forgotten: an author repeats a command within seconds
	maxLedger    = 256  // oldest entries fold into the job's totals
	maxManifests = 2    // current and previous
)

// State is all facts. Zero value: use New. Not safe for concurrent use.
type State struct {
	Version int64 `json:"version"` // commands applied
	LastMs  int64 `json:"lastMs"`  // fleet time of the last command
	NextID  int64 `json:"nextId"`  // for names that the registry makes

	Tenants  map[string]*TenantSpec `json:"tenants"`
	Keys     map[string]*KeySpec    `json:"keys"`
	Tokens   map[string]*TokenSpec  `json:"tokens"`
	Models   map[string]*Model      `json:"models"`
	Replicas map[string]*Replica    `json:"replicas"`
	Jobs     map[string]*Job        `json:"jobs"`
	Nodes    map[string]*Node       `json:"nodes"`
	GPUs     map[string]*GPU        `json:"gpus"`
	Books    Books                  `json:"books"`
	Usage    Usage                  `json:"usage"`

	Seen []string `json:"seen"` // ring of command ids
	seen map[string]struct{}
	// byNode are the UUIDs of each node's GPUs, sorted, and of how many GPUs in
	// all; derived from GPUs, and made anew when their number differs.
	byNode  map[string][]string
	indexed int
}

// Model is a served name.
type Model struct {
	Spec    ModelSpec `json:"spec"`
	Version int64     `json:"version"` // raised by every change of the spec that the engine sees
	// Failures counts replicas that failed in a row; RetryAtMs holds the next
	// start back.
	Failures  int   `json:"failures,omitempty"`
	RetryAtMs int64 `json:"retryAtMs,omitempty"`
	Deleting  bool  `json:"deleting,omitempty"`
}

// ReplicaPhase is where a replica is in its life.
type ReplicaPhase string

// The phases of a replica.
//
//	waiting → starting → ready ⇄ draining → asleep → waiting(Wake) → waking → ready
//	any → stopping → (record removed when proved gone)
const (
	ReplicaWaiting  ReplicaPhase = "waiting"  // GPUs reserved, holders leaving
	ReplicaStarting ReplicaPhase = "starting" // started, not yet healthy
	ReplicaReady    ReplicaPhase = "ready"    // may be routed to
	ReplicaDraining ReplicaPhase = "draining" // no new requests; then asleep
	ReplicaAsleep   ReplicaPhase = "asleep"   // resident, proved quiet
	ReplicaWaking   ReplicaPhase = "waking"
	ReplicaStopping ReplicaPhase = "stopping" // drains, ends, is proved gone
)

// Replica is one engine of one version, started by us.
type Replica struct {
	ID      string   `json:"id"`
	Model   string   `json:"model"`
	Version int64    `json:"version"`
	Node    string   `json:"node"`
	GPUs    []string `json:"gpus"`
	// ActiveBytes and ResidentBytes are as its model declared them when it was
	// placed; a later spec is another version's.
	ActiveBytes   int64        `json:"activeBytes,omitempty"`
	ResidentBytes int64        `json:"residentBytes,omitempty"`
	Phase         ReplicaPhase `json:"phase"`
	Wake          bool         `json:"wake,omitempty"` // waiting: to wake, not to start
	SinceMs       int64        `json:"sinceMs"`
	TimeoutMs     int64        `json:"timeoutMs,omitempty"` // of this phase; 0 for a lasting one
	Seq           int64        `json:"seq"`                 // phase changes; part of order ids
	Addr          string       `json:"addr,omitempty"`      // host:port of the engine
	Reason        string       `json:"reason,omitempty"`
	Failed        bool         `json:"failed,omitempty"` // stopping because it failed
	CreatedMs     int64        `json:"createdMs"`
	// DecidedMs is when the decision was made that led to the present
	// waiting; kept until ready for the reclaim's latency.
	DecidedMs int64 `json:"decidedMs,omitempty"`
}

// JobPhase is where a job is in its life.
type JobPhase string

// The phases of a job.
//
//	pending → preparing → starting → running → stopping → releasing → paused → preparing …
//	running → stopping → yielded → resuming → running
//	running, releasing → succeeded | failed | cancelled
const (
	JobPending   JobPhase = "pending"   // never placed, or backed off
	JobPreparing JobPhase = "preparing" // GPUs given, agents asked to prove them free
	JobStarting  JobPhase = "starting"  // ranks started, hellos awaited
	JobRunning   JobPhase = "running"
	JobStopping  JobPhase = "stopping"  // two-phase stop or signal on its way
	JobYielded   JobPhase = "yielded"   // ranks keep memory, GPUs are free for others
	JobResuming  JobPhase = "resuming"  // told to go on in place
	JobReleasing JobPhase = "releasing" // ranks ended or killed, proofs awaited
	JobPaused    JobPhase = "paused"    // no GPU; goes on from its manifest
	JobSucceeded JobPhase = "succeeded"
	JobFailed    JobPhase = "failed"
	JobCancelled JobPhase = "cancelled"
)

// Ended tells whether the phase is final.
func (p JobPhase) Ended() bool { return p == JobSucceeded || p == JobFailed || p == JobCancelled }

// Rung is a step of the reclaim ladder, or another reason for which a gang stops.
type Rung string

// The rungs, cheapest first, and the stops that are not reclaims.
const (
	RungYield  Rung = "yield"
	RungShrink Rung = "shrink"
	RungPause  Rung = "pause"
	RungKill   Rung = "kill"
	RungGrow   Rung = "grow"   // stop to go on larger
	RungMove   Rung = "move"   // stop to go on elsewhere
	RungUser   Rung = "user"   // its owner paused or cancelled it
	RungQuota  Rung = "quota"  // given back to a tenant's guarantee
	RungFailed Rung = "failed" // a rank, a node or a GPU was lost
)

// RankPlace is where one rank runs.
type RankPlace struct {
	Rank int      `json:"rank"`
	Node string   `json:"node"`
	GPUs []string `json:"gpus"`
	Gone bool     `json:"gone,omitempty"` // proved gone in this generation
}

// Stop is a stop in progress.
type Stop struct {
	ID   string         `json:"id"`
	Mode nodes.StopMode `json:"mode"`
	Rung Rung           `json:"rung"`
	// Step is the agreed step; -1 until committed.
	Step        int64  `json:"step"`
	Beneficiary string `json:"beneficiary,omitempty"` // replica or job that gets what is freed
	Reason      string `json:"reason"`
	DecidedMs   int64  `json:"decidedMs"`
}

// Manifest is a complete checkpoint.
type Manifest struct {
	Job        string        `json:"job"`
	Generation int64         `json:"generation"`
	Step       int64         `json:"step"`
	World      int           `json:"world"`
	Samples    int64         `json:"samples"`
	Dir        string        `json:"dir"`
	Shards     []nodes.Shard `json:"shards"`
	AtMs       int64         `json:"atMs"`
}

// LedgerEntry accounts for one generation: steps first..last were done, those
// above Saved were lost.
type LedgerEntry struct {
	Generation int64  `json:"generation"`
	World      int    `json:"world"`
	FirstStep  int64  `json:"firstStep"` // the first step this generation was to do
	LastStep   int64  `json:"lastStep"`  // the last done by all ranks; FirstStep-1 when none; -1 unknown
	SavedStep  int64  `json:"savedStep"` // of the current manifest at its end
	LostSteps  int64  `json:"lostSteps"`
	LostGPUMs  int64  `json:"lostGpuMs"`
	Rung       Rung   `json:"rung,omitempty"`
	Reason     string `json:"reason"`
	StartMs    int64  `json:"startMs"`
	EndMs      int64  `json:"endMs"`
}

// EndedRanks is where the ranks of an ended generation lay.
type EndedRanks struct {
	Generation int64    `json:"generation"`
	Nodes      []string `json:"nodes"` // by rank
}

// Job is a training run.
type Job struct {
	Spec        JobSpec  `json:"spec"`
	SubmittedMs int64    `json:"submittedMs"`
	Phase       JobPhase `json:"phase"`
	SinceMs     int64    `json:"sinceMs"`
	TimeoutMs   int64    `json:"timeoutMs,omitempty"`
	Seq         int64    `json:"seq"`
	Reason      string   `json:"reason,omitempty"`
	// Want is what its owner wants: "" to run, "paused", "cancelled".
	Want string `json:"want,omitempty"`

	Generation   int64       `json:"generation"`
	GenStartMs   int64       `json:"genStartMs,omitempty"`
	FromStep     int64       `json:"fromStep"`        // the step this generation goes on from
	Ranks        []RankPlace `json:"ranks,omitempty"` // of the current generation
	MasterAddr   string      `json:"masterAddr,omitempty"`
	MasterPort   int         `json:"masterPort,omitempty"`
	Stop         *Stop       `json:"stop,omitempty"`
	Next         []RankPlace `json:"next,omitempty"` // reserved for the next generation
	After        JobPhase    `json:"after,omitempty"`
	EndRung      Rung        `json:"endRung,omitempty"`
	LastDone     int64       `json:"lastDone"` // as reported when the generation ended
	RunStartedMs int64       `json:"runStartedMs,omitempty"`

	// Last is where the generation lay that ended last, for its logs.
	Last *EndedRanks `json:"last,omitempty"`

	Manifests []Manifest    `json:"manifests,omitempty"` // newest first, two at most
	Ledger    []LedgerEntry `json:"ledger,omitempty"`
	// Totals over all generations, folded ledger entries included.
	LostSteps   int64   `json:"lostSteps"`
	LostGPUMs   int64   `json:"lostGpuMs"`
	TrainGPUMs  int64   `json:"trainGpuMs"`
	UnsavedMs   int64   `json:"unsavedGpuMs"`       // trained since the last manifest
	Restarts    []int64 `json:"restarts,omitempty"` // fleet times of crashes
	BackoffToMs int64   `json:"backoffToMs,omitempty"`
}

// Current is the newest complete checkpoint, or nil.
func (j *Job) Current() *Manifest {
	if len(j.Manifests) == 0 {
		return nil
	}
	return &j.Manifests[0]
}

// World is the number of ranks of the current generation; 0 when it has none.
func (j *Job) World() int { return len(j.Ranks) }

// Node is a machine as a fact.
type Node struct {
	nodes.Node
	Lost       bool   `json:"lost,omitempty"`
	LastSeenMs int64  `json:"lastSeenMs"`
	Cordoned   bool   `json:"cordoned,omitempty"`
	Draining   bool   `json:"draining,omitempty"`
	Reason     string `json:"reason,omitempty"`
}

// Resident is a holder that keeps memory on a GPU without computing on it.
type Resident struct {
	Holder string `json:"holder"`
	Bytes  int64  `json:"bytes"`
}

// GPU is one device as a fact.
type GPU struct {
	nodes.GPU
	Node string `json:"node"`
	// Active is the one holder that may compute here; "" when free.
	Active    string     `json:"active,omitempty"`
	Residents []Resident `json:"residents,omitempty"`
	// Reserved is the replica or job that gets this GPU next.
	Reserved string `json:"reserved,omitempty"`
	Fenced   string `json:"fenced,omitempty"` // why it must not be used

	Book    BookState `json:"book"`
	SinceMs int64     `json:"sinceMs"`
	FirstMs int64     `json:"firstMs"`
}
