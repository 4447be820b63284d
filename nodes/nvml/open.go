//go:build cgo && linux

package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// libraryPaths are tried in turn when no path is given. The first is what the
// loader finds; often only the .so.1 name exists. The others are where
// container toolkits, WSL and NixOS keep it.
var libraryPaths = []string{
	"libnvidia-ml.so.1",
	"libnvidia-ml.so",
	"/usr/lib/wsl/lib/libnvidia-ml.so.1",
	"/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
	"/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
	"/run/opengl-driver/lib/libnvidia-ml.so.1",
}

// features says which calls this library can answer.
type features struct {
	shutdown, driver, name, pci, memory, memory2, util, procs bool
	mig, migUUIDs, power, temperature, links, topology, xids  bool
	instanceIDs                                               bool
}

// symbols lists, for each feature, alternatives of which go-nvml calls the
// newest that exists; each alternative is a set of functions that must all be
// there.
func (f *features) symbols() []feature {
	one := func(names ...string) (sets [][]string) {
		for _, n := range names {
			sets = append(sets, []string{n})
		}
		return sets
	}
	return []feature{
		{&f.shutdown, "shutdown", one("nvmlShutdown")},
		{&f.driver, "driver version", one("nvmlSystemGetDriverVersion")},
		{&f.name, "product name", one("nvmlDeviceGetName")},
		{&f.pci, "PCI address", one("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo")},
		{&f.memory, "memory", one("nvmlDeviceGetMemoryInfo")},
		{&f.memory2, "reserved memory", one("nvmlDeviceGetMemoryInfo_v2")},
		{&f.util, "utilization", one("nvmlDeviceGetUtilizationRates")},
		{&f.procs, "processes", one("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses")},
		{&f.mig, "MIG mode", one("nvmlDeviceGetMigMode")},
		{&f.migUUIDs, "MIG instances", [][]string{{"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"}}},
		{&f.instanceIDs, "MIG instance ids", [][]string{{"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId"}}},
		{&f.power, "power", one("nvmlDeviceGetPowerUsage")},
		{&f.temperature, "temperature", one("nvmlDeviceGetTemperature")},
		{&f.links, "NVLink", [][]string{{"nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2"}, {"nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo"}}},
		{&f.topology, "PCIe topology", one("nvmlDeviceGetTopologyCommonAncestor")},
		{&f.xids, "XID events", [][]string{
			{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"},
			{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents", "nvmlEventSetWait"},
		}},
	}
}

type feature struct {
	have *bool
	name string
	sets [][]string
}

// essential is what nothing works without; of each set one must be there.
var essential = [][]string{
	{"nvmlInit_v2", "nvmlInit"},
	{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
	{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	{"nvmlDeviceGetUUID"},
}

// pin opens the library by our own handle, which is never closed: go-nvml calls
// nvmlInit in the same breath as it loads, too late to ask whether it is there,
// and addresses that were bound must stay valid after Close.
func pin(path string) (lib *dl.DynamicLibrary, found string, err error) {
	paths := libraryPaths
	if path != "" {
		paths = []string{path}
	}
	for _, p := range paths {
		lib := dl.New(p, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
		if e := lib.Open(); e == nil {
			return lib, p, nil
		} else if err == nil {
			err = e
		}
	}
	return nil, "", fmt.Errorf("nvml: %w (%v)", ErrNoLibrary, err)
}

// lookup asks for every symbol, once.
func lookup(lib *dl.DynamicLibrary) (f features, missing []string, err error) {
	have := func(name string) bool { return lib.Lookup(name) == nil }
	for _, alternatives := range essential {
		ok := false
		for _, name := range alternatives {
			ok = ok || have(name)
		}
		if !ok {
			return f, nil, fmt.Errorf("nvml: %s is missing: %w", alternatives[0], ErrTooOld)
		}
	}
	for _, want := range f.symbols() {
		for _, set := range want.sets {
			all := true
			for _, name := range set {
				all = all && have(name)
			}
			*want.have = *want.have || all
		}
		if !*want.have {
			missing = append(missing, want.name)
		}
	}
	return f, missing, nil
}

// Open loads the library (libraryPath, or where it usually is when empty) and
// starts it. Errors: ErrNoLibrary, ErrNoDriver, ErrVersionMismatch,
// ErrNoPermission, ErrTooOld, ErrInit. One path a process: a second one would
// mix with the first, since symbols are bound globally.
func Open(libraryPath string) (*Reader, error) {
	lib, found, err := pin(libraryPath)
	if err != nil {
		return nil, err
	}
	have, missing, err := lookup(lib)
	if err != nil {
		return nil, err
	}
	api := nvml.New(nvml.WithLibraryPath(found))
	switch ret := api.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("nvml: %s: %w", found, ErrNoLibrary)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, fmt.Errorf("nvml: %w", ErrNoDriver)
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return nil, fmt.Errorf("nvml: %w", ErrVersionMismatch)
	case nvml.ERROR_NO_PERMISSION:
		return nil, fmt.Errorf("nvml: %w", ErrNoPermission)
	default:
		return nil, fmt.Errorf("nvml: %w: %s", ErrInit, text(ret))
	}
	r := newReader(api, have, missing)
	if have.driver {
		if v, ret := api.SystemGetDriverVersion(); ret == nvml.SUCCESS {
			r.driver = v
		}
	}
	return r, nil
}

// text names a return code. NVIDIA's own texts need nvmlErrorString, which an
// old library may lack.
func text(ret nvml.Return) string {
	if s, ok := texts[ret]; ok {
		return s
	}
	return fmt.Sprintf("NVML code %d", int(ret))
}

var texts = map[nvml.Return]string{
	nvml.ERROR_UNINITIALIZED:           "not initialized",
	nvml.ERROR_INVALID_ARGUMENT:        "invalid argument",
	nvml.ERROR_NOT_SUPPORTED:           "not supported",
	nvml.ERROR_NO_PERMISSION:           "no permission",
	nvml.ERROR_NOT_FOUND:               "not found",
	nvml.ERROR_INSUFFICIENT_POWER:      "power cables not attached",
	nvml.ERROR_DRIVER_NOT_LOADED:       "driver not loaded",
	nvml.ERROR_TIMEOUT:                 "timeout",
	nvml.ERROR_IRQ_ISSUE:               "interrupt problem",
	nvml.ERROR_LIBRARY_NOT_FOUND:       "library not found",
	nvml.ERROR_CORRUPTED_INFOROM:       "corrupted infoROM",
	nvml.ERROR_GPU_IS_LOST:             "GPU is lost",
	nvml.ERROR_RESET_REQUIRED:          "GPU needs a reset",
	nvml.ERROR_OPERATING_SYSTEM:        "blocked by the operating system",
	nvml.ERROR_LIB_RM_VERSION_MISMATCH: "library and driver differ, reboot needed",
	nvml.ERROR_IN_USE:                  "in use",
	nvml.ERROR_MEMORY:                  "out of memory",
	nvml.ERROR_UNKNOWN:                 "unknown error",
}
