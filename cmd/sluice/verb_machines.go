package main

import (
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"sluice/gateway/admin"
)

func newNodeCmd() *cobra.Command {
	mark := func(verb string) func(string) (string, string) {
		return func(name string) (string, string) { return http.MethodPost, apiPath("nodes", name, verb) }
	}
	return group("node", "Machines", "  sluice node list\n  sluice node drain n3",
		newNodeListCmd(),
		changeCmd("cordon NODE", "Place nothing new on a node", "  sluice node cordon n3", "a node's id", mark("cordon")),
		changeCmd("drain NODE", "Move everything off a node", "  sluice node drain n3", "a node's id", mark("drain")),
		changeCmd("uncordon NODE", "Use a node again", "  sluice node uncordon n3", "a node's id", mark("uncordon")))
}

func newNodeListCmd() *cobra.Command {
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List nodes", Example: "  sluice node list", Args: argCount(0, "")}
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		var nodes []admin.NodeStatus
		if err := fetch(c, conn, out, apiPath("nodes"), &nodes); err != nil {
			return err
		}
		return out.print(c, nodes, func(t *table) {
			t.row("NODE", "STATE", "GPUS", "FREE", "RACK", "BLOCK", "HEARD", "AGENT", "REASON")
			for _, n := range nodes {
				t.row(n.ID, n.State, n.GPUs, n.FreeGPUs, n.Rack, n.Block, ago(n.SilentMs)+" ago", n.AgentVersion, n.Reason)
			}
		})
	}
	return c
}

func newGPUCmd() *cobra.Command {
	return group("gpu", "GPUs and who holds them", "  sluice gpu list\n  sluice gpu list -o json", newGPUListCmd())
}

func newGPUListCmd() *cobra.Command {
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List GPUs with holders and memory", Example: "  sluice gpu list", Args: argCount(0, "")}
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		var gpus []admin.GPUStatus
		if err := fetch(c, conn, out, apiPath("gpus"), &gpus); err != nil {
			return err
		}
		return out.print(c, gpus, func(t *table) {
			t.row("NODE", "GPU", "UUID", "ISLAND", "STATE", "HOLDER", "FOR", "RESIDENTS", "MEMORY", "USED", "BUSY", "NOTE")
			for _, g := range gpus {
				t.row(g.Node, g.Index, g.UUID, g.Island, g.State, g.Holder, ago(g.ForMs), len(g.Residents), bytesText(g.MemoryBytes),
					known(g.UsedBytes, bytesText), known(g.UtilPercent, func(p int) string { return fmt.Sprintf("%d%%", p) }), gpuNote(&g))
			}
		})
	}
	return c
}

func gpuNote(g *admin.GPUStatus) string {
	switch {
	case g.Fenced != "":
		return "fenced: " + g.Fenced
	case g.Reserved != "":
		return "next: " + g.Reserved
	}
	return ""
}

// known shows a value that a device may not give.
func known[T any](p *T, text func(T) string) string {
	if p == nil {
		return "n/a"
	}
	return text(*p)
}

func newReplicaCmd() *cobra.Command {
	list := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List replicas", Example: "  sluice replica list", Args: argCount(0, "")}
	conn, out := addClientFlags(list), outputFlag(list)
	list.RunE = func(c *cobra.Command, _ []string) error {
		var replicas []admin.ReplicaStatus
		if err := fetch(c, conn, out, apiPath("replicas"), &replicas); err != nil {
			return err
		}
		return out.print(c, replicas, func(t *table) {
			t.row("REPLICA", "MODEL", "VERSION", "PHASE", "FOR", "NODE", "GPUS", "ADDR", "REASON")
			for _, r := range replicas {
				t.row(r.ID, r.Model, fmt.Sprintf("v%d", r.Version), r.Phase, ago(r.ForMs), r.Node, len(r.GPUs), r.Addr, r.Reason)
			}
		})
	}
	return group("replica", "Running engines", "  sluice replica list", list)
}
