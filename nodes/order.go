package nodes

// OrderKind is what an order asks for.
type OrderKind string

// The orders. All are idempotent: an agent that already did one says so again.
const (
	// OrderPrepare proves that the GPUs are free, checks files and user, picks
	// ports. It starts nothing. Answer: Port.
	OrderPrepare OrderKind = "prepare"
	// OrderStart starts a holder (a replica may be started without prepare).
	OrderStart OrderKind = "start"
	// OrderSleep waits for all gateway leases of a replica to be returned or
	// to expire, puts the engine to sleep, and proves it quiet.
	OrderSleep OrderKind = "sleep"
	// OrderWake wakes a sleeping engine.
	OrderWake OrderKind = "wake"
	// OrderStop ends a holder: a replica after its leases, a rank by its stop
	// signal; after GraceMs the whole cgroup is killed.
	OrderStop OrderKind = "stop"
	// OrderKill ends a holder's whole cgroup at once.
	OrderKill OrderKind = "kill"
	// OrderForget lets the agent drop a holder that is gone.
	OrderForget OrderKind = "forget"

	// OrderPrune removes checkpoints of a running rank's job that can never be
	// resumed from again: see Keep. A note "pruned" is its answer.
	OrderPrune OrderKind = "prune"

	// The rank orders are passed to every rank of the holder, see nodes/rank.
	OrderRankPrepare OrderKind = "rankPrepare"
	OrderRankCommit  OrderKind = "rankCommit"
	OrderRankAbort   OrderKind = "rankAbort"
	OrderRankResume  OrderKind = "rankResume"
)

// StopMode says what ranks do at the agreed step.
type StopMode string

// The stop modes.
const (
	StopYield StopMode = "yield" // keep memory, leave the device quiet
	StopSave  StopMode = "stop"  // save and exit
)

// Order is one change for one holder on one node.
type Order struct {
	ID         string      `json:"id"`
	Term       uint64      `json:"term"`
	Kind       OrderKind   `json:"kind"`
	Holder     string      `json:"holder"`
	Generation int64       `json:"generation"`
	Spec       *HolderSpec `json:"spec,omitempty"`   // prepare, start
	StopID     string      `json:"stopId,omitempty"` // rank orders
	Mode       StopMode    `json:"mode,omitempty"`
	Step       int64       `json:"step,omitempty"` // rankCommit; prune: of the current manifest
	GraceMs    int64       `json:"graceMs,omitempty"`
	Reason     string      `json:"reason,omitempty"`
	// Keep of a prune names what the kept manifests lie in, below the job's
	// directory: "g3/step-00000120". What else is named so, of earlier
	// generations from FromGeneration on, and in the holder's own generation
	// with a lower number than the highest kept there, goes.
	Keep           []string `json:"keep,omitempty"`
	FromGeneration int64    `json:"fromGeneration,omitempty"`
}

// Answer is an agent's reply to an order. Err is empty when the order was
// taken up; what came of it is told by holder states.
type Answer struct {
	ID     string `json:"id"`
	Holder string `json:"holder"`
	Err    string `json:"err,omitempty"`
	// Lasting tells that trying again cannot help until somebody changes the
	// node or the spec: a file, a program or a user is not there.
	Lasting bool `json:"lasting,omitempty"`
	Port    int  `json:"port,omitempty"`
}

// RankNote is one message of a rank on its way to the controller. Steps are
// cumulative and may be thinned by the agent; all else is passed on at once.
type RankNote struct {
	Holder     string  `json:"holder"`
	Job        string  `json:"job"`
	Generation int64   `json:"generation"`
	Rank       int     `json:"rank"`
	Kind       string  `json:"kind"` // hello, step, phase, prepared, yielded, resumed, stopped, finished, shard, lost; of the agent itself: pruned
	StopID     string  `json:"stopId,omitempty"`
	Sync       string  `json:"sync,omitempty"` // hello: all or none
	Begun      int64   `json:"begun,omitempty"`
	Done       int64   `json:"done,omitempty"`
	Step       int64   `json:"step,omitempty"`
	Loss       float64 `json:"loss,omitempty"`
	Samples    int64   `json:"samples,omitempty"`
	Phase      string  `json:"phase,omitempty"`
	Shard      *Shard  `json:"shard,omitempty"`
}

// Shard is one file of a checkpoint, its size checked by the agent.
type Shard struct {
	Rank   int    `json:"rank"`
	Step   int64  `json:"step"`
	File   string `json:"file"` // absolute
	Bytes  int64  `json:"bytes"`
	Digest string `json:"digest"` // "sha256:…"
	Scope  string `json:"scope"`  // node or shared
	Node   string `json:"node,omitempty"`
	// Samples the job had consumed at Step.
	Samples int64 `json:"samples,omitempty"`
}

// Frame is one line from an agent. Exactly one field is set.
type Frame struct {
	Hello    *Hello        `json:"hello,omitempty"`
	Answer   *Answer       `json:"answer,omitempty"`
	Holder   *HolderStatus `json:"holder,omitempty"`
	Readings *Readings     `json:"readings,omitempty"`
	Rank     *RankNote     `json:"rank,omitempty"`
}

// Hello opens a stream: the inventory and every holder the agent has, with the
// latest note of each of its ranks. The controller replaces what it knew of
// the node, but for how far ranks had come.
type Hello struct {
	Node     Node           `json:"node"`
	Term     uint64         `json:"term"` // highest term the agent has obeyed
	Holders  []HolderStatus `json:"holders"`
	Ranks    []RankNote     `json:"ranks,omitempty"`
	Readings []Reading      `json:"readings"`
}

// Readings is the heartbeat of an agent, sent every second: its absence for
// the lease is how a lost agent is noticed.
type Readings struct {
	GPUs []Reading `json:"gpus"`
}

// Down is one line to an agent. Exactly one field is set.
type Down struct {
	Welcome *Welcome `json:"welcome,omitempty"`
	Order   *Order   `json:"order,omitempty"`
	Beat    *Beat    `json:"beat,omitempty"`
}

// Welcome answers a hello.
type Welcome struct {
	Term    uint64 `json:"term"`
	LeaseMs int64  `json:"leaseMs"` // silence after which either side counts the other as lost
	NowMs   int64  `json:"nowMs"`   // fleet time
}

// Beat is the controller's heartbeat.
type Beat struct {
	Term  uint64 `json:"term"`
	NowMs int64  `json:"nowMs"`
}
