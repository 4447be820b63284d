package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"sluice/gateway/quota"
	"sluice/nodes"
	"sluice/nodes/registry"
)

// usagePostMs is how often what was used becomes fact. It is the most that a server that is killed forgets, beside the
// requests that were still running.
const usagePostMs = 3000

// usagePoster hands what the gateway counted on to the facts, each row exactly once. One goroutine owns it.
type usagePoster struct {
	take   func([]registry.UsageRow) []registry.UsageRow
	submit func(context.Context, registry.Command) ([]registry.Event, error)
	read   func(func(*registry.State, *nodes.Fleet, int64))
	sync   func(*quota.Spent)
	log    *slog.Logger

	author string // of command ids, of this process alone
	seq    int
	// pending are rows that were taken and are not known to be facts; a command repeats its id until it is answered.
	// Nothing more is taken meanwhile: the gateway's own tally is bounded.
	pending []registry.UsageRow
}

func newUsagePoster(s *server) *usagePoster {
	return &usagePoster{take: s.data.TakeUsage, submit: s.ctl.Submit, read: s.ctl.Read, sync: s.data.SyncUsage, log: s.opts.Log, author: usageAuthor()}
}

func usageAuthor() string {
	var b [8]byte
	rand.Read(b[:]) // never fails: it ends the program instead
	return "usage-" + hex.EncodeToString(b[:])
}

// run posts now and then until stop is closed, and a last time then.
func (p *usagePoster) run(stop <-chan struct{}) error {
	tick := time.NewTicker(usagePostMs * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.post(context.Background())
		case <-stop:
			p.post(context.Background())
			return nil
		}
	}
}

// post makes facts of what was used, then tells the gateway what the facts say.
func (p *usagePoster) post(ctx context.Context) {
	if len(p.pending) == 0 {
		p.pending = p.take(p.pending[:0])
	}
	for len(p.pending) > 0 { // ends: each turn takes a batch away or returns
		batch := p.pending[:min(len(p.pending), registry.MaxUsageBatch)]
		_, err := p.submit(ctx, registry.Command{ID: fmt.Sprintf("%s-%d", p.author, p.seq), Author: "gateway", AddUsage: &registry.AddUsage{Rows: batch}})
		switch {
		case errors.Is(err, registry.ErrConflict):
			p.log.Error("what was used is refused by the books, and lost", "rows", len(batch), "error", err)
		case err != nil:
			p.log.Warn("what was used cannot be booked now; trying again", "rows", len(p.pending), "error", err)
			return
		}
		p.seq++
		p.pending = p.pending[len(batch):]
	}
	p.tell()
}

// tell gives the gateway the facts that budgets are counted from.
func (p *usagePoster) tell() {
	spent := &quota.Spent{Keys: map[string]quota.Used{}, Tenants: map[string]quota.Used{}}
	p.read(func(st *registry.State, _ *nodes.Fleet, nowMs int64) {
		spent.AtMs = nowMs
		keys, tenants := st.Usage.Months[registry.UsageMonth(nowMs)].Tokens()
		keysToday, tenantsToday := st.Usage.Days[registry.UsageDay(nowMs)].Tokens()
		for id, n := range keys {
			spent.Keys[id] = quota.Used{DayTokens: keysToday[id], MonthTokens: n}
		}
		for id, n := range tenants {
			spent.Tenants[id] = quota.Used{DayTokens: tenantsToday[id], MonthTokens: n}
		}
	})
	p.sync(spent)
}
