package main

import (
	"fmt"
	"time"

	"sluice/bench/peers/peer"
	"sluice/bench/peers/rig"
)

// bench is one run of everything.
type bench struct {
	o       options
	dir     string
	window  time.Duration
	rig     *rig.Rig
	engine  *rig.Engine
	peers   []*peer.Peer
	running []*peer.Running
	got     results
	notes   []string
}

// measure is one thing that is measured of each peer.
type measure struct {
	name string
	// once: in the first round only, of a peer started for it; what it leaves behind must not touch the rest.
	once bool
	// pair: of a peer before two engines, which are processes.
	pair bool
	// direct: without any gateway too.
	direct bool
	// spin: latencies are taken, so the rig must not sleep.
	spin bool
	run  func(b *bench, p *peer.Running) error
}

var measures = []measure{
	{name: "plain", run: (*bench).plain},
	{name: "latency", spin: true, run: (*bench).latency},
	{name: "open", spin: true, run: (*bench).openLoop},
	{name: "prompts", run: (*bench).prompts},
	{name: "tokens", spin: true, direct: true, run: (*bench).tokens},
	{name: "held", spin: true, direct: true, run: (*bench).held},
	{name: "calls", once: true, run: (*bench).calls},
	{name: "departures", once: true, run: (*bench).departures},
	{name: "restart", once: true, run: (*bench).restart},
	{name: "kill", once: true, pair: true},
	{name: "memory", once: true, run: (*bench).memory},
}

func measureNames() []string {
	var out []string
	for _, m := range measures {
		out = append(out, m.name)
	}
	return out
}

func (b *bench) say(format string, args ...any) {
	fmt.Printf("%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

// note keeps something that the reader of the tables must know.
func (b *bench) note(format string, args ...any) {
	b.notes = append(b.notes, fmt.Sprintf(format, args...))
	b.say(format, args...)
}

// add books one value of one peer.
func (b *bench) add(name, column string, v float64) {
	if b.got[name] == nil {
		b.got[name] = map[string][]float64{}
	}
	b.got[name][column] = append(b.got[name][column], v)
}

func (b *bench) measure(todo []measure) error {
	for round := range b.o.rounds {
		for _, m := range todo {
			if m.once {
				continue
			}
			if err := b.startAll(); err != nil {
				return err
			}
			b.rig.Spin(m.spin)
			b.say("round %d of %d: %s", round+1, b.o.rounds, m.name)
			if m.direct {
				if err := m.run(b, &peer.Running{Peer: &peer.Peer{Name: nameDirect}, Addr: b.engine.Addr()}); err != nil {
					return fmt.Errorf("%s, direct: %w", m.name, err)
				}
			}
			for _, p := range b.running {
				if err := m.run(b, p); err != nil {
					return fmt.Errorf("%s, %s: %w", m.name, p.Name, err)
				}
			}
		}
	}
	b.stopAll()
	b.rig.Spin(false)
	for _, m := range todo {
		if !m.once {
			continue
		}
		b.say("%s, each peer started for it", m.name)
		for _, p := range b.peers {
			if err := b.alone(m, p); err != nil {
				return fmt.Errorf("%s, %s: %w", m.name, p.Name, err)
			}
		}
	}
	return nil
}

// alone runs a measure on a peer that nothing was asked of before.
func (b *bench) alone(m measure, p *peer.Peer) error {
	if m.pair {
		return b.killOne(p)
	}
	r, err := b.start(p, b.engine.Addr())
	if err != nil {
		return err
	}
	defer r.Stop()
	return m.run(b, r)
}

func (b *bench) startAll() error {
	if b.running != nil {
		return nil
	}
	for _, p := range b.peers {
		r, err := b.start(p, b.engine.Addr())
		if err != nil {
			return err
		}
		b.running = append(b.running, r)
	}
	return nil
}

func (b *bench) stopAll() {
	for _, r := range b.running {
		r.Stop()
	}
	b.running = nil
}

// answerWait is how long a peer that listens may take to answer.
const answerWait = 15 * time.Second

// start starts a peer and waits until a request gets through it.
func (b *bench) start(p *peer.Peer, engines ...string) (*peer.Running, error) {
	r, err := p.Start(b.setup(engines...))
	if err != nil {
		return nil, err
	}
	if err := b.passes(r); err != nil {
		r.Stop()
		return nil, err
	}
	return r, nil
}

func (b *bench) setup(engines ...string) peer.Setup {
	return peer.Setup{Dir: b.dir, Core: b.o.core, Engines: engines, Sluice: b.o.sluice}
}

// passes waits until a request gets through a peer.
func (b *bench) passes(r *peer.Running) error {
	b.engine.Answer = rig.Answer{Body: rig.PlainAnswer(smallBytes)}
	c, err := b.rig.Closed(b.ask(r, smallBytes, false), 1)
	if err != nil {
		return err
	}
	err = b.rig.RunUntil(answerWait, func() bool { return c.Bytes >= smallBytes && c.Answers > 0 })
	c.Close()
	if err == nil && (c.Bytes < smallBytes || c.Answers == 0) { // an answer of the peer's own has fewer bytes
		err = fmt.Errorf("%s does not pass a request on within %v (%d answers, %d errors, %d lost)", r.Name, answerWait, c.Answers, c.Errors, c.Lost)
	}
	return err
}

// ask is the usual request to a peer.
func (b *bench) ask(p *peer.Running, bodyBytes int, stream bool) rig.Target {
	return rig.Target{Addr: p.Addr, Request: rig.Request(peer.Model, keyOf(p), bodyBytes, stream, -1)}
}

// keyOf is the key that a peer is shown; those that want none get one all the same, so that all read the same bytes.
func keyOf(p *peer.Running) string {
	if p.Key != "" {
		return p.Key
	}
	return "sk-0000000000000000000000000000000000000000000"
}

// cpuUs is what a peer has used so far; direct uses none.
func cpuUs(p *peer.Running) (float64, error) {
	if p.Process == nil {
		return 0, nil
	}
	d, err := p.CPU()
	return float64(d) / 1e3, err
}

// tally is what one timed part saw.
type tally struct {
	*rig.Tally
	seconds float64
	cpuUs   float64 // of the peer, all of it
}

// timed runs the rig for a window after a warm-up.
func (b *bench) timed(p *peer.Running, t *rig.Tally, warm, window time.Duration) (tally, error) {
	if err := b.rig.Run(warm); err != nil {
		return tally{}, err
	}
	before, err := cpuUs(p)
	if err != nil {
		return tally{}, err
	}
	t.Clear()
	start := time.Now()
	if err := b.rig.Run(window); err != nil {
		return tally{}, err
	}
	took := time.Since(start).Seconds()
	after, err := cpuUs(p)
	return tally{t, took, after - before}, err
}

// settle lets ends of connections pass through a peer before the next part.
func (b *bench) settle() error { return b.rig.Run(settleTime) }

const settleTime = 100 * time.Millisecond
