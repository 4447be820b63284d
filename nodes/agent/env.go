package agent

import (
	"math"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"sluice/nodes"
)

// passed are the variables of the agent's own environment that holders get.
// No more: the agent's may hold tokens.
var passed = []string{"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "USER", "LOGNAME"}

// place is what an agent adds to a spec when it starts it.
type place struct {
	dir  string // of the holder
	port int
	// memoryBytes of the smallest of its GPUs; 0: not known.
	memoryBytes int64
	socket      string // rank.sock; empty without protocol
	resume      string // file with the manifest; empty: start anew
	device      map[string]string
	marks       []string
	base        func(name string) (string, bool) // the agent's environment
	home        string                           // of the user switched to
}

// fill puts values for {{port}} and {{memoryFraction}}: the declared part of
// the GPU's memory, as vLLM's --gpu-memory-utilization wants it; 0.90 when
// nothing is declared.
func (p place) fill(s *nodes.HolderSpec, text string) string {
	if !strings.Contains(text, "{{") {
		return text
	}
	fraction := 0.9
	if s.ActiveBytes > 0 && p.memoryBytes > 0 {
		fraction = float64(s.ActiveBytes) / float64(p.memoryBytes)
	}
	return strings.NewReplacer(
		"{{port}}", strconv.Itoa(p.port),
		// Cut, not rounded: never more than was declared.
		"{{memoryFraction}}", strconv.FormatFloat(math.Floor(fraction*1000)/1000, 'f', 3, 64),
	).Replace(text)
}

// environment builds a holder's environment: the agent's few, the spec's, and
// last ours, which a spec cannot change.
func environment(s *nodes.HolderSpec, p place) []string {
	env := make(map[string]string)
	for _, k := range passed {
		if v, ok := p.base(k); ok {
			env[k] = v
		}
	}
	if p.home != "" {
		env["HOME"] = p.home
	}
	for k, v := range s.Env {
		env[k] = p.fill(s, v)
	}
	for k, v := range p.device {
		env[k] = v
	}
	// The limits that the holder declared and has to keep to on each GPU.
	if s.ActiveBytes > 0 {
		env["SLUICE_ACTIVE_BYTES"] = strconv.FormatInt(s.ActiveBytes, 10)
		env["SLUICE_RESIDENT_BYTES"] = strconv.FormatInt(s.ResidentBytes, 10)
	}
	if s.Rank != nil {
		rankEnvironment(env, s, p)
	}
	for _, kv := range p.marks {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	out := make([]string, 0, len(env))
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	sort.Strings(out)
	return out
}

// rankEnvironment adds what the rank protocol promises. torchrun sets the
// variables of torch.distributed itself.
func rankEnvironment(env map[string]string, s *nodes.HolderSpec, p place) {
	r := s.Rank
	env["SLUICE_JOB"] = r.Job
	env["SLUICE_GENERATION"] = strconv.FormatInt(s.Generation, 10)
	set := func(k, v string) {
		if v != "" {
			env[k] = v
		} else {
			delete(env, k)
		}
	}
	set("SLUICE_CHECKPOINT_DIR", r.CheckpointDir)
	set("SLUICE_SOCKET", p.socket)
	set("SLUICE_RESUME", p.resume)
	if r.Launcher == nodes.LaunchTorchrun {
		return
	}
	env["RANK"] = strconv.Itoa(r.Rank)
	env["LOCAL_RANK"] = strconv.Itoa(r.LocalRank)
	env["WORLD_SIZE"] = strconv.Itoa(r.WorldSize)
	env["LOCAL_WORLD_SIZE"] = strconv.Itoa(r.LocalWorldSize)
	env["MASTER_ADDR"] = r.MasterAddr
	env["MASTER_PORT"] = strconv.Itoa(r.MasterPort)
}

// command builds a holder's argv.
func command(s *nodes.HolderSpec, p place) []string {
	argv := make([]string, len(s.Command))
	for i, a := range s.Command {
		argv[i] = p.fill(s, a)
	}
	if s.Rank == nil || s.Rank.Launcher != nodes.LaunchTorchrun {
		return argv
	}
	r := s.Rank
	bin := "torchrun"
	rest := append([]string{"--no_python"}, argv...)
	if len(argv) > 0 && filepath.Base(argv[0]) == "torchrun" {
		bin, rest = argv[0], argv[1:]
	}
	// Fixed size: no rendezvous options. Redirects are named because torch 1.13
	// on Python 3.11 fails with its defaults; 1 keeps stderr apart and tees stdout.
	return append([]string{
		bin,
		"--nnodes", strconv.Itoa(r.NodeCount), "--node_rank", strconv.Itoa(r.NodeRank),
		"--nproc_per_node", strconv.Itoa(r.LocalWorldSize),
		"--master_addr", r.MasterAddr, "--master_port", strconv.Itoa(r.MasterPort),
		"-r", "1", "-t", "1", "--log_dir", filepath.Join(p.dir, "torchrun"),
	}, rest...)
}
