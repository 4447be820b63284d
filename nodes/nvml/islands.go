package nvml

// grouping is a union-find over names (PCI addresses of GPUs and switches).
// The zero value is empty and ready.
type grouping struct{ parent map[string]string }

// find returns the group's representative, adding name if it is new.
func (g *grouping) find(name string) string {
	if g.parent == nil {
		g.parent = map[string]string{}
	}
	p, ok := g.parent[name]
	if !ok {
		g.parent[name] = name
		return name
	}
	if p != name {
		p = g.find(p)
		g.parent[name] = p
	}
	return p
}

func (g *grouping) join(a, b string) { g.parent[g.find(a)] = g.find(b) }

// island is what is known of one GPU's neighbourhood.
type island struct {
	uuid  string
	pci   string
	links []string // PCI addresses at the far ends of active NVLinks
	near  []int    // indexes of GPUs reached through PCIe switches alone
}

// islands numbers the groups from 0 in the order of the GPUs.
func islands(gpus []island) map[string]int {
	var g grouping
	for i, a := range gpus {
		g.find("gpu " + a.uuid)
		if a.pci != "" {
			g.join("gpu "+a.uuid, "pci "+a.pci)
		}
		for _, far := range a.links {
			g.join("gpu "+a.uuid, "pci "+far)
		}
		if len(a.links) > 0 {
			continue // NVLink decides
		}
		for _, j := range a.near {
			if j != i && len(gpus[j].links) == 0 {
				g.join("gpu "+a.uuid, "gpu "+gpus[j].uuid)
			}
		}
	}
	number := map[string]int{}
	out := make(map[string]int, len(gpus))
	for _, a := range gpus {
		group := g.find("gpu " + a.uuid)
		if _, have := number[group]; !have {
			number[group] = len(number)
		}
		out[a.uuid] = number[group]
	}
	return out
}
