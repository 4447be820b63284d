package simgpu

import (
	"fmt"
	"os"
	"strings"
)

// Environment of a process on simulated GPUs, set by its agent.
const (
	EnvDir     = "SLUICE_SIMGPU_DIR"    // the directory of state files; unset means no simulated GPUs
	EnvDevices = "CUDA_VISIBLE_DEVICES" // UUIDs, separated by commas
	EnvHolder  = "SLUICE_HOLDER"        // the holder this process belongs to
)

// FromEnv attaches this process to the GPUs its environment names. Without
// SLUICE_SIMGPU_DIR, or with no device named, it returns nil and no error. On
// an error nothing stays attached.
func FromEnv() ([]*Context, error) {
	dir, devices := os.Getenv(EnvDir), os.Getenv(EnvDevices)
	if dir == "" || devices == "" {
		return nil, nil
	}
	holder := os.Getenv(EnvHolder)
	if holder == "" {
		return nil, fmt.Errorf("%w: %s is set, so %s must name the holder", ErrBadEnv, EnvDir, EnvHolder)
	}
	var out []*Context
	for uuid := range strings.SplitSeq(devices, ",") {
		c, err := attach(dir, strings.TrimSpace(uuid), holder)
		if err != nil {
			for _, done := range out {
				_ = done.Close()
			}
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

func attach(dir, uuid, holder string) (*Context, error) {
	dev, err := Open(dir, uuid)
	if err != nil {
		return nil, fmt.Errorf("attach %q from %s (which must list uuids): %w", uuid, EnvDevices, err)
	}
	return dev.Attach(holder)
}
