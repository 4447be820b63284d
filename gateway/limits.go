package gateway

import (
	"hash/maphash"
	"sync"

	"github.com/valyala/fasthttp"

	"sluice/gateway/quota"
	"sluice/nodes/registry"
	"sluice/slo"
)

// numLedgers is over how many ledgers tenants are spread, each under a lock of its own. Keys lie with their tenant, so
// one lock holds all that a request is charged to.
const numLedgers = 16

// ledgers are what keys and tenants have used of their limits. Safe for concurrent use.
type ledgers struct {
	seed maphash.Seed
	all  [numLedgers]ledger
}

type ledger struct {
	mu sync.Mutex
	l  *quota.Ledger // guarded by mu
	_  [40]byte      // so that two locks do not share a cache line
}

func (ls *ledgers) open() {
	ls.seed = maphash.MakeSeed()
	for i := range ls.all {
		ls.all[i].l = quota.New()
	}
}

func (ls *ledgers) of(tenant string) *ledger {
	return &ls.all[maphash.String(ls.seed, tenant)%numLedgers]
}

// held sums the requests that run and the tokens that they have reserved.
func (ls *ledgers) held() (requests int, tokens int64) {
	for i := range ls.all {
		x := &ls.all[i]
		x.mu.Lock()
		requests += x.l.Running()
		tokens += x.l.HeldTokens()
		x.mu.Unlock()
	}
	return requests, tokens
}

// TakeUsage appends what was used since the last call to rows, and forgets it: the caller hands it on exactly once.
func (s *Server) TakeUsage(rows []registry.UsageRow) []registry.UsageRow {
	for i := range s.ledgers.all {
		x := &s.ledgers.all[i]
		x.mu.Lock()
		rows = x.l.Take(rows)
		x.mu.Unlock()
	}
	return rows
}

// SyncUsage tells what the facts hold of tokens used, for budgets. All that was taken must be in it. It is shared and
// must not be changed afterwards.
func (s *Server) SyncUsage(facts *quota.Spent) {
	nowMs := s.deps.NowMs()
	for i := range s.ledgers.all {
		x := &s.ledgers.all[i]
		x.mu.Lock()
		x.l.Sync(facts, nowMs)
		x.mu.Unlock()
	}
}

// askFor is the request as its limits see it.
func (k *call) askFor() quota.Ask {
	ask := quota.Ask{Key: k.key.ID, Tenant: k.key.Tenant, KeyLimits: k.key.Limits, TenantLimits: k.key.TenantLimits}
	switch {
	case k.kept.method != "": // it may cancel what uses the budget up
	case k.endpoint.free:
		ask.PromptTokens = 1 // given back; but nothing is done on a budget that is used up
	default:
		ask.PromptTokens, ask.MaxTokens, ask.Choices, ask.Writes = k.ask.PromptTokens, k.ask.MaxTokens, k.head.N, k.endpoint.streams
	}
	return ask
}

// charge takes the request's share of the limits of its key and tenant, or refuses it.
func (k *call) charge() bool {
	k.ask.PromptTokens = (k.head.Prompt.Len() + bytesPerToken - 1) / bytesPerToken
	k.ask.MaxTokens = k.head.MaxTokens
	ask := k.askFor()
	x := k.srv.ledgers.of(ask.Tenant)
	x.mu.Lock()
	no := x.l.Reserve(&k.hold, &ask, k.srv.deps.NowMs())
	x.mu.Unlock()
	switch {
	case no.Cause == quota.None:
		return true
	case no.Hopeless:
		// Not 429: clients would try again, and no wait helps.
		k.outcome = slo.RefusedLimit
		k.refuseParam(fasthttp.StatusBadRequest, no.Code(), no.Message(), "max_tokens", 0)
	default:
		k.refuse(fasthttp.StatusTooManyRequests, slo.RefusedLimit, no.Code(), no.Message(), no.WaitMs)
	}
	return false
}

// bill ends what charge has reserved with what was used: what the engine told, else what was streamed. An answer that
// did not stream and did not come whole is not billed.
func (k *call) bill() {
	if !k.hold.Held() {
		return
	}
	use := quota.Use{Model: k.model.Name}
	if k.outcome == slo.OK || k.head.Stream {
		input, output := k.at.tokens()
		use.Input, use.Output, use.Estimated = int64(input), int64(output), !k.at.usageKnown()
		if use.Estimated && !k.head.Stream && k.endpoint.streams {
			use.Output = k.told.sent / bytesPerToken // what was written can only be guessed from its length
		}
	}
	x := k.srv.ledgers.of(k.key.Tenant)
	x.mu.Lock()
	x.l.Settle(&k.hold, use, k.srv.deps.NowMs())
	x.mu.Unlock()
}

// usageKnown reports that the engine told what it used.
func (a *attempt) usageKnown() bool {
	return a.call.endpoint.free || a.stream.Usage.Known || a.usage.Usage().Known
}

// standing is how the limits of key and tenant stand now; nothing without limits.
func (k *call) standing() quota.Standing {
	if k.key.Limits == (Limits{}) && k.key.TenantLimits == (Limits{}) {
		return quota.Standing{}
	}
	x := k.srv.ledgers.of(k.key.Tenant)
	nowMs := k.srv.deps.NowMs()
	x.mu.Lock()
	defer x.mu.Unlock()
	if k.hold.Held() {
		return x.l.Standing(&k.hold, nowMs)
	}
	ask := k.askFor()
	return x.l.StandingOf(&ask, nowMs)
}

// appendLimits appends the x-ratelimit headers of an answer.
func (k *call) appendLimits(b []byte) []byte {
	s := k.standing()
	return s.Append(b)
}

// tellLimits sets the same headers on an answer of our own.
func (k *call) tellLimits(h *fasthttp.ResponseHeader) {
	s := k.standing()
	var room [24]byte
	for i := range quota.NumHeaders {
		if name, value := s.Header(i, room[:0]); name != "" {
			h.SetBytesV(name, value)
		}
	}
}
