package agent

import (
	"bufio"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"sluice/nodes"
)

// inventory describes this machine. What cannot be read stays zero and is named
// in Missing.
func inventory(cfg *Config, agentAddr string) (nodes.Node, error) {
	gpus, err := cfg.Devices.GPUs()
	if err != nil {
		return nodes.Node{}, err
	}
	n := nodes.Node{
		ID: cfg.NodeID, AgentAddr: agentAddr, Host: cfg.Host, Rack: cfg.Rack, Block: cfg.Block,
		GPUs: gpus, CPUs: runtime.NumCPU(), AgentVersion: cfg.Version, Missing: cfg.Devices.Missing(),
	}
	if n.HostMemoryBytes = hostMemoryBytes(); n.HostMemoryBytes == 0 {
		n.Missing = append(n.Missing, "host memory: /proc/meminfo is not readable")
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(cfg.DataDir, &fs); err == nil {
		n.DiskBytes = int64(fs.Blocks) * fs.Bsize
	} else {
		n.Missing = append(n.Missing, "disk: "+err.Error())
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		n.Missing = append(n.Missing, "boot id: "+err.Error())
	}
	n.BootID = strings.TrimSpace(string(boot))
	return n, nil
}

func hostMemoryBytes() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemTotal:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10
		}
	}
	return 0
}
