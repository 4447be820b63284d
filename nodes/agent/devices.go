package agent

import (
	"fmt"

	"sluice/nodes"
)

// Devices are the GPUs of a node. Implementations are safe for concurrent use,
// and answer within about a second or with an error.
type Devices interface {
	// GPUs is the inventory; a lost GPU stays in it.
	GPUs() ([]nodes.GPU, error)
	// Read returns a reading of every GPU of the inventory. A GPU that fails
	// has Lost or Err set and never makes the others fail.
	Read() ([]DeviceReading, error)
	// Env is what a process needs in its environment to use these GPUs.
	Env(uuids []string) map[string]string
	// Missing lists in words what these devices cannot tell.
	Missing() []string
}

// DeviceReading is what one GPU shows at one moment. A nil pointer is a value
// that the device does not give.
type DeviceReading struct {
	UUID        string
	UsedBytes   *int64
	UtilPercent *int
	Procs       []DeviceProc
	// ProcsUnknown: the device cannot list its processes.
	ProcsUnknown bool
	Lost         bool
	XID          int    // last fault code, 0 for none
	Err          string // why the rest is missing
}

// DeviceProc is one process on a GPU.
type DeviceProc struct {
	PID       int
	UsedBytes *int64
	// Active says whether it computes; nil when the device cannot say.
	Active *bool

	holder string // resolved by observe; empty: foreign
	name   string // of a foreign process
}

// fatalXIDs are the faults after which a GPU must not be used before somebody
// looked at it (NVIDIA, "XID Errors", those whose action is reset or replace).
// Faults that an application causes by itself (13, 31, 43, 45, …) are not here.
var fatalXIDs = map[int]string{
	48: "double-bit ECC error", 62: "micro-controller halt", 64: "row remapping failed",
	74: "NVLink error", 79: "fell off the bus", 92: "high rate of single-bit ECC errors",
	95: "uncontained memory error", 119: "GSP timeout", 120: "GSP error", 140: "unrecovered ECC error",
	143: "GPU initialisation failed",
}

// badReason says why a device must not be used; empty when healthy.
func badReason(r DeviceReading) string {
	switch {
	case r.Lost:
		return "the GPU is lost: it does not answer its driver"
	case fatalXIDs[r.XID] != "":
		return fmt.Sprintf("XID %d: %s", r.XID, fatalXIDs[r.XID])
	case r.Err != "":
		return "the GPU cannot be read: " + r.Err
	}
	return ""
}
