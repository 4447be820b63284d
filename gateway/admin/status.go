package admin

import (
	"maps"
	"slices"
	"strings"

	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/slo"
)

// Limits of a status document, so that its size is bounded on large fleets.
const (
	statusEvents    = 20
	statusLookBack  = 500 // events looked through for them
	statusEndedJobs = 20  // the latest ones; all others are in GET /v1/jobs
)

// Status is the whole picture in one document: what `sluice top` and the
// dashboard draw. All lists are sorted by name; times are fleet time.
type Status struct {
	NowMs   int64         `json:"nowMs"`
	Version string        `json:"version"`
	Models  []ModelStatus `json:"models"`
	Nodes   []NodeStatus  `json:"nodes"`
	GPUs    []GPUStatus   `json:"gpus"`
	Jobs    []JobStatus   `json:"jobs"`
	Books   BooksStatus   `json:"books"`
	Waiting []Waiting     `json:"waiting"`
	Events  []Recorded    `json:"events"` // oldest first
}

// ModelStatus is a model with its headroom and replicas.
type ModelStatus struct {
	Name     string             `json:"name"`
	Spec     registry.ModelSpec `json:"spec"`
	Version  int64              `json:"version"`
	External bool               `json:"external,omitempty"` // run by someone else, at spec.url
	Deleting bool               `json:"deleting,omitempty"`
	Failures int                `json:"failures,omitempty"`
	RetryMs  int64              `json:"retryInMs,omitempty"` // until the next start is tried
	// Headroom is nil until the gateway has seen a request.
	Headroom *slo.Headroom   `json:"headroom,omitempty"`
	Replicas []ReplicaStatus `json:"replicas"`
	Ready    int             `json:"ready"`
	Asleep   int             `json:"asleep"`
	Coming   int             `json:"coming"` // waiting, starting or waking
	Waiting  *Waiting        `json:"waiting,omitempty"`
}

// ReplicaStatus is one replica.
type ReplicaStatus struct {
	ID      string   `json:"id"`
	Model   string   `json:"model"`
	Version int64    `json:"version"`
	Node    string   `json:"node"`
	GPUs    []string `json:"gpus"`
	Phase   string   `json:"phase"`
	ForMs   int64    `json:"forMs"` // in this phase
	Addr    string   `json:"addr,omitempty"`
	Reason  string   `json:"reason,omitempty"`
}

// NodeStatus is one machine.
type NodeStatus struct {
	ID           string   `json:"id"`
	State        string   `json:"state"` // ready, cordoned, draining, lost
	Reason       string   `json:"reason,omitempty"`
	Host         string   `json:"host"`
	Rack         string   `json:"rack,omitempty"`
	Block        string   `json:"block,omitempty"`
	GPUs         int      `json:"gpus"`
	FreeGPUs     int      `json:"freeGpus"`
	CPUs         int      `json:"cpus"`
	AgentVersion string   `json:"agentVersion"`
	SilentMs     int64    `json:"silentMs"` // since the last word of its agent
	Missing      []string `json:"missing,omitempty"`
}

// GPUStatus says who holds one GPU. UsedBytes and UtilPercent are nil where
// the device does not tell: not available is not zero.
type GPUStatus struct {
	UUID        string              `json:"uuid"`
	Index       int                 `json:"index"` // for display only
	Node        string              `json:"node"`
	Island      int                 `json:"island"`
	Name        string              `json:"name"`
	MemoryBytes int64               `json:"memoryBytes"`
	UsedBytes   *int64              `json:"usedBytes"`
	UtilPercent *int                `json:"utilPercent"`
	State       string              `json:"state"` // as in the books
	ForMs       int64               `json:"forMs"`
	Holder      string              `json:"holder,omitempty"`
	Owner       string              `json:"owner,omitempty"`     // the holder's model or job
	OwnerKind   string              `json:"ownerKind,omitempty"` // model or job
	Residents   []registry.Resident `json:"residents,omitempty"`
	Reserved    string              `json:"reserved,omitempty"`
	Fenced      string              `json:"fenced,omitempty"`
}

// JobStatus is one training run.
type JobStatus struct {
	Name        string           `json:"name"`
	Spec        registry.JobSpec `json:"spec"`
	Phase       string           `json:"phase"`
	ForMs       int64            `json:"forMs"`
	Reason      string           `json:"reason,omitempty"`
	Want        string           `json:"want,omitempty"`
	SubmittedMs int64            `json:"submittedMs"`
	Generation  int64            `json:"generation"`
	World       int              `json:"world"`
	GPUs        []string         `json:"gpus,omitempty"`
	Nodes       []string         `json:"nodes,omitempty"`
	Step        int64            `json:"step"` // last done by all ranks
	// Loss and Samples are nil until a rank has told them.
	Loss        *float64       `json:"loss,omitempty"`
	Samples     *int64         `json:"samples,omitempty"`
	RankPhase   string         `json:"rankPhase,omitempty"` // compile, eval, save
	SavedStep   *int64         `json:"savedStep,omitempty"` // of the current manifest
	LostSteps   int64          `json:"lostSteps"`
	LostGPUS    float64        `json:"lostGpuSeconds"`
	TrainGPUS   float64        `json:"trainGpuSeconds"`
	UnsavedGPUS float64        `json:"unsavedGpuSeconds"`
	Restarts    int            `json:"restarts"`
	Stop        *registry.Stop `json:"stop,omitempty"`
	Waiting     *Waiting       `json:"waiting,omitempty"`
	// Ledger and Manifests come only when one job is asked for.
	Ledger    []registry.LedgerEntry `json:"ledger,omitempty"`
	Manifests []registry.Manifest    `json:"manifests,omitempty"` // kept checkpoints, the current one first
}

// BooksStatus is a reading of the books, in GPU-seconds.
type BooksStatus struct {
	AtMs            int64                         `json:"atMs"`
	GPUSeconds      map[string]float64            `json:"gpuSeconds"` // by state; the states sum up to capacity
	CapacitySeconds float64                       `json:"capacitySeconds"`
	BalanceSeconds  float64                       `json:"balanceSeconds"` // sum of states − capacity: 0 when exact
	ResidentSeconds float64                       `json:"residentSeconds"`
	Tenants         map[string]map[string]float64 `json:"tenants"`
}

// snapshot is one reading of the controller, shared by all views.
type snapshot struct {
	s        *registry.State
	f        *nodes.Fleet
	nowMs    int64
	headroom map[string]slo.Headroom
	waiting  map[string]*Waiting
}

// read calls f with a snapshot under the controller's read lock. Headroom and
// waiting are fetched before, as they may need the same lock.
func (s *Server) read(f func(v *snapshot)) {
	v := &snapshot{headroom: s.ctl.Headroom(), waiting: map[string]*Waiting{}}
	for _, w := range s.ctl.Waiting() {
		v.waiting[w.Object] = &w
	}
	s.ctl.Read(func(st *registry.State, fleet *nodes.Fleet, nowMs int64) {
		v.s, v.f, v.nowMs = st, fleet, nowMs
		f(v)
	})
}

// Status builds the whole document, with secrets of specs replaced by Hidden.
func (s *Server) Status() Status {
	var out Status
	s.read(func(v *snapshot) {
		out = Status{NowMs: v.nowMs, Models: v.models(), Nodes: v.nodes(), GPUs: v.gpus(), Jobs: v.jobs(statusEndedJobs), Books: v.books()}
	})
	hideAll(out.Models)
	hideJobs(out.Jobs)
	out.Version = s.version
	out.Waiting = nonNil(s.ctl.Waiting())
	out.Events = s.latestEvents(statusEvents)
	return out
}

// latestEvents are the last n decisions: checkpoints come so often that they
// would push all else out, and are left to GET /v1/events.
func (s *Server) latestEvents(n int) []Recorded {
	_, newest := s.ctl.Events(1<<62, 0)
	events, _ := s.ctl.Events(max(0, newest-statusLookBack), statusLookBack)
	out := make([]Recorded, 0, n)
	for _, e := range events {
		if e.Kind != "manifest" {
			out = append(out, e)
		}
	}
	return out[max(0, len(out)-n):]
}

func (v *snapshot) models() []ModelStatus {
	byModel := map[string][]ReplicaStatus{}
	for _, id := range slices.Sorted(maps.Keys(v.s.Replicas)) {
		r := v.s.Replicas[id]
		byModel[r.Model] = append(byModel[r.Model], v.replica(r))
	}
	out := make([]ModelStatus, 0, len(v.s.Models))
	for _, name := range slices.Sorted(maps.Keys(v.s.Models)) {
		out = append(out, v.model(name, v.s.Models[name], byModel[name]))
	}
	return out
}

func (v *snapshot) model(name string, m *registry.Model, replicas []ReplicaStatus) ModelStatus {
	st := ModelStatus{Name: name, Spec: cloneModel(m.Spec), Version: m.Version, External: m.Spec.URL != "", Deleting: m.Deleting,
		Failures: m.Failures, RetryMs: max(0, m.RetryAtMs-v.nowMs), Replicas: nonNil(replicas), Waiting: v.waiting[name]}
	if h, ok := v.headroom[name]; ok {
		st.Headroom = &h
	}
	for _, r := range replicas {
		switch registry.ReplicaPhase(r.Phase) {
		case registry.ReplicaReady:
			st.Ready++
		case registry.ReplicaAsleep:
			st.Asleep++
		case registry.ReplicaWaiting, registry.ReplicaStarting, registry.ReplicaWaking:
			st.Coming++
		}
	}
	return st
}

func (v *snapshot) replica(r *registry.Replica) ReplicaStatus {
	return ReplicaStatus{ID: r.ID, Model: r.Model, Version: r.Version, Node: r.Node, GPUs: slices.Clone(r.GPUs),
		Phase: string(r.Phase), ForMs: max(0, v.nowMs-r.SinceMs), Addr: r.Addr, Reason: r.Reason}
}

func (v *snapshot) replicas() []ReplicaStatus {
	out := make([]ReplicaStatus, 0, len(v.s.Replicas))
	for _, id := range slices.Sorted(maps.Keys(v.s.Replicas)) {
		out = append(out, v.replica(v.s.Replicas[id]))
	}
	return out
}

func (v *snapshot) nodes() []NodeStatus {
	free := map[string]int{}
	for _, g := range v.s.GPUs {
		if g.Book == registry.BookIdle {
			free[g.Node]++
		}
	}
	out := make([]NodeStatus, 0, len(v.s.Nodes))
	for _, id := range slices.Sorted(maps.Keys(v.s.Nodes)) {
		out = append(out, v.node(v.s.Nodes[id], free[id]))
	}
	return out
}

func (v *snapshot) node(n *registry.Node, free int) NodeStatus {
	state := "ready"
	switch {
	case n.Lost:
		state = "lost"
	case n.Draining:
		state = "draining"
	case n.Cordoned:
		state = "cordoned"
	}
	last := n.LastSeenMs
	if seen := v.f.Nodes[n.ID]; seen != nil {
		last = max(last, seen.LastMs)
	}
	return NodeStatus{ID: n.ID, State: state, Reason: n.Reason, Host: n.Host, Rack: n.Rack, Block: n.Block, GPUs: len(n.GPUs), FreeGPUs: free,
		CPUs: n.CPUs, AgentVersion: n.AgentVersion, SilentMs: max(0, v.nowMs-last), Missing: slices.Clone(n.Missing)}
}

func (v *snapshot) gpus() []GPUStatus {
	out := make([]GPUStatus, 0, len(v.s.GPUs))
	for _, g := range v.s.GPUs {
		out = append(out, v.gpu(g))
	}
	slices.SortFunc(out, func(a, b GPUStatus) int {
		if c := strings.Compare(a.Node, b.Node); c != 0 {
			return c
		}
		if a.Index != b.Index {
			return a.Index - b.Index
		}
		return strings.Compare(a.UUID, b.UUID)
	})
	return out
}

func (v *snapshot) gpu(g *registry.GPU) GPUStatus {
	st := GPUStatus{UUID: g.UUID, Index: g.Index, Node: g.Node, Island: g.Island, Name: g.Name, MemoryBytes: g.MemoryBytes,
		State: g.Book.String(), ForMs: v.gpuForMs(g), Holder: g.Active, Residents: slices.Clone(g.Residents), Reserved: g.Reserved, Fenced: g.Fenced}
	st.Owner, st.OwnerKind = v.owner(g.Active)
	if seen := v.f.Nodes[g.Node]; seen != nil {
		if r, ok := seen.Readings[g.UUID]; ok {
			st.UsedBytes, st.UtilPercent = clonePtr(r.UsedBytes), clonePtr(r.UtilPercent)
		}
	}
	return st
}

// gpuForMs is for how long its holder has been in its present phase.
func (v *snapshot) gpuForMs(g *registry.GPU) int64 {
	since := g.SinceMs
	if r := v.s.Replicas[g.Active]; r != nil {
		since = r.SinceMs
	} else if name, kind := v.owner(g.Active); kind == "job" {
		since = v.s.Jobs[name].SinceMs
	}
	return max(0, v.nowMs-since)
}

// owner finds the model or job that a holder belongs to.
func (v *snapshot) owner(holder string) (name, kind string) {
	if holder == "" {
		return "", ""
	}
	if r := v.s.Replicas[holder]; r != nil {
		return r.Model, "model"
	}
	cut := strings.LastIndexByte(holder, '.')
	if cut > 0 {
		cut = strings.LastIndexByte(holder[:cut], '.')
	}
	if cut > 0 && v.s.Jobs[holder[:cut]] != nil {
		return holder[:cut], "job"
	}
	return "", ""
}

// jobs lists all jobs that have not ended and the latest ended ones.
func (v *snapshot) jobs(ended int) []JobStatus {
	var over []*registry.Job
	out := make([]JobStatus, 0, len(v.s.Jobs))
	for _, j := range v.s.Jobs {
		if j.Phase.Ended() {
			over = append(over, j)
			continue
		}
		out = append(out, v.job(j))
	}
	slices.SortFunc(over, func(a, b *registry.Job) int { return int(min(1, max(-1, b.SinceMs-a.SinceMs))) })
	for _, j := range over[:min(len(over), ended)] {
		out = append(out, v.job(j))
	}
	slices.SortFunc(out, func(a, b JobStatus) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (v *snapshot) job(j *registry.Job) JobStatus {
	st := JobStatus{Name: j.Spec.Name, Spec: cloneJob(j.Spec), Phase: string(j.Phase), ForMs: max(0, v.nowMs-j.SinceMs), Reason: j.Reason,
		Want: j.Want, SubmittedMs: j.SubmittedMs, Generation: j.Generation, World: j.World(), LostSteps: j.LostSteps,
		LostGPUS: gpuSeconds(j.LostGPUMs), TrainGPUS: gpuSeconds(j.TrainGPUMs), UnsavedGPUS: gpuSeconds(j.UnsavedMs),
		Restarts: len(j.Restarts), Step: max(0, j.LastDone), Waiting: v.waiting[j.Spec.Name]}
	if m := j.Current(); m != nil {
		step := m.Step
		st.SavedStep = &step
		st.Step = max(st.Step, step)
	}
	if j.Stop != nil {
		stop := *j.Stop
		st.Stop = &stop
	}
	for _, p := range j.Ranks {
		st.GPUs = append(st.GPUs, p.GPUs...)
		if !slices.Contains(st.Nodes, p.Node) {
			st.Nodes = append(st.Nodes, p.Node)
		}
	}
	v.progress(j, &st)
	return st
}

// progress reads step, loss and samples from the ranks of this generation: the
// step that all have done, the loss of the rank that is furthest.
func (v *snapshot) progress(j *registry.Job, st *JobStatus) {
	low, high := int64(-1), int64(-1)
	for _, p := range j.Ranks {
		r := v.f.Rank(p.Node, j.Holder(p.Rank), p.Rank)
		if r == nil || r.Generation != j.Generation {
			low = -1
			return
		}
		if low < 0 || r.Done < low {
			low = r.Done
		}
		if r.Done > high {
			high = r.Done
			loss, samples := r.Loss, r.Samples
			st.RankPhase = r.Phase
			if r.Samples > 0 || r.Loss != 0 {
				st.Loss, st.Samples = &loss, &samples
			}
		}
	}
	if low >= 0 {
		st.Step = low
	}
}

func (v *snapshot) books() BooksStatus {
	t := v.s.BooksAt(v.nowMs)
	b := BooksStatus{AtMs: t.AtMs, GPUSeconds: map[string]float64{}, CapacitySeconds: gpuSeconds(t.CapacityMs),
		BalanceSeconds: gpuSeconds(t.BalanceMs), ResidentSeconds: gpuSeconds(t.ResidentMs), Tenants: map[string]map[string]float64{}}
	for _, state := range registry.BookStates() {
		b.GPUSeconds[state.String()] = gpuSeconds(t.ByState[state])
	}
	for tenant, by := range v.s.Books.TenantMs {
		row := map[string]float64{}
		for _, state := range registry.BookStates() {
			if by[state] != 0 {
				row[state.String()] = gpuSeconds(by[state])
			}
		}
		b.Tenants[tenant] = row
	}
	return b
}

func gpuSeconds(ms int64) float64 { return float64(ms) / 1000 }

func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func clonePtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// cloneModel copies what a spec points to, as a view outlives the read lock.
func cloneModel(m registry.ModelSpec) registry.ModelSpec {
	m.Aliases, m.Command, m.Env = slices.Clone(m.Aliases), slices.Clone(m.Command), maps.Clone(m.Env)
	m.Objectives, m.Adapters, m.Speaks = slices.Clone(m.Objectives), slices.Clone(m.Adapters), slices.Clone(m.Speaks)
	return m
}

func cloneJob(j registry.JobSpec) registry.JobSpec {
	j.Command, j.Env = slices.Clone(j.Command), maps.Clone(j.Env)
	return j
}
