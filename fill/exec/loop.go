package exec

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"sluice/fill"
	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/slo"
)

// loop owns the fleet, the planner and the streams.
func (c *Controller) loop() {
	defer close(c.stopped)
	tick := time.NewTicker(tickMs * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-c.stop:
			for _, s := range c.agents {
				s.end(errStopping)
			}
			return
		case in := <-c.inbox:
			c.take(in)
			c.drainInbox()
		case <-c.poke:
		case <-tick.C:
		}
		if !c.log.Leader() {
			continue
		}
		c.leases()
		for range maxRoundPasses {
			if !c.round() {
				break
			}
		}
	}
}

// drainInbox takes the frames that already wait, so that a round sees them all.
func (c *Controller) drainInbox() {
	for range inboxFrames {
		select {
		case in := <-c.inbox:
			c.take(in)
		default:
			return
		}
	}
}

func (c *Controller) take(in inbound) {
	s := in.stream
	now := c.clock.nowMs()
	switch {
	case in.gone:
		s.end(errReplaced)
		if c.agents[s.node] == s {
			delete(c.agents, s.node)
			c.store.mu.Lock()
			if n := c.store.fleet.Nodes[s.node]; n != nil {
				n.Connected = false
			}
			c.store.mu.Unlock()
		}
		return
	case in.frame.Hello != nil:
		c.hello(s, in.frame, now)
		return
	case s.node == "":
		s.end(errNoHello)
		return
	case c.agents[s.node] != s:
		return // an older stream of a node that has a newer one
	}
	s.lastMs = now
	c.store.mu.Lock()
	c.store.fleet.Frame(s.node, in.frame, now)
	if a := in.frame.Answer; a != nil && a.Err != "" {
		s.refused++
		c.cfg.Log.Warn("an agent refused an order", "node", s.node, "order", a.ID, "error", a.Err)
	}
	c.store.mu.Unlock()
}

// hello takes up a stream. A node's newer stream replaces its older one; a
// second machine of the same name is refused while the first is heard.
func (c *Controller) hello(s *agentStream, f *nodes.Frame, now int64) {
	node := f.Hello.Node.ID
	if node == "" {
		s.end(errNoHello)
		return
	}
	if old := c.agents[node]; old != nil && old != s {
		known := c.store.fleet.Nodes[node]
		if known != nil && known.Node.BootID != f.Hello.Node.BootID && now-old.lastMs < c.cfg.LeaseMs {
			c.cfg.Log.Error("refused an agent", "node", node, "peer", s.peer, "error", errDuplicate)
			s.end(errDuplicate)
			return
		}
		old.end(errReplaced)
	}
	inventory := f.Hello.Node
	cmds := append([]registry.Command{{NodeSeen: &inventory, Author: "agent:" + node, Reason: "its agent connected"}}, c.rebooted(&inventory)...)
	if _, err := c.submit(context.Background(), cmds); err != nil {
		c.cfg.Log.Error("cannot record a node", "node", node, "error", err)
		s.end(err)
		return
	}
	s.node, s.lastMs = node, now
	s.sentMs = map[string]int64{}
	c.agents[node] = s
	c.store.mu.Lock()
	c.store.fleet.Frame(node, f, now)
	c.store.mu.Unlock()
	c.push(s, nodes.Down{Welcome: &nodes.Welcome{Term: c.log.Term(), LeaseMs: c.cfg.LeaseMs, NowMs: now}})
}

// rebooted frees GPUs that were fenced as lost before the node booted again.
func (c *Controller) rebooted(n *nodes.Node) []registry.Command {
	c.store.mu.RLock()
	defer c.store.mu.RUnlock()
	old := c.store.state.Nodes[n.ID]
	if old == nil || old.BootID == n.BootID {
		return nil
	}
	var cmds []registry.Command
	for _, id := range slices.Sorted(maps.Keys(c.store.state.GPUs)) {
		if g := c.store.state.GPUs[id]; g.Node == n.ID && g.Fenced != "" {
			cmds = append(cmds, registry.Command{GPUMark: &registry.GPUMark{UUID: id}, Author: "agent:" + n.ID, Reason: "its node booted again"})
		}
	}
	return cmds
}

// push hands a line to an agent's writer; a full outbox ends the stream.
func (c *Controller) push(s *agentStream, d nodes.Down) {
	select {
	case s.out <- d:
	default:
		s.end(errSlow)
	}
}

// leases declares agents lost that were silent for the lease, and sends beats. The stream of a lost one ends, if it is
// there still: only its hello, on a new one, brings a node back. A loop that was away itself, held up by its disk or
// stopped with its machine, has heard nobody, and gives everyone a whole lease from when it is back.
func (c *Controller) leases() {
	now := c.clock.nowMs()
	if now-c.leasesMs > c.cfg.LeaseMs/2 {
		c.backMs = now
	}
	c.leasesMs = now
	for _, s := range c.agents {
		if now-s.beatMs >= c.cfg.LeaseMs/5 {
			s.beatMs = now
			c.push(s, nodes.Down{Beat: &nodes.Beat{Term: c.log.Term(), NowMs: now}})
		}
	}
	var lost []registry.Command
	c.store.mu.RLock()
	for _, id := range slices.Sorted(maps.Keys(c.store.state.Nodes)) {
		n := c.store.state.Nodes[id]
		seen := c.store.fleet.Nodes[id]
		last := n.LastSeenMs
		switch {
		case n.Lost:
			continue
		case seen != nil && now-max(seen.LastMs, c.backMs) < c.cfg.LeaseMs:
			continue
		case seen == nil && now-c.leaderMs < max(firstLeaseMs, c.cfg.LeaseMs):
			continue // a new leader gives agents time to find it
		case seen != nil:
			last = seen.LastMs
		}
		if s := c.agents[id]; s != nil {
			s.end(errSilent)
		}
		lost = append(lost, registry.Command{NodeLost: &registry.NodeLost{Node: id, LastSeenMs: last}, Author: "fill", Reason: "its agent was silent for its lease"})
	}
	c.store.mu.RUnlock()
	if len(lost) > 0 {
		c.submitAll(lost)
	}
}

// round decides once and sends the orders. It reports whether facts changed.
func (c *Controller) round() bool {
	now := c.clock.nowMs()
	headroom := c.Headroom()
	c.store.mu.RLock()
	v := fill.View{State: c.store.state, Fleet: c.store.fleet, Headroom: headroom, LeaderSinceMs: c.leaderMs}
	cmds := fill.Advance(v, now)
	c.store.mu.RUnlock()
	changed := len(cmds) > 0 && c.submitAll(cmds)
	if changed || now-c.lastPlan >= planEveryMs {
		changed = c.plan(headroom, now) || changed
	}
	c.sendOrders(headroom, now)
	return changed
}

func (c *Controller) plan(headroom map[string]slo.Headroom, now int64) bool {
	c.lastPlan = now
	c.store.mu.RLock()
	v := fill.View{State: c.store.state, Fleet: c.store.fleet, Headroom: headroom, LeaderSinceMs: c.leaderMs}
	p := c.planner.Plan(v, now)
	c.store.mu.RUnlock()
	c.waitMu.Lock()
	c.waiting = p.Waiting
	if len(p.Actions) > 0 {
		c.actions = p.Actions
	}
	c.waitMu.Unlock()
	return len(p.Commands) > 0 && c.submitAll(p.Commands)
}

// submitAll applies commands as one entry and reports whether one took effect.
// A stale command is no fault: the next round decides on what is true then.
func (c *Controller) submitAll(cmds []registry.Command) bool {
	out, err := c.submit(context.Background(), cmds)
	if err != nil {
		c.cfg.Log.Error("cannot apply decisions", "error", err)
		return false
	}
	any := false
	for i := range out {
		switch {
		case out[i].err == nil:
			any = any || len(out[i].events) > 0
		case errors.Is(out[i].err, registry.ErrStale):
			c.cfg.Log.Debug("a decision was stale", "command", cmds[i].ID, "reason", cmds[i].Reason, "error", out[i].err)
		default:
			c.cfg.Log.Warn("a decision was refused", "command", cmds[i].ID, "reason", cmds[i].Reason, "error", out[i].err)
		}
	}
	return any
}

// sendOrders sends each connected agent what is to be done and was not sent on
// this stream within resendMs.
func (c *Controller) sendOrders(headroom map[string]slo.Headroom, now int64) {
	c.store.mu.RLock()
	v := fill.View{State: c.store.state, Fleet: c.store.fleet, Headroom: headroom, LeaderSinceMs: c.leaderMs}
	orders := fill.Orders(v, c.log.Term(), now, c.cfg.CheckpointRoot)
	c.store.mu.RUnlock()
	for _, o := range orders {
		s := c.agents[o.Node]
		if s == nil {
			continue
		}
		if at, ok := s.sentMs[o.Order.ID]; ok && now-at < resendMs {
			continue
		}
		s.sentMs[o.Order.ID] = now
		ord := o.Order
		c.push(s, nodes.Down{Order: &ord})
		if ord.Kind == nodes.OrderForget {
			c.store.mu.Lock()
			c.store.fleet.Nodes[o.Node].Forget(ord.Holder)
			c.store.mu.Unlock()
		}
	}
	c.trimSent(now)
}

// trimSent forgets orders sent long ago, so that a stream's memory stays small.
func (c *Controller) trimSent(now int64) {
	const keepMs, enough = 60_000, 4096
	for _, s := range c.agents {
		if len(s.sentMs) > enough {
			maps.DeleteFunc(s.sentMs, func(_ string, at int64) bool { return now-at > keepMs })
		}
	}
}
