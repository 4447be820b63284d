package fill

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sluice/nodes"
	"sluice/nodes/registry"
)

// Grace times of orders, in milliseconds.
const (
	exitGraceMs  = 3_000  // for a rank that already saved, or never started
	drainGraceMs = 20_000 // for a replica that is asked to end
)

// NodeOrder is an order and the node whose agent is to carry it out.
type NodeOrder struct {
	Node  string
	Order nodes.Order
}

// Orders are the difference between the facts and what agents report: what has
// to be done on each connected node now. The list is computed anew each time;
// ids are made of holder, kind and phase, so the same need always has the same
// id and an agent answers a repeated one without doing it twice.
// checkpointRoot is the default directory under which generations write.
func Orders(v View, term uint64, nowMs int64, checkpointRoot string) []NodeOrder {
	o := orderer{v: &v, term: term, nowMs: nowMs, root: checkpointRoot}
	for _, id := range slices.Sorted(maps.Keys(v.State.Replicas)) {
		o.replica(v.State.Replicas[id])
	}
	for _, name := range slices.Sorted(maps.Keys(v.State.Jobs)) {
		o.job(v.State.Jobs[name])
	}
	for _, node := range slices.Sorted(maps.Keys(v.Fleet.Nodes)) {
		o.orphans(node, v.Fleet.Nodes[node])
	}
	return o.out
}

type orderer struct {
	v     *View
	term  uint64
	nowMs int64
	root  string
	out   []NodeOrder
}

func orderID(holder string, kind nodes.OrderKind, seq int64) string {
	return holder + ":" + string(kind) + ":" + strconv.FormatInt(seq, 10)
}

func replicaOrderID(r *registry.Replica, kind nodes.OrderKind) string {
	return orderID(r.ID, kind, r.Seq)
}

func rankOrderID(j *registry.Job, i int, kind nodes.OrderKind) string {
	return orderID(j.Holder(i), kind, j.Seq)
}

func (o *orderer) send(node string, ord nodes.Order) {
	ord.Term = o.term
	o.out = append(o.out, NodeOrder{Node: node, Order: ord})
}

func (o *orderer) replica(r *registry.Replica) {
	if !o.v.connected(r.Node) {
		return
	}
	h := o.v.Fleet.Holder(r.Node, r.ID)
	ord := nodes.Order{Holder: r.ID, Generation: r.Version, Reason: r.Reason}
	switch r.Phase {
	case registry.ReplicaStarting:
		if h != nil && h.State != nodes.StatePrepared {
			return
		}
		ord.Kind, ord.Spec = nodes.OrderStart, o.replicaSpec(r)
	case registry.ReplicaDraining:
		if h == nil || h.State == nodes.StateAsleep {
			return
		}
		ord.Kind, ord.GraceMs = nodes.OrderSleep, r.TimeoutMs
	case registry.ReplicaWaking:
		if h == nil || h.State != nodes.StateAsleep {
			return
		}
		ord.Kind = nodes.OrderWake
	case registry.ReplicaStopping:
		if h != nil && h.State == nodes.StateGone {
			return
		}
		ord.Kind, ord.GraceMs = nodes.OrderStop, drainGraceMs
		if m := o.v.State.Models[r.Model]; m != nil && m.Spec.DrainTimeoutMs > 0 {
			ord.GraceMs = m.Spec.DrainTimeoutMs
		}
		if o.v.deadlinePassed(r.SinceMs, max(r.TimeoutMs, ord.GraceMs), o.nowMs) {
			ord.Kind = nodes.OrderKill
		}
	default:
		return
	}
	ord.ID = replicaOrderID(r, ord.Kind)
	o.send(r.Node, ord)
}

func (o *orderer) replicaSpec(r *registry.Replica) *nodes.HolderSpec {
	m := o.v.State.Models[r.Model]
	if m == nil {
		return nil
	}
	return &nodes.HolderSpec{ID: r.ID, Kind: nodes.KindReplica, Owner: r.Model, Tenant: m.Spec.Tenant, Generation: r.Version,
		GPUs: r.GPUs, Command: m.Spec.Command, Env: m.Spec.Env, Workdir: m.Spec.Workdir, User: m.Spec.User,
		ActiveBytes: r.ActiveBytes, ResidentBytes: r.ResidentBytes,
		Replica: &nodes.ReplicaSpec{HealthPath: m.Spec.HealthPath, Sleep: m.Spec.Sleep}}
}

func (o *orderer) job(j *registry.Job) {
	for i := 0; i < len(j.Ranks); i += j.HolderRanks(i) {
		if j.Ranks[i].Gone || !o.v.connected(j.Ranks[i].Node) {
			continue
		}
		h := o.v.Fleet.Holder(j.Ranks[i].Node, j.Holder(i))
		ord := nodes.Order{Holder: j.Holder(i), Generation: j.Generation, Reason: j.Reason}
		if o.rank(j, i, h, &ord) {
			o.send(j.Ranks[i].Node, ord)
		}
	}
}

// anyRank tells whether f holds for one of the ranks that the holder of rank
// first stands for. A rank that said nothing is nil.
func (o *orderer) anyRank(j *registry.Job, first int, f func(r *nodes.RankSeen) bool) bool {
	for k := first; k < first+j.HolderRanks(first); k++ {
		if f(o.v.Fleet.Rank(j.Ranks[k].Node, j.Holder(first), k)) {
			return true
		}
	}
	return false
}

// rank fills in the order that the holder of rank i, its first, needs now, if any.
func (o *orderer) rank(j *registry.Job, i int, h *nodes.HolderStatus, ord *nodes.Order) bool {
	switch j.Phase {
	case registry.JobPreparing:
		if h != nil {
			return false
		}
		ord.Kind, ord.Spec = nodes.OrderPrepare, o.rankSpec(j, i)
	case registry.JobStarting:
		if h == nil || h.State != nodes.StatePrepared {
			return false
		}
		ord.Kind, ord.Spec = nodes.OrderStart, o.rankSpec(j, i)
	case registry.JobStopping:
		return o.stopping(j, i, h, ord)
	case registry.JobResuming:
		if j.Stop == nil || !o.anyRank(j, i, func(r *nodes.RankSeen) bool { return r != nil && r.ResumedID != j.Stop.ID }) {
			return false
		}
		ord.Kind, ord.StopID = nodes.OrderRankResume, j.Stop.ID
		ord.ID = orderID(ord.Holder, ord.Kind, j.Seq)
		return true
	case registry.JobReleasing:
		if h != nil && h.State == nodes.StateGone {
			return false
		}
		ord.Kind, ord.GraceMs = nodes.OrderStop, exitGraceMs
		if j.EndRung == registry.RungKill || o.v.deadlinePassed(j.SinceMs, j.TimeoutMs, o.nowMs) {
			ord.Kind = nodes.OrderKill
		}
	case registry.JobRunning:
		return o.prune(j, i, ord)
	default:
		return false
	}
	ord.ID = rankOrderID(j, i, ord.Kind)
	return true
}

// prune lets the first rank's agent of each node remove the checkpoints that
// the facts have left behind: once a generation, and after each manifest. It is
// an order, and not a part of the rank's spec, because a generation that runs
// for weeks writes most of them itself. It stays sound however late it comes:
// manifests only go forward, so what is older than a current one, and not kept
// beside it, never becomes one.
func (o *orderer) prune(j *registry.Job, i int, ord *nodes.Order) bool {
	m, r := j.Current(), o.v.Fleet.Rank(j.Ranks[i].Node, ord.Holder, i)
	firstHere := i == 0 || j.Ranks[i-1].Node != j.Ranks[i].Node
	if m == nil || !firstHere || !j.Spec.SpeaksProtocol() || r == nil || r.PrunedStep >= m.Step {
		return false
	}
	ord.Kind, ord.Step, ord.Keep = nodes.OrderPrune, m.Step, keptNames(filepath.Join(o.rootOf(j), j.Spec.Name), j)
	// An earlier job of the same name is none of this one's business.
	ord.FromGeneration = j.Generation
	if len(j.Ledger) > 0 {
		ord.FromGeneration = min(ord.FromGeneration, j.Ledger[0].Generation)
	}
	ord.ID = orderID(ord.Holder, ord.Kind, m.Step)
	ord.Reason = "a newer checkpoint is current"
	return true
}

// keptNames are what the shards of the kept manifests lie in, one name a
// manifest as a rule: a number of the job's own choice, taken from the path and
// not from the manifest's step.
func keptNames(jobDir string, j *registry.Job) []string {
	var names []string
	for i := range j.Manifests {
		m := &j.Manifests[i]
		below := filepath.Join(jobDir, generationDir(m.Generation)) + "/"
		for k := range m.Shards {
			rest, ok := strings.CutPrefix(m.Shards[k].File, below) // what lies elsewhere is not in danger
			if name := nodes.StepName(rest); ok && name != "" {
				names = append(names, generationDir(m.Generation)+"/"+name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (o *orderer) stopping(j *registry.Job, i int, h *nodes.HolderStatus, ord *nodes.Order) bool {
	ord.Reason = j.Stop.Reason
	if !j.Spec.SpeaksProtocol() {
		if h == nil || h.Exited {
			return false
		}
		ord.Kind, ord.GraceMs = nodes.OrderStop, j.Spec.GraceMs
		ord.ID = rankOrderID(j, i, ord.Kind)
		return true
	}
	ord.StopID, ord.Mode = j.Stop.ID, j.Stop.Mode
	if j.Stop.Step < 0 {
		if !o.anyRank(j, i, func(r *nodes.RankSeen) bool { return r == nil || (r.PreparedID != j.Stop.ID && !r.Finished) }) {
			return false
		}
		ord.Kind = nodes.OrderRankPrepare
	} else {
		if !o.anyRank(j, i, func(r *nodes.RankSeen) bool {
			return r == nil || (r.StoppedID != j.Stop.ID && r.YieldedID != j.Stop.ID && !r.Finished)
		}) {
			return false
		}
		ord.Kind, ord.Step = nodes.OrderRankCommit, j.Stop.Step
	}
	ord.ID = rankOrderID(j, i, ord.Kind)
	return true
}

// rankSpec is the spec of the holder of rank i, its first.
func (o *orderer) rankSpec(j *registry.Job, i int) *nodes.HolderSpec {
	var gpus []string
	for k := i; k < i+j.HolderRanks(i); k++ {
		gpus = append(gpus, j.Ranks[k].GPUs...)
	}
	local, localWorld, nodeRank, nodeCount := localNumbers(j, i)
	rs := &nodes.RankSpec{Job: j.Spec.Name, Launcher: j.Spec.Launcher, Rank: i, LocalRank: local, WorldSize: len(j.Ranks),
		LocalWorldSize: localWorld, NodeRank: nodeRank, NodeCount: nodeCount,
		MasterAddr: j.MasterAddr, MasterPort: j.MasterPort, Protocol: j.Spec.SpeaksProtocol(), StopSignal: j.Spec.StopSignal,
		CheckpointDir: CheckpointDir(o.rootOf(j), j)}
	if m := j.Current(); m != nil {
		rs.ResumeManifest = manifestJSON(m)
	}
	return &nodes.HolderSpec{ID: j.Holder(i), Kind: nodes.KindRank, Owner: j.Spec.Name,
		Tenant: j.Spec.Tenant, Generation: j.Generation, GPUs: gpus, Command: j.Spec.Command, Env: j.Spec.Env,
		Workdir: j.Spec.Workdir, User: j.Spec.User, ActiveBytes: j.Spec.ActiveBytes, ResidentBytes: j.Spec.ResidentBytes, Rank: rs}
}

// rootOf is the directory under which j's own lies.
func (o *orderer) rootOf(j *registry.Job) string {
	if j.Spec.CheckpointDir != "" {
		return j.Spec.CheckpointDir
	}
	return o.root
}

// CheckpointDir is where the present generation of j writes. A job without the
// protocol keeps one directory over all generations: it finds its own way back.
func CheckpointDir(root string, j *registry.Job) string {
	if !j.Spec.SpeaksProtocol() {
		return filepath.Join(root, j.Spec.Name)
	}
	return filepath.Join(root, j.Spec.Name, generationDir(j.Generation))
}

func generationDir(generation int64) string { return "g" + strconv.FormatInt(generation, 10) }

// manifestJSON writes m as the ranks read it: its fields carry the names of
// rank.Manifest, a test holds the two together.
func manifestJSON(m *registry.Manifest) []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic("a manifest is plain data: " + err.Error())
	}
	return b
}

// localNumbers gives rank i its numbers within its node, and the node's within
// the gang.
func localNumbers(j *registry.Job, i int) (local, localWorld, nodeRank, nodeCount int) {
	seen := map[string]int{}
	for k, p := range j.Ranks {
		if _, ok := seen[p.Node]; !ok {
			seen[p.Node] = len(seen)
		}
		if p.Node == j.Ranks[i].Node {
			if k < i {
				local++
			}
			localWorld++
		}
	}
	return local, localWorld, seen[j.Ranks[i].Node], len(seen)
}

// orphans ends holders that no present generation or replica owns, and lets
// agents forget what is gone.
func (o *orderer) orphans(node string, s *nodes.Seen) {
	if !o.v.connected(node) {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(s.Holders)) {
		h := s.Holders[id]
		if Owned(o.v.State, id) {
			continue
		}
		ord := nodes.Order{Holder: id, Generation: h.Generation, Kind: nodes.OrderKill, Reason: "belongs to no present generation"}
		if h.State == nodes.StateGone {
			ord.Kind = nodes.OrderForget
		}
		ord.ID = orderID(id, ord.Kind, h.Generation)
		o.send(node, ord)
	}
}
