package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"sluice/nodes/agent"
	"sluice/nodes/simgpu"
)

// Simulated GPUs stand for a tensor-parallel pair of 80 GB devices.
const (
	simMemoryBytes  = 160 << 30
	simIslandGPUs   = 4
	maxSimGPUs      = 64
	simName         = "simulated 2x A100-80GB"
	gpuSourceSyntax = `"nvml", "none" or "sim:N"`
)

// devicesOf opens the GPUs that --gpus names. Simulated ones live in
// DIR/simgpu, named after the node.
func devicesOf(source, dataDir, node string) (agent.Devices, error) {
	switch {
	case source == "nvml":
		return agent.OpenNVMLDevices("")
	case source == "none":
		return agent.NoDevices{}, nil
	case strings.HasPrefix(source, "sim:"):
		n, err := strconv.Atoi(source[len("sim:"):])
		if err != nil || n < 1 || n > maxSimGPUs {
			return nil, fmt.Errorf("--gpus %q: the number after sim: must be 1 to %d", source, maxSimGPUs)
		}
		dir, err := filepath.Abs(filepath.Join(dataDir, "simgpu"))
		if err != nil {
			return nil, fmt.Errorf("--gpus %q: %w", source, err)
		}
		specs := make([]simgpu.Spec, n)
		uuids := make([]string, n)
		for i := range specs {
			uuids[i] = fmt.Sprintf("SIM-%s-%d", node, i)
			specs[i] = simgpu.Spec{UUID: uuids[i], Name: simName, MemoryBytes: simMemoryBytes, Island: i / simIslandGPUs}
		}
		if err := simgpu.Create(dir, specs); err != nil {
			return nil, fmt.Errorf("make simulated GPUs: %w", err)
		}
		return agent.NewSimDevices(dir, uuids...), nil
	default:
		return nil, fmt.Errorf("--gpus %q: must be %s", source, gpuSourceSyntax)
	}
}
