package registry

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"sluice/nodes"
)

// The property test applies random commands, most of them such as a controller
// would make on the state as it is, some made on an older one or out of order.
// After each: the invariants hold; a refused command changed nothing; a GPU
// changed hands only by a proof; a command's id counts once. A failure prints
// its seed: SLUICE_SEED=n runs that one.

const (
	propertySeeds    = 20
	propertyCommands = 400
	propertyGPUs     = 4 // a node
)

type author struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	s    *State
	n    int
	took map[string]int // commands that took effect, by kind
}

func (a *author) chance(percent int) bool { return a.rng.IntN(100) < percent }

// key picks one name; "" when there is none.
func key[T any](a *author, m map[string]T) string {
	if len(m) == 0 {
		return ""
	}
	return slices.Sorted(maps.Keys(m))[a.rng.IntN(len(m))]
}

func (a *author) job() *Job         { return a.s.Jobs[key(a, a.s.Jobs)] }
func (a *author) replica() *Replica { return a.s.Replicas[key(a, a.s.Replicas)] }

// seq is the right one, or an older one.
func (a *author) seq(now int64) int64 {
	if a.chance(5) {
		return now - 1
	}
	return now
}

func (a *author) nodeOf(id string) *nodes.Node {
	n := &nodes.Node{ID: id, Host: "h"}
	for g := range propertyGPUs {
		if !a.chance(3) { // now and then one is missing
			n.GPUs = append(n.GPUs, nodes.GPU{UUID: fmt.Sprintf("%s-%d", id, g), Index: g, MemoryBytes: 80})
		}
	}
	return n
}

// some picks count GPUs of one node, in order.
func (a *author) some(node string, count int) []string {
	var ids []string
	for _, g := range a.s.nodeGPUs(node) {
		if a.chance(90) && (g.Active == "" || a.chance(20)) {
			ids = append(ids, g.UUID)
		}
	}
	a.rng.Shuffle(len(ids), func(i, k int) { ids[i], ids[k] = ids[k], ids[i] })
	ids = ids[:min(count, len(ids))]
	slices.Sort(ids)
	return ids
}

func (a *author) places(j *Job) []RankPlace {
	var out []RankPlace
	world := j.Spec.MinWorld + a.rng.IntN(j.Spec.MaxWorld-j.Spec.MinWorld+1)
	for _, node := range slices.Sorted(maps.Keys(a.s.Nodes)) {
		for _, id := range a.some(node, a.rng.IntN(propertyGPUs+1)) {
			if len(out) < world {
				out = append(out, RankPlace{Rank: len(out), Node: node, GPUs: []string{id}})
			}
		}
	}
	return out
}

func (a *author) victim() Victim {
	v := Victim{Rung: []Rung{RungYield, RungPause, RungShrink, RungUser}[a.rng.IntN(4)], Reason: "asked", TimeoutMs: 100}
	if r := a.replica(); r != nil && a.chance(40) {
		v.Replica, v.Seq = r.ID, a.seq(r.Seq)
		return v
	}
	if j := a.job(); j != nil {
		v.Job, v.Seq = j.Spec.Name, a.seq(j.Seq)
		if v.Rung == RungShrink {
			v.Next = a.places(j)
		}
	}
	return v
}

func (a *author) spec() Command {
	switch a.rng.IntN(6) {
	case 0:
		m := ModelSpec{Name: []string{"m", "mm"}[a.rng.IntN(2)], Command: []string{"x"}, GPUsPerReplica: 1 + a.rng.IntN(2),
			ActiveBytes: int64(30 + 20*a.rng.IntN(3)), ResidentBytes: int64(a.rng.IntN(20)), Sleep: nodes.SleepVLLM}
		m.Default()
		return Command{PutModel: &m}
	case 1:
		return Command{DeleteModel: &ByName{key(a, a.s.Models)}}
	case 2:
		return Command{JobWant: &JobWant{Job: key(a, a.s.Jobs), Want: []string{"", "", "paused", "cancelled"}[a.rng.IntN(4)]}}
	}
	j := JobSpec{Name: fmt.Sprint("j", a.rng.IntN(4)), Command: []string{"x"}, MinWorld: 1 + a.rng.IntN(2), ActiveBytes: 50, ResidentBytes: int64(10 * a.rng.IntN(5))}
	j.MaxWorld = j.MinWorld + a.rng.IntN(4)
	j.Launcher = []nodes.Launcher{nodes.LaunchRanks, nodes.LaunchTorchrun}[a.rng.IntN(2)]
	if a.chance(20) {
		j.Protocol = "none"
	}
	j.Default()
	return Command{SubmitJob: &j}
}

func (a *author) floor() Command {
	node := fmt.Sprint("n", a.rng.IntN(3))
	switch a.rng.IntN(8) {
	case 0:
		return Command{NodeLost: &NodeLost{Node: node, LastSeenMs: a.s.LastMs - int64(a.rng.IntN(50))}}
	case 1:
		return Command{NodeMark: &NodeMark{Node: node, Cordoned: a.chance(50)}}
	case 2:
		return Command{GPUMark: &GPUMark{UUID: key(a, a.s.GPUs), Reason: []string{"", "", "XID 79"}[a.rng.IntN(3)]}}
	case 3:
		return Command{HolderGone: &HolderGone{Node: node, Holder: a.anyHolder(node)}}
	}
	return Command{NodeSeen: a.nodeOf(node)}
}

// anyHolder is one of a node's holders, whoever it belongs to.
func (a *author) anyHolder(node string) string {
	var all []string
	for _, g := range a.s.nodeGPUs(node) {
		all = append(all, g.Active)
		for _, r := range g.Residents {
			all = append(all, r.Holder)
		}
	}
	if len(all) == 0 {
		return "nobody.g1.r0"
	}
	return all[a.rng.IntN(len(all))]
}

func (a *author) replicaCommand() Command {
	r := a.replica()
	if r == nil || a.chance(40) {
		rec := &Reclaim{}
		for k := range 1 + a.rng.IntN(2) {
			m := a.s.Models[key(a, a.s.Models)]
			if m == nil {
				break
			}
			node := fmt.Sprint("n", a.rng.IntN(3))
			rec.Takes = append(rec.Takes, Take{Replica: a.s.NewReplicaID(m.Spec.Name, k+1), Model: m.Spec.Name, Version: m.Version, Node: node,
				GPUs: a.some(node, m.Spec.GPUsPerReplica), TimeoutMs: 100})
		}
		if r != nil && r.Phase == ReplicaAsleep {
			rec.Takes = []Take{{Replica: r.ID, Model: r.Model, Node: r.Node, GPUs: r.GPUs, Wake: true}}
		}
		if a.chance(50) {
			rec.Victims = append(rec.Victims, a.victim())
		}
		if a.chance(10) { // two victims, now and then the same; now and then a replica twice
			rec.Victims = append(rec.Victims, a.victim())
			rec.Takes = append(rec.Takes, rec.Takes[:min(len(rec.Takes), a.rng.IntN(2))]...)
		}
		return Command{Reclaim: rec}
	}
	if r.Phase == ReplicaStopping && a.chance(70) {
		return Command{ReplicaGone: &ReplicaGone{Replica: r.ID, Failed: a.chance(30), RetryAtMs: a.s.LastMs}}
	}
	to := replicaMoves[r.Phase]
	if len(to) == 0 || a.chance(10) {
		to = []ReplicaPhase{ReplicaStarting, ReplicaReady, ReplicaDraining, ReplicaAsleep, ReplicaWaking}
	}
	return Command{ReplicaPhase: &PhaseChange{Name: r.ID, Seq: a.seq(r.Seq), To: string(to[a.rng.IntN(len(to))])}}
}

func (a *author) jobCommand() Command {
	j := a.job()
	if j == nil {
		return a.spec()
	}
	name, seq := j.Spec.Name, a.seq(j.Seq)
	switch j.Phase {
	case JobPending, JobPaused:
		if a.chance(80) {
			return Command{JobPlace: &JobPlace{Job: name, Seq: seq, Ranks: a.places(j), TimeoutMs: 100}}
		}
	case JobReleasing:
		var ranks []int
		for i := range len(j.Ranks) + 1 { // one too many: it is passed over
			if a.chance(70) {
				ranks = append(ranks, i)
			}
		}
		return Command{RankGone: &RankGone{Job: name, Generation: j.Generation - int64(a.rng.IntN(20)/19), Ranks: ranks, LastDone: int64(a.rng.IntN(200)), Abandon: a.chance(10)}}
	case JobRunning, JobYielded:
		if a.chance(30) {
			v := a.victim()
			v.Job, v.Replica, v.Seq = name, "", seq
			return Command{JobStop: &v}
		}
		if a.chance(40) {
			return Command{Manifest: &Manifest{Job: name, Generation: j.Generation, Step: int64(a.rng.IntN(200)), World: len(j.Ranks), Shards: []nodes.Shard{{File: "/f"}}}}
		}
	case JobStopping:
		if a.chance(40) {
			return Command{JobCommit: &JobCommit{Job: name, StopID: j.Stop.ID, Step: int64(a.rng.IntN(200))}}
		}
	}
	if to := jobMoves[j.Phase]; len(to) > 0 && a.chance(70) {
		return Command{JobPhase: &PhaseChange{Name: name, Seq: seq, To: string(to[a.rng.IntN(len(to))]), MasterPort: 7}}
	}
	after := []JobPhase{JobPaused, JobPreparing, JobSucceeded, JobFailed}[a.rng.IntN(4)]
	return Command{JobEnding: &JobEnding{Job: name, Seq: seq, After: after, Rung: RungPause, LastDone: int64(a.rng.IntN(200)) - 1, Clean: a.chance(50), Restart: a.chance(20)}}
}

func (a *author) next() Command {
	switch n := a.rng.IntN(20); {
	case n < 2:
		return a.spec()
	case n < 4:
		return a.floor()
	case n < 10:
		return a.replicaCommand()
	}
	return a.jobCommand()
}

// proof tells whether c may take a holder off a GPU.
func proof(c *Command) bool {
	switch {
	case c.RankGone != nil, c.HolderGone != nil, c.ReplicaGone != nil:
		return true
	case c.ReplicaPhase != nil:
		return c.ReplicaPhase.To == string(ReplicaAsleep)
	case c.JobPhase != nil:
		return c.JobPhase.To == string(JobYielded)
	}
	return false
}

func (a *author) bytes() []byte {
	a.t.Helper()
	b, err := a.s.Snapshot()
	if err != nil {
		a.t.Fatal(err)
	}
	return b
}

func (a *author) step() {
	c := a.next()
	a.n++
	c.ID, c.AtMs, c.Author = strconv.Itoa(a.n), a.s.LastMs+int64(a.rng.IntN(40))-5, "test"
	before := a.bytes()
	active := map[string]string{}
	for id, g := range a.s.GPUs {
		active[id] = g.Active
	}
	fatal := func(format string, args ...any) {
		a.t.Helper()
		a.t.Fatalf("SLUICE_SEED=%d, command %d %+v: %s", a.seed, a.n, describe(&c), fmt.Sprintf(format, args...))
	}
	_, err := a.s.Apply(&c)
	if bad := a.s.Check(); len(bad) > 0 {
		fatal("%v", bad)
	}
	after := a.bytes()
	if err != nil {
		if !bytes.Equal(before, after) {
			fatal("refused (%v), and changed the state", err)
		}
		return
	}
	for id, g := range a.s.GPUs {
		if was := active[id]; was != g.Active && was != "" && (!proof(&c) || g.Active != "" && c.RankGone == nil) {
			fatal("GPU %s went from %s to %q", id, was, g.Active)
		}
	}
	a.took[kindOf(&c)]++
	if ev, err := a.s.Apply(&c); ev != nil || err != nil || !bytes.Equal(after, a.bytes()) {
		fatal("applied a second time: %v %v", ev, err)
	}
	if a.chance(10) {
		if a.s, err = Restore(after); err != nil || !bytes.Equal(after, a.bytes()) {
			fatal("restored from its snapshot it differs: %v", err)
		}
	}
}

func TestRandomCommandsKeepTheInvariants(t *testing.T) {
	first, count := uint64(1), uint64(propertySeeds)
	if env := os.Getenv("SLUICE_SEED"); env != "" {
		n, err := strconv.ParseUint(env, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, count = n, 1
	}
	took := map[string]int{}
	for seed := first; seed < first+count; seed++ {
		a := &author{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 9)), s: New(), took: took}
		for range propertyCommands {
			a.step()
		}
	}
	if count == 1 {
		return
	}
	for _, kind := range []string{"NodeSeen", "NodeLost", "NodeMark", "GPUMark", "HolderGone", "PutModel", "DeleteModel", "SubmitJob", "JobWant",
		"Reclaim", "ReplicaPhase", "ReplicaGone", "JobPlace", "JobStop", "JobCommit", "JobPhase", "JobEnding", "RankGone", "Manifest"} {
		if took[kind] < 20 {
			t.Errorf("%s took effect %d times only: the test does not test it (%v)", kind, took[kind], took)
		}
	}
}
