package main

import (
	"fmt"
	"time"

	"sluice/bench/peers/peer"
	"sluice/bench/peers/rig"
	"sluice/bench/peers/stat"
)

// Sizes of what is measured, as the goals name them.
const (
	smallBytes  = 1 << 10
	plainConns  = 64
	warm        = 300 * time.Millisecond
	idleTime    = 500 * time.Millisecond
	paceTime    = 20 * time.Millisecond
	slowPace    = 2 * time.Second
	burstConns  = 64
	burstTokens = 256
	streamsPerS = 2000 // opened
)

// plain: 1 KB in, 1 KB out, 64 connections that ask again at once; and the peer left alone.
func (b *bench) plain(p *peer.Running) error {
	before, err := cpuUs(p)
	if err != nil {
		return err
	}
	if err := b.rig.Run(idleTime); err != nil {
		return err
	}
	after, err := cpuUs(p)
	if err != nil {
		return err
	}
	idleUsPerS := (after - before) / idleTime.Seconds()
	b.add(p.Name, colIdle, idleUsPerS/1e3)

	b.engine.Answer = rig.Answer{Body: rig.PlainAnswer(smallBytes)}
	c, err := b.rig.Closed(b.ask(p, smallBytes, false), plainConns)
	if err != nil {
		return err
	}
	t, err := b.timed(p, &c.Tally, warm, b.window)
	c.Close()
	if err != nil {
		return err
	}
	b.failures(p, "plain", c.Tally)
	n := float64(t.Answers)
	b.add(p.Name, colPlainCPU, t.cpuUs/n)
	b.add(p.Name, colPlainNet, (t.cpuUs-idleUsPerS*t.seconds)/n)
	b.add(p.Name, colPlainRate, n/t.seconds)
	b.say("  %-18s %6.1f µs a request, %7.0f requests/s, idle %.1f ms/s", p.Name, t.cpuUs/n, n/t.seconds, idleUsPerS/1e3)
	return b.settle()
}

// failures notes what clients saw beside whole answers.
func (b *bench) failures(p *peer.Running, what string, t rig.Tally) {
	if t.Errors+t.Lost+t.Cut > 0 {
		b.note("%s, %s: %d error answers, %d connections lost before an answer, %d within one", what, p.Name, t.Errors, t.Lost, t.Cut)
	}
}

// tokens: 200 and 1,000 streams with a token every 20 ms, and tokens back to back.
func (b *bench) tokens(p *peer.Running) error {
	for _, part := range []struct {
		streams       int
		cpu, p50, p99 string
	}{{200, colTokens200, colTransit50, colTransit99}, {1000, colTokens1000, colTransit1000, ""}} {
		b.engine.Answer = rig.Answer{Tokens: rig.Endless, Pace: paceTime}
		d, err := b.rig.Streams(b.ask(p, smallBytes, true), part.streams, streamsPerS)
		if err != nil {
			return err
		}
		if err := b.rig.RunUntil(answerWait, d.Ready); err != nil {
			return err
		}
		blocked, late := b.engine.Blocked, b.engine.Late
		t, err := b.timed(p, &d.Tally, warm, b.window*3/2)
		d.Close()
		if err != nil {
			return err
		}
		b.failures(p, fmt.Sprint(part.streams, " streams"), d.Tally)
		if d.Begun < part.streams {
			b.note("%d streams, %s: only %d were served", part.streams, p.Name, d.Begun)
		}
		if n := b.engine.Blocked - blocked; n > 0 {
			b.note("%d streams, %s: %d tokens found the connection full", part.streams, p.Name, n)
		}
		if n := b.engine.Late - late; n > 0 {
			b.noteOnce(fmt.Sprintf("%d streams, %s: in some round the engine fell behind its pace, so the transit times are the machine's", part.streams, p.Name))
		}
		us := t.SamplesUs()
		p50, p99 := stat.Quantile(us, 0.5), stat.Quantile(us, 0.99)
		b.say("  %-18s %d streams: %5.1f µs a token, %6.0f tokens/s, transit %4.0f/%5.0f µs", p.Name, part.streams,
			t.cpuUs/float64(t.Tokens), float64(t.Tokens)/t.seconds, p50, p99)
		if p.Process != nil {
			b.add(p.Name, part.cpu, t.cpuUs/float64(t.Tokens))
		}
		b.add(p.Name, part.p50, p50)
		if part.p99 != "" {
			b.add(p.Name, part.p99, p99)
		}
		if err := b.settle(); err != nil {
			return err
		}
	}
	if p.Process == nil {
		return nil
	}
	return b.burst(p)
}

// burst: each answer is 256 tokens, each written by the engine alone, without a pause.
func (b *bench) burst(p *peer.Running) error {
	b.engine.Answer = rig.Answer{Tokens: burstTokens}
	d, err := b.rig.Streams(b.ask(p, smallBytes, true), burstConns, streamsPerS)
	if err != nil {
		return err
	}
	t, err := b.timed(p, &d.Tally, warm, b.window)
	d.Close()
	if err != nil {
		return err
	}
	b.failures(p, "back to back", d.Tally)
	b.add(p.Name, colBurst, t.cpuUs/float64(t.Tokens))
	b.say("  %-18s back to back: %5.2f µs a token, %7.0f tokens/s", p.Name, t.cpuUs/float64(t.Tokens), float64(t.Tokens)/t.seconds)
	return b.settle()
}

// memory: what the streams that are open at once cost, with a token every 2 s each.
func (b *bench) memory(p *peer.Running) error {
	most := min(b.o.streams, peer.Streams())
	if most < b.o.streams {
		b.noteOnce(fmt.Sprintf("memory: a process may open %d files here, so %d streams instead of %d", peer.Files(), most, b.o.streams))
	}
	if err := b.hold(p, 1000, colRSS1000); err != nil {
		return err
	}
	return b.hold(p, most, colRSSMost)
}

func (b *bench) noteOnce(text string) {
	for _, n := range b.notes {
		if n == text {
			return
		}
	}
	b.note("%s", text)
}

// hold opens streams, waits until each has had tokens, and reads the memory.
func (b *bench) hold(p *peer.Running, streams int, column string) error {
	b.engine.Answer = rig.Answer{Tokens: rig.Endless, Pace: slowPace}
	b.rig.Sources(8)
	defer b.rig.Sources(0)
	d, err := b.rig.Streams(b.ask(p, smallBytes, true), streams, streamsPerS)
	if err != nil {
		return err
	}
	ramp := time.Duration(float64(streams) / streamsPerS * float64(time.Second))
	if err := b.rig.RunUntil(ramp+4*slowPace, d.Ready); err != nil {
		return err
	}
	t, err := b.timed(p, &d.Tally, 0, slowPace)
	if err != nil {
		return err
	}
	rss, err := p.RSS()
	d.Close()
	if err != nil {
		return err
	}
	b.failures(p, fmt.Sprint(streams, " streams held"), d.Tally)
	b.add(p.Name, column, float64(rss)/1e6)
	if column == colRSSMost {
		b.add(p.Name, colStreams, float64(streams))
		b.add(p.Name, colServed, float64(d.Begun)/float64(streams)*100)
	}
	b.say("  %-18s %d of %d streams served, %d tokens in %.1f s, %.0f MB", p.Name, d.Begun, streams, t.Tokens, t.seconds, float64(rss)/1e6)
	return b.rig.Run(time.Second)
}
