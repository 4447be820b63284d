package nodes

// GPU is one device (or one MIG instance) of a node as its agent found it.
type GPU struct {
	UUID        string `json:"uuid"`
	Index       int    `json:"index"` // for display only
	Name        string `json:"name"`
	MemoryBytes int64  `json:"memoryBytes"`
	// Island groups GPUs of one node that are joined by NVLink; equal numbers
	// mean the same island.
	Island int `json:"island"`
}

// Node is the inventory of one machine.
type Node struct {
	ID string `json:"id"`
	// AgentAddr is host:port of the agent's own listener (leases, logs).
	AgentAddr string `json:"agentAddr"`
	// Host is the address at which holders of this node are reached.
	Host            string `json:"host"`
	Rack            string `json:"rack,omitempty"`
	Block           string `json:"block,omitempty"`
	GPUs            []GPU  `json:"gpus"`
	CPUs            int    `json:"cpus"`
	HostMemoryBytes int64  `json:"hostMemoryBytes"`
	DiskBytes       int64  `json:"diskBytes"`
	BootID          string `json:"bootId"`
	AgentVersion    string `json:"agentVersion"`
	// Missing lists what this node cannot report, in words, such as
	// "utilisation of GPU-1: not supported".
	Missing []string `json:"missing,omitempty"`
}

// Reading is what one GPU shows at one moment. A nil field is a value that the
// device does not give: not available is not zero.
type Reading struct {
	UUID        string   `json:"uuid"`
	UsedBytes   *int64   `json:"usedBytes,omitempty"`
	UtilPercent *int     `json:"utilPercent,omitempty"`
	Lost        bool     `json:"lost,omitempty"`
	XID         int      `json:"xid,omitempty"`
	Foreign     []string `json:"foreign,omitempty"` // processes that nobody placed here, "pid 4711 (python3)"
	// ActiveHolders are the holders whose processes the device sees computing.
	ActiveHolders []string `json:"activeHolders,omitempty"`
	// BadReason says why the device must not be used; empty when healthy.
	BadReason string `json:"badReason,omitempty"`
}
