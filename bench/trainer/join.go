package trainer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"sluice/nodes/rank"
)

// Limits of joining.
const (
	joinRetryMs  = 20
	joinHelloMs  = 2_000 // for a connection to say who it is; then it is closed
	maxJoinBytes = 4096
)

// ErrJoin says that the gang was not whole within JoinLimitMs, or that this rank
// was refused.
var ErrJoin = errors.New("trainer: gang did not come together")

// joinHello is what a worker says to rank 0, and welcome the answer.
type joinHello struct {
	Job        string `json:"job"`
	Generation int64  `json:"generation"`
	Rank       int    `json:"rank"`
	World      int    `json:"world"`
	// Curve names everything that shapes the loss curve.
	Curve string `json:"curve"`
}

type welcome struct {
	// Start is where rank 0 decided to begin, so that no rank chooses by itself.
	Start start  `json:"start"`
	Err   string `json:"err,omitempty"`
}

// start names the state that training begins from: a manifest's path, or none.
type start struct {
	Manifest string `json:"manifest"`
	Step     int64  `json:"step"`
	Samples  int64  `json:"samples"`
}

// join brings the gang together and returns the start that rank 0 offers.
func join(ctx context.Context, env rank.Env, cfg Config, offer start) (*ring, start, error) {
	g := &ring{rank: env.Rank, world: env.WorldSize, limit: time.Duration(cfg.ExchangeLimitMs) * time.Millisecond}
	if g.world == 1 {
		return g, offer, nil
	}
	g.cancel = context.AfterFunc(ctx, g.closeAll)
	addr := net.JoinHostPort(env.MasterAddr, strconv.Itoa(env.MasterPort))
	until := time.Now().Add(time.Duration(cfg.JoinLimitMs) * time.Millisecond)
	me := joinHello{Job: env.Job, Generation: env.Generation, Rank: env.Rank, World: env.WorldSize, Curve: cfg.curve()}
	var err error
	if g.rank == 0 {
		err = g.gather(addr, until, me, offer)
	} else {
		offer, err = g.enter(ctx, addr, until, me)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		g.close()
		return nil, offer, err
	}
	return g, offer, nil
}

// gather is rank 0: it admits exactly the other ranks of this generation. Those
// of another one are told so and sent away, however many come.
func (g *ring) gather(addr string, until time.Time, me joinHello, offer start) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("%w: rank 0 cannot listen on MASTER_ADDR:MASTER_PORT: %s", ErrJoin, err.Error())
	}
	defer ln.Close()
	if !g.own(ln) {
		return ErrJoin
	}
	ln.(*net.TCPListener).SetDeadline(until)
	byRank := make([]*peer, g.world)
	for missing := g.world - 1; missing > 0; {
		c, err := ln.Accept()
		if err != nil {
			return fmt.Errorf("%w: %d of %d ranks missing: %s", ErrJoin, missing, g.world, err.Error())
		}
		p, err := admit(c, me, byRank)
		if err != nil {
			c.SetWriteDeadline(time.Now().Add(joinHelloMs * time.Millisecond))
			json.NewEncoder(c).Encode(welcome{Err: err.Error()})
			c.Close()
			continue
		}
		if !g.own(c) {
			return ErrJoin
		}
		byRank[p.rank] = p
		missing--
	}
	for _, p := range byRank[1:] {
		p.c.SetDeadline(until)
		if err := json.NewEncoder(p.c).Encode(welcome{Start: offer}); err != nil {
			return fmt.Errorf("%w: rank %d: %s", ErrJoin, p.rank, err.Error())
		}
		g.peers = append(g.peers, p)
	}
	return nil
}

func admit(c net.Conn, me joinHello, byRank []*peer) (*peer, error) {
	c.SetReadDeadline(time.Now().Add(joinHelloMs * time.Millisecond))
	r := bufio.NewReaderSize(c, 64<<10)
	line, err := readLine(r)
	var h joinHello
	if err == nil {
		err = json.Unmarshal(line, &h)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("not a rank: %w", err)
	case h.Job != me.Job || h.Generation != me.Generation || h.World != me.World:
		return nil, fmt.Errorf("this is job %q generation %d of %d ranks, not %q %d of %d", me.Job, me.Generation, me.World, h.Job, h.Generation, h.World)
	case h.Curve != me.Curve:
		return nil, fmt.Errorf("rank %d trains %s, this gang %s", h.Rank, h.Curve, me.Curve)
	case h.Rank < 1 || h.Rank >= me.World || byRank[h.Rank] != nil:
		return nil, fmt.Errorf("rank %d is not awaited", h.Rank)
	}
	return &peer{rank: h.Rank, c: c, r: r}, nil
}

// enter is every other rank: it tries until rank 0 is there and all have come.
func (g *ring) enter(ctx context.Context, addr string, until time.Time, me joinHello) (start, error) {
	var w welcome
	dialer := net.Dialer{Deadline: until}
	for {
		c, err := dialer.DialContext(ctx, "tcp", addr)
		if err == nil {
			return g.greet(c, until, me)
		}
		if time.Until(until) < joinRetryMs*time.Millisecond {
			return w.Start, fmt.Errorf("%w: rank 0 does not answer at %s: %s", ErrJoin, addr, err.Error())
		}
		if err := pause(ctx, joinRetryMs*time.Millisecond); err != nil {
			return w.Start, err
		}
	}
}

func (g *ring) greet(c net.Conn, until time.Time, me joinHello) (start, error) {
	var w welcome
	if !g.own(c) {
		return w.Start, ErrJoin
	}
	c.SetDeadline(until)
	err := json.NewEncoder(c).Encode(me)
	r := bufio.NewReaderSize(c, 64<<10)
	if err == nil {
		var line []byte
		if line, err = readLine(r); err == nil {
			err = json.Unmarshal(line, &w)
		}
	}
	if err == nil && w.Err != "" {
		err = errors.New("refused: " + w.Err)
	}
	if err != nil {
		return w.Start, fmt.Errorf("%w: %s", ErrJoin, err.Error())
	}
	g.peers = []*peer{{rank: 0, c: c, r: r}}
	return w.Start, nil
}

func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err == nil && len(line) > maxJoinBytes {
		err = errors.New("line too long")
	}
	return line, err
}
