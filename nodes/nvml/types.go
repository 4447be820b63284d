package nvml

import "errors"

// Limits.
const (
	// MaxGPUs is how many GPUs of a node are read; further ones are not.
	MaxGPUs = 64
	// MaxInstances is how many MIG instances of a GPU are read.
	MaxInstances = 16
	// maxEvents is how many undelivered XIDs are kept; then the oldest go.
	maxEvents = 64
)

// Errors of Open. Each says what to do.
var (
	// ErrUnavailable: this program was built without cgo.
	ErrUnavailable = errors.New("GPU readings are not in this build: build with CGO_ENABLED=1 on linux")
	// ErrNoLibrary: no libnvidia-ml.so.1 on this machine.
	ErrNoLibrary = errors.New("the NVIDIA management library is not installed: a node without GPUs, or install the driver")
	// ErrNoDriver: the library is there, the kernel driver is not loaded.
	ErrNoDriver = errors.New("the NVIDIA driver is not loaded: load it (modprobe nvidia) or run on a node with GPUs")
	// ErrVersionMismatch: the library was upgraded under a running driver.
	ErrVersionMismatch = errors.New("the NVIDIA library and the loaded driver differ: reboot needed")
	// ErrNoPermission: the device files cannot be opened.
	ErrNoPermission = errors.New("the NVIDIA devices cannot be opened by this user: run as root or grant access to /dev/nvidia*")
	// ErrTooOld: the library lacks what nothing works without.
	ErrTooOld = errors.New("the NVIDIA library is too old: upgrade the driver")
	// ErrInit: the library refused to start for another reason.
	ErrInit = errors.New("the NVIDIA library could not start")
)

// Errors of Read.
var (
	// ErrBusy: another Read has not returned.
	ErrBusy = errors.New("an earlier reading has not returned: the driver may hang")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("the reader is closed")
)

// Inventory is one reading of a node. The slices are the caller's.
type Inventory struct {
	Driver   string   `json:"driver,omitempty"`   // version, empty when not available
	GPUs     []GPU    `json:"gpus"`               // by Index; lost ones included
	Missing  []string `json:"missing,omitempty"`  // features that this library lacks
	CountErr string   `json:"countErr,omitempty"` // why the driver could not list its GPUs
}

// GPU is one device. nil means not available, which is neither zero nor idle.
type GPU struct {
	UUID            string     `json:"uuid"`  // the name; empty only for a GPU lost before it was ever read
	Name            string     `json:"name"`  // of the product
	Index           int        `json:"index"` // for display; changes with reboots and losses
	PCI             string     `json:"pci"`   // domain:bus:device.0, lower case
	MemoryBytes     *int64     `json:"memoryBytes"`
	UsedBytes       *int64     `json:"usedBytes"`
	ReservedBytes   *int64     `json:"reservedBytes"` // by the driver, outside UsedBytes; nil when counted within
	Unified         bool       `json:"unified"`       // the memory is the system's: MemoryBytes is the machine's, UsedBytes nil
	UtilPercent     *int       `json:"utilPercent"`
	PowerMilliwatts *int       `json:"powerMilliwatts"`
	TemperatureC    *int       `json:"temperatureC"`
	MIG             bool       `json:"mig"` // the units to place on are Instances
	Instances       []Instance `json:"instances,omitempty"`
	Procs           []Proc     `json:"procs"` // nil: not available; empty: none
	Lost            bool       `json:"lost"`  // for good, until Forget or a new process
	Err             string     `json:"err,omitempty"`
	Island          int        `json:"island"`
}

// Instance is one MIG instance.
type Instance struct {
	UUID        string `json:"uuid"`
	MemoryBytes *int64 `json:"memoryBytes"`
	UsedBytes   *int64 `json:"usedBytes"`
	GPUInstance int    `json:"gpuInstance"`     // -1 when not available
	Compute     int    `json:"computeInstance"` // -1 when not available
}

// Proc is a process with a compute context on a GPU.
type Proc struct {
	PID         int    `json:"pid"` // in the driver's PID namespace
	UsedBytes   *int64 `json:"usedBytes"`
	GPUInstance int    `json:"gpuInstance"` // -1 outside MIG
}

// XID is a critical error event of the driver. Code 79 is a GPU that fell off
// the bus; the reader marks it as lost.
type XID struct {
	UUID string `json:"uuid"` // empty when the driver cannot name the device
	Code uint64 `json:"code"`
}

// xidOffTheBus is the code of a GPU that has fallen off the bus.
const xidOffTheBus = 79
