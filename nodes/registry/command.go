package registry

import "sluice/nodes"

// Command is one change of the facts. Exactly one pointer is set.
type Command struct {
	ID     string `json:"id"`
	AtMs   int64  `json:"atMs"`
	Term   uint64 `json:"term,omitempty"`
	Author string `json:"author"` // "fill", "agent:n1", "key:ab12", "operator"
	Reason string `json:"reason,omitempty"`

	PutTenant    *TenantSpec  `json:"putTenant,omitempty"`
	DeleteTenant *ByName      `json:"deleteTenant,omitempty"`
	PutKey       *KeySpec     `json:"putKey,omitempty"`
	DeleteKey    *ByName      `json:"deleteKey,omitempty"`
	SetLimits    *SetLimits   `json:"setLimits,omitempty"`
	AddUsage     *AddUsage    `json:"addUsage,omitempty"`
	PutToken     *TokenSpec   `json:"putToken,omitempty"`
	DeleteToken  *ByName      `json:"deleteToken,omitempty"`
	PutModel     *ModelSpec   `json:"putModel,omitempty"`
	DeleteModel  *ByName      `json:"deleteModel,omitempty"`
	SubmitJob    *JobSpec     `json:"submitJob,omitempty"`
	JobWant      *JobWant     `json:"jobWant,omitempty"`
	NodeSeen     *nodes.Node  `json:"nodeSeen,omitempty"`
	NodeLost     *NodeLost    `json:"nodeLost,omitempty"`
	NodeMark     *NodeMark    `json:"nodeMark,omitempty"`
	GPUMark      *GPUMark     `json:"gpuMark,omitempty"`
	Reclaim      *Reclaim     `json:"reclaim,omitempty"`
	ReplicaPhase *PhaseChange `json:"replicaPhase,omitempty"`
	ReplicaGone  *ReplicaGone `json:"replicaGone,omitempty"`
	JobPlace     *JobPlace    `json:"jobPlace,omitempty"`
	JobStop      *Victim      `json:"jobStop,omitempty"`
	JobCommit    *JobCommit   `json:"jobCommit,omitempty"`
	JobPhase     *PhaseChange `json:"jobPhase,omitempty"`
	JobEnding    *JobEnding   `json:"jobEnding,omitempty"`
	RankGone     *RankGone    `json:"rankGone,omitempty"`
	HolderGone   *HolderGone  `json:"holderGone,omitempty"`
	Manifest     *Manifest    `json:"manifest,omitempty"`
}

// ByName names what is deleted.
type ByName struct {
	Name string `json:"name"`
}

// SetLimits changes the limits of a key or of a tenant that exists, and nothing else of it.
type SetLimits struct {
	Key    string `json:"key,omitempty"` // or
	Tenant string `json:"tenant,omitempty"`
	Limits Limits `json:"limits"`
}

// AddUsage books what keys have used since the gateway's last such command.
type AddUsage struct {
	Rows []UsageRow `json:"rows"` // at most MaxUsageBatch
}

// JobWant is its owner's wish: "", "paused" or "cancelled".
type JobWant struct {
	Job  string `json:"job"`
	Want string `json:"want"`
}

// NodeLost says that a node's lease ran out. Its GPUs are unknown from
// LastSeenMs on.
type NodeLost struct {
	Node       string `json:"node"`
	LastSeenMs int64  `json:"lastSeenMs"`
}

// NodeMark cordons, drains or frees a node.
type NodeMark struct {
	Node     string `json:"node"`
	Cordoned bool   `json:"cordoned"`
	Draining bool   `json:"draining"`
}

// GPUMark fences a GPU (Reason set) or frees it (Reason empty).
type GPUMark struct {
	UUID   string `json:"uuid"`
	Reason string `json:"reason"`
}

// Take is a placement of a replica: a new one, or a sleeping one to wake.
type Take struct {
	Replica   string   `json:"replica"` // id; new ids come from NewReplicaID
	Model     string   `json:"model"`
	Version   int64    `json:"version"`
	Node      string   `json:"node"`
	GPUs      []string `json:"gpus"`
	Wake      bool     `json:"wake,omitempty"`
	TimeoutMs int64    `json:"timeoutMs"` // to wait for the GPUs
}

// Victim is a gang or replica that gives way. For a gang Seq guards against a
// plan made on an older phase.
type Victim struct {
	Job     string `json:"job,omitempty"`
	Replica string `json:"replica,omitempty"`
	Seq     int64  `json:"seq"`
	Rung    Rung   `json:"rung"`
	// Next is the placement of the next generation (shrink, grow, move); its
	// GPUs are reserved for the job as they come free.
	Next        []RankPlace `json:"next,omitempty"`
	Beneficiary string      `json:"beneficiary,omitempty"`
	TimeoutMs   int64       `json:"timeoutMs"`
	Reason      string      `json:"reason"`
}

// Reclaim reserves GPUs for replicas and evicts who holds them, in one.
// Without victims it simply places.
type Reclaim struct {
	Takes   []Take   `json:"takes"`
	Victims []Victim `json:"victims,omitempty"`
}

// PhaseChange moves a replica or job to another phase. Seq must be the present one.
type PhaseChange struct {
	Name      string `json:"name"`
	Seq       int64  `json:"seq"`
	To        string `json:"to"`
	TimeoutMs int64  `json:"timeoutMs,omitempty"`
	Addr      string `json:"addr,omitempty"` // replica ready
	// MasterAddr and MasterPort come with a job's starting.
	MasterAddr string `json:"masterAddr,omitempty"`
	MasterPort int    `json:"masterPort,omitempty"`
	Reason     string `json:"reason,omitempty"`
	// Failed marks a replica's stopping as a failure that backs its model off.
	Failed bool `json:"failed,omitempty"`
}

// ReplicaGone removes a replica that was proved gone. Failed counts towards
// the model's back-off until RetryAtMs.
type ReplicaGone struct {
	Replica   string `json:"replica"`
	Failed    bool   `json:"failed,omitempty"`
	RetryAtMs int64  `json:"retryAtMs,omitempty"`
}

// JobPlace gives a pending or paused job its GPUs: next generation, preparing.
type JobPlace struct {
	Job       string      `json:"job"`
	Seq       int64       `json:"seq"`
	Ranks     []RankPlace `json:"ranks"`
	TimeoutMs int64       `json:"timeoutMs"`
}

// JobCommit fixes the step of a stop.
type JobCommit struct {
	Job    string `json:"job"`
	StopID string `json:"stopId"`
	Step   int64  `json:"step"`
}

// JobEnding ends the current generation: no further step of it counts. After
// says what becomes of the job when all its ranks are proved gone: preparing
// (with Next), paused, pending (after BackoffToMs), succeeded, failed,
// cancelled.
type JobEnding struct {
	Job         string   `json:"job"`
	Seq         int64    `json:"seq"`
	After       JobPhase `json:"after"`
	Rung        Rung     `json:"rung"`
	LastDone    int64    `json:"lastDone"` // last step done by all ranks, -1 unknown
	Clean       bool     `json:"clean,omitempty"`
	TimeoutMs   int64    `json:"timeoutMs"`
	BackoffToMs int64    `json:"backoffToMs,omitempty"`
	Restart     bool     `json:"restart,omitempty"` // counts as a crash
	Reason      string   `json:"reason"`
}

// RankGone reports ranks proved gone; their GPUs are free from AtMs on.
type RankGone struct {
	Job        string `json:"job"`
	Generation int64  `json:"generation"`
	Ranks      []int  `json:"ranks"`
	// LastDone is the last step that any rank was heard to have done by now; 0
	// when nothing is known. What came after the generation's end is lost.
	LastDone int64 `json:"lastDone,omitempty"`
	// Abandon gives the ranks up without proof, because their node is lost: the
	// job moves on, the GPUs stay held until the node is back and swept.
	Abandon bool `json:"abandon,omitempty"`
}

// HolderGone frees the GPUs of a holder that belongs to no present generation
// or replica, after its agent proved it gone.
type HolderGone struct {
	Node   string `json:"node"`
	Holder string `json:"holder"`
}

// Event is what a command changed, for people, history and owner loops.
type Event struct {
	AtMs   int64  `json:"atMs"`
	Kind   string `json:"kind"`   // "job", "replica", "node", "gpu", "model", "tenant", "key", "reclaim", "manifest"
	Object string `json:"object"` // name
	Model  string `json:"model,omitempty"`
	From   string `json:"from,omitempty"`
	To     string `json:"to,omitempty"`
	Author string `json:"author,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Rung, GPUs and TookMs come with reclaims and returns: TookMs is from the
	// decision to the proof of release.
	Rung   Rung     `json:"rung,omitempty"`
	GPUs   []string `json:"gpus,omitempty"`
	TookMs int64    `json:"tookMs,omitempty"`
	World  int      `json:"world,omitempty"`
	Steps  int64    `json:"steps,omitempty"` // lost, or the manifest's step
}
