package nodes

import "strings"

// HolderKind tells a replica from a rank.
type HolderKind string

// The kinds of holder.
const (
	KindReplica HolderKind = "replica"
	KindRank    HolderKind = "rank"
)

// Launcher says how the ranks of a gang are started on a node.
type Launcher string

// The launchers.
const (
	LaunchRanks    Launcher = "ranks"    // one process a rank, environment set
	LaunchTorchrun Launcher = "torchrun" // one torchrun a node, fixed size
)

// SleepAPI names the way an engine is put to sleep and woken.
type SleepAPI string

// The sleep interfaces.
const (
	SleepNone SleepAPI = ""     // never slept: stopped instead
	SleepVLLM SleepAPI = "vllm" // POST /sleep?level=1, POST /wake_up, GET /is_sleeping
)

// HolderSpec is everything an agent needs to run one holder. It is complete:
// the agent asks nobody else.
type HolderSpec struct {
	ID         string            `json:"id"` // "chat-7", "bert.g3.r1"
	Kind       HolderKind        `json:"kind"`
	Owner      string            `json:"owner"` // model or job
	Tenant     string            `json:"tenant"`
	Generation int64             `json:"generation"`
	GPUs       []string          `json:"gpus"` // UUIDs
	Command    []string          `json:"command"`
	Env        map[string]string `json:"env,omitempty"`
	Workdir    string            `json:"workdir,omitempty"`
	User       string            `json:"user,omitempty"`
	// ActiveBytes and ResidentBytes are the declared memory on each GPU while
	// the holder computes, and while it is asleep or yielded.
	ActiveBytes   int64 `json:"activeBytes,omitempty"`
	ResidentBytes int64 `json:"residentBytes,omitempty"`

	Replica *ReplicaSpec `json:"replica,omitempty"`
	Rank    *RankSpec    `json:"rank,omitempty"`
}

// ReplicaSpec is the part of a holder that only replicas have. The agent picks
// a port and puts it for {{port}} in the command.
type ReplicaSpec struct {
	HealthPath string   `json:"healthPath"` // 200 means ready
	Sleep      SleepAPI `json:"sleep,omitempty"`
}

// RankSpec is the part of a holder that only ranks have. With LaunchTorchrun
// one holder stands for LocalWorldSize ranks from Rank on.
type RankSpec struct {
	Job            string   `json:"job"`
	Launcher       Launcher `json:"launcher"`
	Rank           int      `json:"rank"`
	LocalRank      int      `json:"localRank"`
	WorldSize      int      `json:"worldSize"`
	LocalWorldSize int      `json:"localWorldSize"`
	NodeRank       int      `json:"nodeRank"`
	NodeCount      int      `json:"nodeCount"`
	MasterAddr     string   `json:"masterAddr"`
	MasterPort     int      `json:"masterPort"` // 0 in a prepare of rank 0: its agent picks one
	// CheckpointDir is this generation's own directory.
	CheckpointDir string `json:"checkpointDir"`
	// ResumeManifest is the JSON of the manifest to resume from; the agent
	// writes it to a file and names that in SLUICE_RESUME. Empty: start anew.
	ResumeManifest []byte `json:"resumeManifest,omitempty"`
	// Protocol is false for a job that knows nothing of the rank protocol.
	Protocol   bool   `json:"protocol"`
	StopSignal string `json:"stopSignal,omitempty"` // "SIGTERM" or "SIGUSR1"
}

// HolderState is what an agent says of one holder.
type HolderState string

// The states of a holder on its node. A replica goes prepared → starting →
// ready ⇄ asleep → ending → gone; a rank goes prepared → starting → running ⇄
// yielded → ending → gone.
const (
	StatePrepared HolderState = "prepared" // GPUs proved free, files and user there, not started
	StateStarting HolderState = "starting" // forked; not ready, or no hello yet
	StateReady    HolderState = "ready"    // replica answers its health path
	StateUnwell   HolderState = "unwell"   // replica was ready and fails its health path; still running
	StateAsleep   HolderState = "asleep"   // replica keeps resident memory only, proved quiet
	StateRunning  HolderState = "running"  // rank said hello (or, without protocol, was started)
	StateYielded  HolderState = "yielded"  // rank keeps memory, proved quiet
	StateEnding   HolderState = "ending"   // told to end, or ended and not yet proved gone
	StateGone     HolderState = "gone"     // proved: no process, nothing on the device
)

// HolderStatus is the agent's whole word on one holder.
type HolderStatus struct {
	ID         string      `json:"id"`
	Generation int64       `json:"generation"`
	Kind       HolderKind  `json:"kind"`
	Owner      string      `json:"owner"`
	State      HolderState `json:"state"`
	GPUs       []string    `json:"gpus"`
	Port       int         `json:"port,omitempty"` // replica's port, or the master port picked by rank 0's agent
	Pid        int         `json:"pid,omitempty"`
	// Exited tells that the main process has ended with ExitCode (128+n for a
	// signal n, -1 when unknown because its shim was lost).
	Exited   bool   `json:"exited,omitempty"`
	ExitCode int    `json:"exitCode,omitempty"`
	Reason   string `json:"reason,omitempty"`
	SinceMs  int64  `json:"sinceMs"` // of this state, the agent's own clock: for display
}

// StepName is the beginning of a checkpoint's path below its generation's
// directory that names the checkpoint: "step-" and a number, whatever follows;
// "" for another path. Files and directories named so are removed when no
// manifest can name them again.
func StepName(path string) string {
	const prefix = "step-"
	if !strings.HasPrefix(path, prefix) {
		return ""
	}
	end := len(prefix)
	for end < len(path) && path[end] >= '0' && path[end] <= '9' {
		end++
	}
	if end == len(prefix) {
		return ""
	}
	return path[:end]
}
