package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"sluice/bench/peers/peer"
	"sluice/bench/peers/proc"
	"sluice/bench/peers/rig"
	"sluice/bench/peers/stat"
)

const (
	leavers       = 200
	leaveEveryMs  = 5
	goneWait      = 2 * time.Second // a connection that is open longer counts as never closed
	tracedConns   = 64
	restarts      = 5
	killAfter     = 500 * time.Millisecond
	killWatch     = 2500 * time.Millisecond
	queueTestWait = 500 * time.Millisecond
)

// calls: the kernel calls of a plain request, counted by strace.
func (b *bench) calls(p *peer.Running) error {
	b.engine.Answer = rig.Answer{Body: rig.PlainAnswer(smallBytes)}
	c, err := b.rig.Closed(b.ask(p, smallBytes, false), tracedConns)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := b.rig.Run(warm); err != nil {
		return err
	}
	c.Pause()
	if err := b.rig.RunUntil(answerWait, c.Resting); err != nil {
		return err
	}
	trace, err := p.Trace(filepath.Join(b.dir, "calls"))
	if errors.Is(err, proc.ErrNoStrace) {
		b.noteOnce(err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	c.Clear()
	c.Resume()
	runErr := b.rig.Run(2 * b.window)
	c.Pause()
	runErr = errors.Join(runErr, b.rig.RunUntil(answerWait, c.Resting))
	calls, err := trace.Stop()
	if err = errors.Join(runErr, err); err != nil {
		return err
	}
	n := float64(c.Answers)
	sums := callSums(calls)
	for _, col := range callColumns {
		b.add(p.Name, col, sums[col]/n)
	}
	b.say("  %-18s kernel calls a request: %s", p.Name, calls.Each(n))
	return nil
}

// departures: how long an engine's connection outlives its client.
func (b *bench) departures(p *peer.Running) error {
	if err := b.depart(p, rig.Answer{}, colGonePrefill, "in prefill"); err != nil {
		return err
	}
	if err := b.depart(p, rig.Answer{Tokens: rig.Endless, Pace: paceTime}, colGoneStream, "streaming"); err != nil {
		return err
	}
	if p.Name == peer.Sluice {
		return b.departQueued(p)
	}
	return nil
}

func (b *bench) depart(p *peer.Running, answer rig.Answer, cols phase, what string) error {
	b.engine.Answer = answer
	d, err := b.rig.Leavers(p.Addr, b.engine, leavers, 2, func(i int) []byte {
		return rig.Request(peer.Model, keyOf(p), smallBytes, true, i)
	})
	if err != nil {
		return err
	}
	defer d.Close()
	streaming := answer.Tokens > 0
	reached := func() bool { return d.Asked == leavers && (!streaming || d.Begun == leavers) }
	if err := b.rig.RunUntil(answerWait, reached); err != nil {
		return err
	}
	if !reached() {
		b.note("departures %s, %s: only %d of %d requests reached the engine", what, p.Name, d.Asked, leavers)
	}
	d.Leave(0)
	if err := b.rig.RunUntil(answerWait, d.Left); err != nil {
		return err
	}
	if err := b.rig.RunUntil(goneWait, func() bool { return len(d.LeftMs) == d.Asked }); err != nil {
		return err
	}
	never := d.Asked - len(d.LeftMs)
	p50, p99 := stat.Quantile(d.LeftMs, 0.5), stat.Quantile(d.LeftMs, 0.99)
	b.add(p.Name, cols.never, float64(never))
	b.add(p.Name, cols.p50, p50)
	b.add(p.Name, cols.p99, p99)
	b.say("  %-18s departures %s: engine's connection closed after %.1f ms p50, %.1f ms p99, %d of %d not within %v", p.Name, what, p50, p99,
		never, d.Asked, goneWait)
	return b.fresh()
}

// fresh ends all connections of the engine, so that nothing of a phase is left in the next.
func (b *bench) fresh() error {
	b.engine.Kill()
	if err := b.engine.Open(); err != nil {
		return err
	}
	return b.settle()
}

// departQueued: one request holds the model's only slot, the rest wait and leave; then the slot comes free. None that has
// left may reach the engine.
func (b *bench) departQueued(p *peer.Running) error {
	b.engine.Answer = rig.Answer{}
	d, err := b.rig.Leavers(p.Addr, b.engine, leavers, 2, func(i int) []byte {
		return rig.Request(peer.SlotModel, keyOf(p), smallBytes, true, i)
	})
	if err != nil {
		return err
	}
	defer d.Close()
	if err := b.rig.Run(leavers*2*time.Millisecond + queueTestWait); err != nil {
		return err
	}
	holding := d.Asked
	d.Leave(1)
	if err := b.rig.RunUntil(answerWait, d.Left); err != nil {
		return err
	}
	d.Leave(0) // the slot comes free at once behind the last departure
	if err := b.rig.Run(queueTestWait); err != nil {
		return err
	}
	if holding != 1 {
		b.note("departures in the queue: %d requests reached the engine before any left, instead of 1", holding)
	}
	b.add(p.Name, colGoneQueued, float64(d.Asked-holding))
	b.say("  %-18s departures in the queue: %d of %d reached the engine all the same", p.Name, d.Asked-holding, leavers-holding)
	return b.fresh()
}

// restart: the engine ends and is back at once, while a peer keeps idle connections to it.
func (b *bench) restart(p *peer.Running) error {
	b.engine.Answer = rig.Answer{Body: rig.PlainAnswer(smallBytes)}
	c, err := b.rig.Closed(b.ask(p, smallBytes, false), plainConns)
	if err != nil {
		return err
	}
	defer c.Close()
	asked := 0
	for range restarts {
		c.Resume()
		if err := b.rig.Run(warm); err != nil {
			return err
		}
		c.Pause()
		if err := b.rig.RunUntil(answerWait, c.Resting); err != nil {
			return err
		}
		asked += plainConns
		b.engine.Kill()
		if err := b.engine.Open(); err != nil {
			return err
		}
	}
	t := c.Tally
	bad := t.Errors + t.Lost + t.Cut
	b.add(p.Name, colRestart, float64(bad))
	b.say("  %-18s %d restarts of the engine under idle connections: %d of %d requests failed", p.Name, restarts, bad, t.Answers+bad)
	return nil
}

// killOne: two engines under load, one is killed.
func (b *bench) killOne(p *peer.Peer) error {
	if p.OneEngine {
		return nil
	}
	pair, err := p.StartPair(b.setup(), b.o.rigCore)
	if err != nil {
		return err
	}
	defer pair.Stop()
	if err := b.passes(pair.Running); err != nil {
		return err
	}
	c, err := b.rig.Closed(b.ask(pair.Running, smallBytes, false), plainConns)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := b.rig.Run(killAfter); err != nil {
		return err
	}
	c.Clear()
	if err := pair.KillOne(); err != nil {
		return fmt.Errorf("kill an engine of %s: %w", p.Name, err)
	}
	if err := b.rig.Run(killWatch); err != nil {
		return err
	}
	bad := c.Errors + c.Lost + c.Cut
	b.add(p.Name, colKill, float64(bad))
	b.say("  %-18s one of two engines killed: %d of %d requests failed", p.Name, bad, c.Answers+bad)
	return nil
}
