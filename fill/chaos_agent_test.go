package fill

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sluice/nodes"
	"sluice/nodes/rank"
	"sluice/nodes/registry"
)

// The agents, holders and ranks of the chaos test.

type chaosAgent struct {
	c       *chaos
	node    nodes.Node
	up      bool // the stream
	lost    bool // the machine
	epoch   int
	lastMs  int64 // frames arrive in order
	holders map[string]*chaosHolder
	answers map[string]nodes.Answer
}

type chaosHolder struct {
	a      *chaosAgent
	spec   *nodes.HolderSpec
	status nodes.HolderStatus
	m      *rank.Machine
	silent bool // answers nothing, steps no more
}

// chaosGang is what the ranks of one generation share: a collective at each step.
type chaosGang struct {
	ranks []*chaosHolder
	world int
}

// send carries a frame to the controller, in order, late, or never when the
// stream breaks on the way.
func (a *chaosAgent) send(f nodes.Frame) {
	if !a.up {
		return
	}
	epoch := a.epoch
	at := max(a.lastMs, a.c.nowMs+int64(a.c.rng.IntN(40)))
	a.lastMs = at
	a.c.after(at-a.c.nowMs, func() {
		if a.up && a.epoch == epoch && !a.c.down {
			a.c.fleet.Frame(a.node.ID, &f, a.c.nowMs)
		}
	})
}

func (a *chaosAgent) connect() {
	if a.lost || a.c.down {
		a.c.after(500, a.connect)
		return
	}
	if a.up {
		return
	}
	a.up = true
	a.epoch++
	h := &nodes.Hello{Node: a.node}
	for _, id := range sortedKeys(a.holders) {
		x := a.holders[id]
		h.Holders = append(h.Holders, x.status)
		if x.m != nil && x.status.State != nodes.StatePrepared {
			for _, m := range x.m.Replay() {
				h.Ranks = append(h.Ranks, x.noteOf(m))
			}
		}
	}
	a.c.apply(registry.Command{NodeSeen: &a.node})
	a.c.fleet.Frame(a.node.ID, &nodes.Frame{Hello: h}, a.c.nowMs)
	a.beat(a.epoch)
}

func (a *chaosAgent) beat(epoch int) {
	if !a.up || a.epoch != epoch {
		return
	}
	a.send(nodes.Frame{Readings: &nodes.Readings{}})
	a.c.after(1_000, func() { a.beat(epoch) })
}

func (a *chaosAgent) disconnect(ms int64) {
	a.up = false
	if s := a.c.fleet.Nodes[a.node.ID]; s != nil {
		s.Connected = false
	}
	a.c.after(ms, a.connect)
}

func (a *chaosAgent) say(h *chaosHolder, st nodes.HolderState) {
	h.status.State = st
	s := h.status
	a.send(nodes.Frame{Holder: &s})
}

func (a *chaosAgent) answer(o *nodes.Order, err string, port int) {
	ans := nodes.Answer{ID: o.ID, Holder: o.Holder, Err: err, Port: port}
	a.answers[o.ID] = ans
	a.send(nodes.Frame{Answer: &ans})
}

func (a *chaosAgent) order(o *nodes.Order) {
	if ans, ok := a.answers[o.ID]; ok {
		a.send(nodes.Frame{Answer: &ans})
		if o.Kind != nodes.OrderRankPrepare && o.Kind != nodes.OrderRankCommit && o.Kind != nodes.OrderRankResume {
			return
		}
	}
	h := a.holders[o.Holder]
	if h == nil && o.Spec == nil {
		a.answer(o, "", 0)
		return
	}
	switch o.Kind {
	case nodes.OrderPrepare:
		h = &chaosHolder{a: a, spec: o.Spec, status: nodes.HolderStatus{ID: o.Holder, Generation: o.Generation, Kind: o.Spec.Kind, Owner: o.Spec.Owner, GPUs: o.Spec.GPUs, Port: 7}}
		a.holders[o.Holder] = h
		a.answer(o, "", 7)
		a.say(h, nodes.StatePrepared)
	case nodes.OrderStart:
		a.start(o, h)
	case nodes.OrderSleep, nodes.OrderWake, nodes.OrderStop, nodes.OrderKill:
		a.answer(o, "", 0)
		a.holderOrder(o, h)
	case nodes.OrderForget:
		a.answer(o, "", 0)
		delete(a.holders, o.Holder)
	case nodes.OrderRankPrepare:
		a.rankOrder(h, rank.Message{Type: rank.TypePrepare, ID: o.StopID, Mode: rank.Mode(o.Mode)})
	case nodes.OrderRankCommit:
		a.rankOrder(h, rank.Message{Type: rank.TypeCommit, ID: o.StopID, Step: o.Step, Mode: rank.Mode(o.Mode)})
	case nodes.OrderRankResume:
		a.rankOrder(h, rank.Message{Type: rank.TypeResume, ID: o.StopID})
	}
}

func (a *chaosAgent) occupy(h *chaosHolder) {
	for _, g := range h.spec.GPUs {
		if other := a.c.device[g]; other != "" && other != h.spec.ID {
			a.c.fatalf("GPU %s: %s becomes active beside %s", g, h.spec.ID, other)
		}
		a.c.device[g] = h.spec.ID
	}
}

func (a *chaosAgent) vacate(h *chaosHolder) {
	for _, g := range h.spec.GPUs {
		if a.c.device[g] == h.spec.ID {
			delete(a.c.device, g)
		}
	}
}

func (a *chaosAgent) start(o *nodes.Order, h *chaosHolder) {
	c := a.c
	if h == nil {
		h = &chaosHolder{a: a, spec: o.Spec, status: nodes.HolderStatus{ID: o.Holder, Generation: o.Generation, Kind: o.Spec.Kind, Owner: o.Spec.Owner, GPUs: o.Spec.GPUs, Port: 8}}
		a.holders[o.Holder] = h
	} else if h.status.State != nodes.StatePrepared {
		a.answer(o, "", 0)
		return
	}
	h.spec = o.Spec
	a.answer(o, "", 0)
	a.occupy(h)
	a.say(h, nodes.StateStarting)
	if h.spec.Kind == nodes.KindReplica {
		c.after(int64(200+c.rng.IntN(2_000)), func() {
			if h.status.State == nodes.StateStarting {
				a.say(h, nodes.StateReady)
			}
		})
		return
	}
	h.m = rank.NewMachine(rank.Message{Job: h.spec.Rank.Job, Generation: h.spec.Generation, Rank: h.spec.Rank.Rank, WorldSize: h.spec.Rank.WorldSize,
		PID: 1, Sync: rank.SyncAll, Step: resumeStep(h.spec.Rank.ResumeManifest)})
	key := fmt.Sprintf("%s.g%d", h.spec.Owner, h.spec.Generation)
	g := c.gangs[key]
	if g == nil {
		g = &chaosGang{world: h.spec.Rank.WorldSize}
		c.gangs[key] = g
	}
	g.ranks = append(g.ranks, h)
	c.after(int64(100+c.rng.IntN(1_500)), func() {
		if h.status.State != nodes.StateStarting {
			return
		}
		a.say(h, nodes.StateRunning)
		if h.spec.Rank.Protocol {
			for _, m := range h.m.Replay() {
				h.tell(m)
			}
		}
		h.train(g)
	})
}

func resumeStep(manifest []byte) int64 {
	i := strings.Index(string(manifest), `"step":`)
	if i < 0 {
		return 0
	}
	rest := string(manifest)[i+len(`"step":`):]
	n, _ := strconv.ParseInt(rest[:strings.IndexAny(rest, ",}")], 10, 64)
	return n
}

func (a *chaosAgent) holderOrder(o *nodes.Order, h *chaosHolder) {
	c := a.c
	switch o.Kind {
	case nodes.OrderSleep:
		c.after(int64(50+c.rng.IntN(300)), func() {
			if h.status.State == nodes.StateReady {
				a.vacate(h)
				a.say(h, nodes.StateAsleep)
			}
		})
	case nodes.OrderWake:
		if h.status.State == nodes.StateAsleep {
			a.occupy(h)
			c.after(int64(50+c.rng.IntN(300)), func() {
				if h.status.State == nodes.StateAsleep {
					a.say(h, nodes.StateReady)
				}
			})
		}
	case nodes.OrderStop, nodes.OrderKill:
		delay := int64(10)
		if o.Kind == nodes.OrderStop {
			delay = min(o.GraceMs, int64(20+c.rng.IntN(400)))
			if h.silent {
				delay = o.GraceMs
			}
		}
		c.after(delay, func() { h.exit(0, o.Reason) })
	}
}

// exit ends a holder's process and proves it gone a little later.
func (h *chaosHolder) exit(code int, why string) {
	if h.status.State == nodes.StateGone || h.status.State == nodes.StateEnding {
		return
	}
	h.status.Exited, h.status.ExitCode, h.status.Reason = true, code, why
	h.a.say(h, nodes.StateEnding)
	h.a.c.after(int64(5+h.a.c.rng.IntN(100)), func() {
		h.a.vacate(h)
		h.a.say(h, nodes.StateGone)
	})
}

func (h *chaosHolder) noteOf(m rank.Message) nodes.RankNote {
	n := nodes.RankNote{Holder: h.spec.ID, Job: h.spec.Owner, Generation: h.spec.Generation, Rank: h.spec.Rank.Rank, Kind: string(m.Type),
		StopID: m.ID, Sync: string(m.Sync), Begun: m.Begun, Done: m.Done, Step: m.Step, Samples: m.Samples, Phase: string(m.Phase)}
	if m.Type == rank.TypeShard {
		n.Shard = &nodes.Shard{Rank: h.spec.Rank.Rank, Step: m.Step, File: m.File, Bytes: 1, Digest: m.Digest, Scope: "shared"}
	}
	return n
}

func (h *chaosHolder) tell(m rank.Message) {
	n := h.noteOf(m)
	h.a.send(nodes.Frame{Rank: &n})
}

func (a *chaosAgent) rankOrder(h *chaosHolder, m rank.Message) {
	if h == nil || h.m == nil || h.silent || h.status.Exited {
		return
	}
	for _, out := range h.m.On(m) {
		h.tell(out)
	}
}

// train is a rank's loop: a step ends when all ranks of the gang have begun it.
func (h *chaosHolder) train(g *chaosGang) {
	c := h.a.c
	if h.status.Exited || h.silent || h.status.State == nodes.StateGone {
		return
	}
	again := func(ms int) { c.after(int64(ms), func() { h.train(g) }) }
	p := h.m.Progress()
	if p.Begun > p.Done {
		if len(g.ranks) < g.world || slices.ContainsFunc(g.ranks, func(o *chaosHolder) bool { return o.m.Progress().Begun < p.Begun }) {
			again(20)
			return
		}
		if err := h.m.Done(p.Begun, 1, p.Begun); err != nil {
			c.fatalf("%s: %v", h.spec.ID, err)
		}
		h.progress(p.Begun)
		again(c.rng.IntN(60))
		return
	}
	d, err := h.m.Begin(p.Begun + 1)
	if err != nil {
		c.fatalf("%s: %v", h.spec.ID, err)
	}
	switch d {
	case rank.Proceed:
		ms := 50 + c.rng.IntN(100)
		if c.rng.IntN(200) == 0 {
			ms = 3_000 // evaluates, compiles, waits for data
		}
		again(ms)
	case rank.Wait:
		again(20)
	case rank.Yield:
		c.stoppedAt(h, p.Done)
		h.a.vacate(h)
		for _, m := range h.m.Yielded() {
			h.tell(m)
		}
		h.a.say(h, nodes.StateYielded)
		again(20)
	case rank.Resume:
		h.a.occupy(h)
		h.a.say(h, nodes.StateRunning)
		for _, m := range h.m.Resumed() {
			h.tell(m)
		}
		again(20)
	case rank.Save:
		c.stoppedAt(h, p.Done)
		c.after(int64(50+c.rng.IntN(500)), func() {
			if h.status.Exited {
				return
			}
			h.save(p.Done)
			h.tell(h.m.Stopped(p.Done))
			c.after(30, func() { h.exit(0, "") })
		})
	}
}

func (h *chaosHolder) progress(step int64) {
	if !h.spec.Rank.Protocol {
		return
	}
	h.tell(h.m.Progress())
	if step%20 == 0 {
		h.save(step)
	}
}

func (h *chaosHolder) save(step int64) {
	h.tell(h.m.Shard(rank.Message{Step: step, File: fmt.Sprintf("/ckpt/%s/%d", h.spec.ID, step), Bytes: 1, Digest: rank.Digest(nil), Scope: rank.ScopeShared}))
}
