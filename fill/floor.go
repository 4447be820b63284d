package fill

import (
	"cmp"
	"maps"
	"slices"

	"sluice/nodes"
	"sluice/nodes/registry"
)

// floor is the scratch picture that a plan is built on: every GPU with who
// holds it, and what this plan has already given away. Nothing in it is a
// fact; it is rebuilt at every plan in memory that is kept between them.
type floor struct {
	nodes   []floorNode // by block, rack, id: neighbours are near in the slice
	gpus    []floorGPU  // by node, island, uuid
	islands []span
	byUUID  map[string]int32

	jobs     []floorJob // by name
	jobIndex map[string]int32
	jobGPUs  []int32 // arena of floorJob.gpus
	tenants  map[string]*floorTenant
	tenList  []*floorTenant // by name

	replicas []*registry.Replica // by id
	usable   int                 // GPUs that may be given to somebody

	largestIsland int
}

// span is a run of GPUs: a node's, or an island's.
type span struct{ lo, hi int32 }

type floorNode struct {
	fact                *registry.Node
	id                  string
	laid                []nodes.GPU // the inventory as it was laid out
	rackName, blockName string
	gpus                span
	islands             span // into floor.islands
	rack                int32
	block               int32
	usable              bool // may get something new
	present             bool // its agent is heard
}

type floorGPU struct {
	fact   *registry.GPU
	uuid   string
	node   int32
	island int32
	memory int64
	usable bool

	active   bool   // somebody holds it
	job      int32  // the running gang that holds it, -1
	lent     int32  // the yielded gang that is resident here, -1
	reserved string // for whom, as facts or by this plan
	// residentBytes is what all residents keep, now and after who leaves has left.
	residentBytes int64
	residents     int
	leaving       bool // held, and its holder is on its way out for nobody in particular
	claimed       bool // given away by this plan
	held          bool // kept from training for a replica to come

	need      bool  // taken from its gang by the reclaim being built
	takeBytes int64 // what the taker will hold active here
}

// floorJob is a job that has not ended.
type floorJob struct {
	job    *registry.Job
	name   string
	tenant *floorTenant
	memo   *jobMemo
	gpus   []int32 // of its ranks, in rank order
	size   int     // GPUs a rank

	priority int // dense rank among the tenant's jobs, 0 lowest
	needN    int // GPUs needed from it by the reclaim being built
	offer    offer
	touched  bool // this plan has a command for it
	cause    Cause
	text     string

	finishedKnown bool
	finished      []int // ranks that did all their steps
}

type floorTenant struct {
	name      string
	guarantee int
	limit     int // 0: none
	weight    float64
	held      int // GPUs of its gangs, what this plan gives them included
	leaving   int // GPUs that its gangs still hold and are giving back
	waits     bool
}

func (t *floorTenant) share() float64 { return float64(t.held) / t.weight }

// build brings the floor up to date with the facts.
func (f *floor) build(v *View) {
	if !f.sameTopology(v.State) {
		f.layOut(v.State)
	}
	f.usable = 0
	for i := range f.nodes {
		n := &f.nodes[i]
		n.fact = v.State.Nodes[n.id]
		n.present = !n.fact.Lost && (v.Fleet == nil || v.connected(n.id))
		n.usable = n.present && !n.fact.Cordoned && !n.fact.Draining
		for g := n.gpus.lo; g < n.gpus.hi; g++ {
			f.refresh(&f.gpus[g], n, v.State)
		}
	}
	f.seatJobs(v.State)
	f.seatReplicas(v.State)
}

func (f *floor) refresh(g *floorGPU, n *floorNode, st *registry.State) {
	old := *g
	*g = floorGPU{uuid: old.uuid, node: old.node, island: old.island, memory: old.memory, job: -1, lent: -1}
	g.fact = st.GPUs[g.uuid]
	if g.fact == nil {
		return
	}
	g.usable = n.usable && g.fact.Fenced == "" && g.fact.Node == n.id
	g.active, g.reserved = g.fact.Active != "", g.fact.Reserved
	for i := range g.fact.Residents {
		g.residentBytes += g.fact.Residents[i].Bytes
		g.residents++
	}
	if g.usable {
		f.usable++
	}
}

// sameTopology tells whether nodes and GPUs are those of the last build.
func (f *floor) sameTopology(st *registry.State) bool {
	if f.byUUID == nil || len(st.Nodes) != len(f.nodes) {
		return false
	}
	for i := range f.nodes {
		was := &f.nodes[i]
		now := st.Nodes[was.id]
		if now == nil || len(now.GPUs) != len(was.laid) || now.Rack != was.rackName || now.Block != was.blockName {
			return false
		}
		if len(now.GPUs) > 0 && &now.GPUs[0] == &was.laid[0] {
			continue // the very inventory that was laid out
		}
		if !slices.Equal(now.GPUs, was.laid) {
			return false
		}
	}
	return true
}

// layOut orders nodes and GPUs by topology.
func (f *floor) layOut(st *registry.State) {
	facts := slices.SortedFunc(maps.Values(st.Nodes), func(a, b *registry.Node) int {
		return cmp.Or(cmp.Compare(a.Block, b.Block), cmp.Compare(a.Rack, b.Rack), cmp.Compare(a.ID, b.ID))
	})
	f.nodes, f.gpus, f.islands, f.largestIsland = f.nodes[:0], f.gpus[:0], f.islands[:0], 0
	f.byUUID = make(map[string]int32, len(st.GPUs))
	if f.jobIndex == nil {
		f.jobIndex, f.tenants = map[string]int32{}, map[string]*floorTenant{}
	}
	rack, block := int32(-1), int32(-1)
	for i, n := range facts {
		if i == 0 || n.Block != facts[i-1].Block {
			block++
		}
		if i == 0 || n.Block != facts[i-1].Block || n.Rack != facts[i-1].Rack {
			rack++
		}
		f.layOutNode(n, rack, block)
	}
}

func (f *floor) layOutNode(n *registry.Node, rack, block int32) {
	at := int32(len(f.nodes))
	node := floorNode{fact: n, id: n.ID, laid: n.GPUs, rackName: n.Rack, blockName: n.Block, rack: rack, block: block}
	node.gpus.lo, node.islands.lo = int32(len(f.gpus)), int32(len(f.islands))
	order := slices.Clone(n.GPUs)
	slices.SortFunc(order, func(a, b nodes.GPU) int {
		return cmp.Or(cmp.Compare(a.Island, b.Island), cmp.Compare(a.UUID, b.UUID))
	})
	for i := range order {
		if i == 0 || order[i].Island != order[i-1].Island {
			f.islands = append(f.islands, span{lo: int32(len(f.gpus))})
		}
		island := int32(len(f.islands) - 1)
		f.byUUID[order[i].UUID] = int32(len(f.gpus))
		f.gpus = append(f.gpus, floorGPU{uuid: order[i].UUID, node: at, island: island, memory: order[i].MemoryBytes})
		f.islands[island].hi = int32(len(f.gpus))
		f.largestIsland = max(f.largestIsland, int(f.islands[island].hi-f.islands[island].lo))
	}
	node.gpus.hi, node.islands.hi = int32(len(f.gpus)), int32(len(f.islands))
	f.nodes = append(f.nodes, node)
}

// seatJobs finds the GPUs of every gang and counts what tenants hold.
func (f *floor) seatJobs(st *registry.State) {
	f.seatTenants(st)
	f.jobs, f.jobGPUs = f.jobs[:0], f.jobGPUs[:0]
	clear(f.jobIndex)
	for _, j := range st.Jobs {
		if !j.Phase.Ended() {
			f.jobs = append(f.jobs, floorJob{job: j, name: j.Spec.Name, size: max(1, j.Spec.GPUsPerRank)})
		}
	}
	slices.SortFunc(f.jobs, func(a, b floorJob) int { return cmp.Compare(a.name, b.name) })
	for i := range f.jobs {
		f.seatJob(&f.jobs[i], int32(i))
	}
}

func (f *floor) seatJob(j *floorJob, at int32) {
	f.jobIndex[j.name] = at
	j.tenant = f.tenant(j.job.Spec.Tenant)
	lo := len(f.jobGPUs)
	leaving := j.job.Phase == registry.JobStopping || j.job.Phase == registry.JobReleasing
	yields := j.job.Stop != nil && j.job.Stop.Mode == "yield" && j.job.Phase == registry.JobStopping
	for r := range j.job.Ranks {
		if j.job.Ranks[r].Gone {
			continue
		}
		for _, id := range j.job.Ranks[r].GPUs {
			g, ok := f.byUUID[id]
			if !ok {
				continue
			}
			f.jobGPUs = append(f.jobGPUs, g)
			gpu := &f.gpus[g]
			switch {
			case !gpu.heldBy(j.name): // yielded: somebody else's now, or nobody's
				gpu.lent = at
			case yields:
				gpu.lent, gpu.leaving = at, true
				gpu.residentBytes += j.job.Spec.ResidentBytes
				gpu.residents++
			case leaving:
				gpu.leaving = true
			default:
				gpu.job = at
			}
		}
	}
	j.gpus = f.jobGPUs[lo:len(f.jobGPUs):len(f.jobGPUs)]
	held := len(j.gpus)
	if leaving && !yields {
		held = len(j.job.Next) * j.size // what it will hold, or nothing
	}
	j.tenant.held += held
	j.tenant.leaving += max(0, len(j.gpus)-held)
	if held == 0 && j.job.Want == "" {
		j.tenant.waits = true
	}
}

func (f *floor) seatTenants(st *registry.State) {
	clear(f.tenants)
	f.tenList = f.tenList[:0]
	for name, t := range st.Tenants {
		ft := &floorTenant{name: name, guarantee: t.GuaranteeGPUs, limit: t.LimitGPUs, weight: t.Weight}
		if !(ft.weight > 0) {
			ft.weight = 1
		}
		f.tenants[name] = ft
		f.tenList = append(f.tenList, ft)
	}
	slices.SortFunc(f.tenList, func(a, b *floorTenant) int { return cmp.Compare(a.name, b.name) })
}

func (f *floor) tenant(name string) *floorTenant {
	t := f.tenants[name]
	if t == nil { // a tenant that was deleted while its job ended
		t = &floorTenant{name: name, weight: 1}
		f.tenants[name] = t
		f.tenList = append(f.tenList, t)
	}
	return t
}

// seatReplicas marks GPUs whose replica is on its way out for nobody.
func (f *floor) seatReplicas(st *registry.State) {
	f.replicas = f.replicas[:0]
	for _, r := range st.Replicas {
		f.replicas = append(f.replicas, r)
	}
	slices.SortFunc(f.replicas, func(a, b *registry.Replica) int { return cmp.Compare(a.ID, b.ID) })
	for _, r := range f.replicas {
		if r.Phase != registry.ReplicaStopping && r.Phase != registry.ReplicaDraining {
			continue
		}
		for _, id := range r.GPUs {
			g := f.gpu(id)
			if g == nil || g.fact == nil || g.fact.Active != r.ID {
				continue
			}
			g.leaving = true
			if m := st.Models[r.Model]; m != nil && r.Phase == registry.ReplicaDraining {
				g.residentBytes += m.Spec.ResidentBytes
				g.residents++
			}
		}
	}
}

// heldBy tells whether a rank of the job is active on g; ranks are named
// job.gN.rN, and a job's name has no dot.
func (g *floorGPU) heldBy(job string) bool {
	if g.fact == nil {
		return false
	}
	a := g.fact.Active
	return len(a) > len(job) && a[:len(job)] == job && a[len(job)] == '.'
}

// gpu finds a GPU by UUID, or nil.
func (f *floor) gpu(uuid string) *floorGPU {
	if at, ok := f.byUUID[uuid]; ok {
		return &f.gpus[at]
	}
	return nil
}

// free tells whether nobody holds g and nobody is to get it.
func (g *floorGPU) free() bool {
	return g.usable && !g.active && g.reserved == "" && !g.claimed
}

// comingFree tells whether g's holder leaves and nobody is to get g yet.
func (g *floorGPU) comingFree() bool {
	return g.usable && g.active && g.leaving && g.reserved == "" && !g.claimed
}

// fits tells whether bytes may become active on g beside residents of
// residentBytes. Memory that was not declared (0) fits only where nothing is
// resident: a yield or a sleep must not rest on a guess.
func (g *floorGPU) fits(bytes, residentBytes int64, residents int) bool {
	if residents == 0 {
		return g.memory == 0 || bytes <= g.memory
	}
	return bytes > 0 && (g.memory == 0 || bytes+residentBytes <= g.memory)
}
