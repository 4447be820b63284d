package fill

import (
	"sluice/nodes/registry"
)

// Plan is what should change now. Commands are in the order in which they must
// be applied; each stands for itself, so one that is refused as stale leaves
// the others right. The slices are the caller's.
type Plan struct {
	Commands []registry.Command
	// Actions tell the same to people, with prices; one command may be several.
	Actions []Action
	// Waiting names every job that does not run and every replica that is
	// wanted and missing, with the cause.
	Waiting []Waiting
}

// Action is one priced change.
type Action struct {
	Kind        string        `json:"kind"` // start, wake, evict, sleep, stop, place, resume, grow, move, convert
	Object      string        `json:"object"`
	Beneficiary string        `json:"beneficiary,omitempty"`
	Rung        registry.Rung `json:"rung,omitempty"`
	GPUs        int           `json:"gpus"`
	// PriceGPUMs is what the change costs in GPU-milliseconds: work redone,
	// restarts, idle ends.
	PriceGPUMs int64  `json:"priceGpuMs"`
	Reason     string `json:"reason"`
}

// Cause is why something waits.
type Cause string

// The causes. Each waiting second is booked to one.
const (
	CauseQuota         Cause = "quota"         // the tenant's limit, or GPUs promised to another's guarantee
	CauseShortage      Cause = "shortage"      // fewer GPUs free than it needs
	CauseFragmentation Cause = "fragmentation" // enough free, but not together on a node
	CauseTopology      Cause = "topology"      // no node or GPU of the fleet is large enough
	CauseHealth        Cause = "health"        // would fit if lost or fenced GPUs came back
	CauseBackoff       Cause = "backoff"       // failed before, or switched too often
	CauseUser          Cause = "user"          // its owner said so
	CauseSwitching     Cause = "switching"     // on its way: starting, stopping, resuming
)

// Waiting is one thing that waits.
type Waiting struct {
	Object string `json:"object"` // job, or model for a missing replica
	Cause  Cause  `json:"cause"`
	Text   string `json:"text"`
}

// Planner decides who holds which GPU next. It keeps derived state only
// (timers, learned durations, scratch memory), all of which may be lost: a new
// planner decides the same after a while. Not safe for concurrent use.
type Planner struct {
	cfg    Config
	floor  floor
	placer placer
	name   []byte // scratch
	models map[string]*modelMemo
	jobs   map[string]*jobMemo
	fleet  fleetMemo
}

// NewPlanner returns a planner; cfg must be valid.
func NewPlanner(cfg Config) *Planner {
	return &Planner{cfg: cfg, models: map[string]*modelMemo{}, jobs: map[string]*jobMemo{}}
}

// Config returns what the planner was made with.
func (p *Planner) Config() Config { return p.cfg }

// pass is one run of Plan.
type pass struct {
	*Planner
	f      *floor
	view   *View
	st     *registry.State
	nowMs  int64
	out    Plan
	newID  int // replicas named in this plan
	needs  []*need
	census census
	heads  []int32         // the first waiting gang of each tenant
	moved  map[string]bool // replicas that this plan has a command for
}

// Plan looks at the view and says what should change. It reads v and keeps
// nothing of it. Call it when something was released or changed, and otherwise
// every PlanEveryMs. With a view that has not changed it gives an empty plan
// once all is as it should be.
func (p *Planner) Plan(v View, nowMs int64) Plan {
	ps := &pass{Planner: p, f: &p.floor, view: &v, st: v.State, nowMs: nowMs, moved: map[string]bool{}}
	p.floor.build(&v)
	p.learn(&v, nowMs)
	ps.ownersWishes()
	ps.wanted()
	ps.retire()
	ps.takes()
	ps.training()
	ps.explain()
	return ps.out
}

// emit adds a command by fill.
func (ps *pass) emit(c registry.Command, reason string) {
	c.Author, c.Reason, c.AtMs = "fill", reason, ps.nowMs
	ps.out.Commands = append(ps.out.Commands, c)
}

func (ps *pass) act(a Action) { ps.out.Actions = append(ps.out.Actions, a) }

func (ps *pass) wait(object string, cause Cause, text string) {
	if len(ps.out.Waiting) < maxWaitingEntries {
		ps.out.Waiting = append(ps.out.Waiting, Waiting{Object: object, Cause: cause, Text: text})
	}
}
