package main

import (
	"time"

	"sluice/bench/peers/peer"
	"sluice/bench/peers/rig"
	"sluice/bench/peers/stat"
)

const (
	longBytes = 128 << 10
	longConns = 16
	// commonRate is a load that every peer carries, in requests a second.
	commonRate = 2000
	heldPace   = 50 * time.Millisecond
	heldConns  = 20
)

// latency: one request at a time, beside one at a time without a gateway.
func (b *bench) latency(p *peer.Running) error {
	b.engine.Answer = rig.Answer{Body: rig.PlainAnswer(smallBytes)}
	through, err := b.one(p.Addr, p)
	if err != nil {
		return err
	}
	bare, err := b.one(b.engine.Addr(), p)
	if err != nil {
		return err
	}
	p50 := stat.Quantile(through, 0.5) - stat.Quantile(bare, 0.5)
	p99 := stat.Quantile(through, 0.99) - stat.Quantile(bare, 0.99)
	b.add(p.Name, colOne50, p50)
	b.add(p.Name, colOne99, p99)
	b.say("  %-18s adds %4.0f µs p50, %5.0f µs p99 at one connection", p.Name, p50, p99)
	return nil
}

// one asks one at a time and returns the latencies in microseconds.
func (b *bench) one(addr string, p *peer.Running) ([]float64, error) {
	to := b.ask(p, smallBytes, false)
	to.Addr = addr
	c, err := b.rig.Closed(to, 1)
	if err != nil {
		return nil, err
	}
	t, err := b.timed(p, &c.Tally, warm/3, b.window/2)
	c.Close()
	if err != nil {
		return nil, err
	}
	b.failures(p, "one at a time", c.Tally)
	return t.SamplesUs(), nil
}

// openLoop: random arrivals at half of what the peer can do, and at a rate that all can, each beside the same without a
// gateway. Latency counts from the intended time.
func (b *bench) openLoop(p *peer.Running) error {
	most := stat.Of(b.got[p.Name][colPlainRate])
	if most.Runs == 0 { // plain was not asked for
		b.engine.Answer = rig.Answer{Body: rig.PlainAnswer(smallBytes)}
		c, err := b.rig.Closed(b.ask(p, smallBytes, false), plainConns)
		if err != nil {
			return err
		}
		t, err := b.timed(p, &c.Tally, warm, b.window/2)
		c.Close()
		if err != nil {
			return err
		}
		b.add(p.Name, colPlainRate, float64(t.Answers)/t.seconds)
		most = stat.Of(b.got[p.Name][colPlainRate])
	}
	for _, part := range []struct {
		perS     float64
		p50, p99 string
	}{{most.Median / 2, colHalf50, colHalf99}, {commonRate, colRate50, colRate99}} {
		b.engine.Answer = rig.Answer{Body: rig.PlainAnswer(smallBytes)}
		through, err := b.random(p.Addr, p, part.perS)
		if err != nil {
			return err
		}
		bare, err := b.random(b.engine.Addr(), p, part.perS)
		if err != nil {
			return err
		}
		p50 := stat.Quantile(through, 0.5) - stat.Quantile(bare, 0.5)
		p99 := stat.Quantile(through, 0.99) - stat.Quantile(bare, 0.99)
		b.add(p.Name, part.p50, p50)
		b.add(p.Name, part.p99, p99)
		b.say("  %-18s adds %4.0f µs p50, %5.0f µs p99 at %.0f requests/s", p.Name, p50, p99, part.perS)
	}
	return nil
}

func (b *bench) random(addr string, p *peer.Running, perS float64) ([]float64, error) {
	to := b.ask(p, smallBytes, false)
	to.Addr = addr
	d, err := b.rig.Open(to, perS, uint64(perS))
	if err != nil {
		return nil, err
	}
	if err := b.rig.RunUntil(answerWait, d.Ready); err != nil {
		return nil, err
	}
	t, err := b.timed(p, &d.Tally, warm/2, b.window*2/3)
	d.Close()
	if err != nil {
		return nil, err
	}
	b.failures(p, "open loop", d.Tally)
	if err := b.settle(); err != nil {
		return nil, err
	}
	return t.SamplesUs(), nil
}

// prompts: 128 KB in, 1 KB out.
func (b *bench) prompts(p *peer.Running) error {
	b.engine.Answer = rig.Answer{Body: rig.PlainAnswer(smallBytes)}
	c, err := b.rig.Closed(b.ask(p, longBytes, false), longConns)
	if err != nil {
		return err
	}
	t, err := b.timed(p, &c.Tally, warm, b.window)
	c.Close()
	if err != nil {
		return err
	}
	b.failures(p, "long prompts", c.Tally)
	b.add(p.Name, colLong, t.cpuUs/float64(t.Answers))
	b.say("  %-18s %5.0f µs a prompt of 128 KB, %5.0f/s", p.Name, t.cpuUs/float64(t.Answers), float64(t.Answers)/t.seconds)
	return b.settle()
}

// held: an engine that answers as HTTP/1.0 does. A token that arrives after the next has been sent was held back.
func (b *bench) held(p *peer.Running) error {
	b.engine.Answer = rig.Answer{Tokens: rig.Endless, Pace: heldPace, Old: true}
	d, err := b.rig.Streams(b.ask(p, smallBytes, true), heldConns, streamsPerS)
	if err != nil {
		return err
	}
	t, err := b.timed(p, &d.Tally, heldPace*2, b.window*3/2)
	d.Close()
	if err != nil {
		return err
	}
	b.failures(p, "HTTP/1.0 engine", d.Tally)
	us := t.SamplesUs()
	late := 0
	for _, v := range us {
		if v > float64(heldPace.Microseconds()) {
			late++
		}
	}
	heldPercent := 100.0 // no token came at all
	if len(us) > 0 {
		heldPercent = float64(late) / float64(len(us)) * 100
		b.add(p.Name, colOldMax, float64(t.MaxNs)/1e6)
	}
	b.add(p.Name, colOld50, stat.Quantile(us, 0.5)/1e3)
	b.add(p.Name, colOldHeld, heldPercent)
	b.say("  %-18s HTTP/1.0 engine: transit %.2f ms p50, %.0f ms at most, %d of %d held back", p.Name,
		stat.Quantile(us, 0.5)/1e3, float64(t.MaxNs)/1e6, late, len(us))
	return b.settle()
}
