package quota

import (
	"math"

	"sluice/nodes/registry"
)

// Limits bound what a key or a tenant may use. 0 means no limit.
type Limits = registry.Limits

const (
	// maxAccounts bounds the keys and tenants of one Ledger that are kept. Beyond it those that owe nothing are
	// forgotten; when all owe something, further ones are refused with Full.
	maxAccounts = 1 << 16
	// firstOutput is what a choice is taken to have until a key's first answer has ended, tokens.
	firstOutput = 256
	// maxTokens bounds what one request can be charged, so that sums do not overflow.
	maxTokens = 1 << 32
)

// Ledger keeps the accounts of keys and tenants, and the tally of what was used. Make it with New. Not safe for
// concurrent use.
type Ledger struct {
	keys    map[string]*account
	tenants map[string]*account
	tally   map[row]*count
	facts   *Spent
	running int
	held    int64 // tokens, in accounts
	today   date  // as of the last request, since the calendar costs more than a comparison
}

// New returns a ledger without accounts.
func New() *Ledger {
	return &Ledger{keys: map[string]*account{}, tenants: map[string]*account{}, tally: map[row]*count{}, facts: &Spent{}}
}

// Ask is a request at the gate.
type Ask struct {
	Key, Tenant             string
	KeyLimits, TenantLimits Limits
	// PromptTokens is an estimate of the prompt. MaxTokens is what may be written at most, for each of Choices (0
	// reads as 1); 0 when the request does not say. Writes is false for requests whose answer has no tokens.
	PromptTokens, MaxTokens, Choices int
	Writes                           bool
}

// Hold is a request under way. The zero value holds nothing. It belongs to one Ledger.
type Hold struct {
	keyID, tenantID string
	key, tenant     *account // nil: without limits
	tokens          int64
	choices         int64
	startMs         int64
	held            bool
}

// Held reports that the hold has been reserved and not settled.
func (h *Hold) Held() bool { return h.held }

// Use is what a request has used.
type Use struct {
	Model         string
	Input, Output int64 // tokens
	// Estimated: the engine did not tell.
	Estimated bool
}

// Reserve charges a request to its key and tenant, and fills in h, or refuses it and charges nothing.
func (l *Ledger) Reserve(h *Hold, ask *Ask, nowMs int64) Refusal {
	d := l.date(nowMs)
	var key, tenant *account
	if ask.KeyLimits != (Limits{}) {
		if key = l.account(ask.Key, false, nowMs); key == nil {
			return Refusal{Cause: Full, WaitMs: roundMs}
		}
		l.begin(key, &ask.KeyLimits, nowMs)
	}
	if ask.TenantLimits != (Limits{}) {
		if tenant = l.account(ask.Tenant, true, nowMs); tenant == nil {
			return Refusal{Cause: Full, WaitMs: roundMs}
		}
		l.begin(tenant, &ask.TenantLimits, nowMs)
	}
	n := estimate(ask, key, tenant)
	if no := refusal(key, tenant, n, d, nowMs); no.Cause != None {
		return no
	}
	for _, a := range [...]*account{key, tenant} {
		if a != nil {
			a.charge(n, nowMs)
			l.held += n
		}
	}
	l.running++
	*h = Hold{keyID: ask.Key, tenantID: ask.Tenant, key: key, tenant: tenant, tokens: n, choices: int64(max(1, ask.Choices)), startMs: nowMs, held: true}
	return Refusal{}
}

// refusal asks both accounts; the one that refuses for longest tells why.
func refusal(key, tenant *account, n int64, d *date, nowMs int64) Refusal {
	var no Refusal
	if key != nil {
		key.fits(&no, n, d, nowMs)
	}
	if tenant != nil {
		tenant.fits(&no, n, d, nowMs)
	}
	if no.Cause == None || no.Hopeless {
		return no
	}
	if no.Cause != DayTokens && no.Cause != MonthTokens { // midnight is for all at once
		wait := no.WaitMs
		for _, a := range [...]*account{key, tenant} {
			if a != nil {
				no.WaitMs = max(no.WaitMs, a.promise(n, wait, nowMs))
			}
		}
	}
	no.round()
	return no
}

// estimate is what a request may use. Without max_tokens it is a guess, which does not make a request too large: the
// guess then is what the limits have left at most.
func estimate(ask *Ask, key, tenant *account) int64 {
	prompt, choices := int64(max(0, ask.PromptTokens)), int64(max(1, ask.Choices))
	prompt = min(prompt, maxTokens)
	switch {
	case !ask.Writes:
		return prompt
	case ask.MaxTokens > 0:
		return min(prompt+min(int64(ask.MaxTokens), maxTokens)*min(choices, maxTokens), maxTokens)
	}
	guess, most := float64(firstOutput), int64(maxTokens)
	for _, a := range [...]*account{tenant, key} { // the key knows better
		if a == nil {
			continue
		}
		if a.output > 0 {
			guess = a.output
		}
		for _, limit := range [...]int64{int64(a.limits.TokensPerMin), a.limits.TokensPerDay, a.limits.TokensPerMonth} {
			if limit > 0 {
				most = min(most, limit)
			}
		}
	}
	return min(prompt+int64(math.Ceil(guess))*min(choices, maxTokens), max(most, prompt))
}

// Settle ends a hold with what the request used: nothing when it failed.
func (l *Ledger) Settle(h *Hold, u Use, nowMs int64) {
	if !h.held {
		panic("quota: what is not held was settled")
	}
	d := l.date(nowMs)
	u.Input, u.Output = min(max(u.Input, 0), maxTokens), min(max(u.Output, 0), maxTokens)
	perChoice := float64(u.Output) / float64(h.choices)
	for _, a := range [...]*account{h.key, h.tenant} {
		if a != nil {
			a.settle(h, u.Input+u.Output, perChoice, d, nowMs)
			l.held -= h.tokens
		}
	}
	l.running--
	l.count(row{d.day, h.tenantID, h.keyID, u.Model}, &u)
	*h = Hold{}
}

// account finds or makes an account; nil when there are too many.
func (l *Ledger) account(id string, ofTenant bool, nowMs int64) *account {
	all := l.keys
	if ofTenant {
		all = l.tenants
	}
	a := all[id]
	if a != nil {
		return a
	}
	if len(all) >= maxAccounts && !forget(all, nowMs) {
		return nil
	}
	a = &account{id: id, ofTenant: ofTenant}
	all[id] = a
	return a
}

// forget drops the accounts that owe nothing and reports whether there were any.
func forget(all map[string]*account, nowMs int64) bool {
	before := len(all)
	for id, a := range all {
		if a.idle(nowMs) {
			delete(all, id)
		}
	}
	return len(all) < before
}

// Running is the number of holds that are not settled.
func (l *Ledger) Running() int { return l.running }

// HeldTokens is the sum of what running requests have reserved of the limits of keys and of tenants.
func (l *Ledger) HeldTokens() int64 { return l.held }

// date is the date of nowMs, remembered for the day.
func (l *Ledger) date(nowMs int64) *date {
	if day := int32(nowMs / dayMs); day != l.today.day {
		l.today = dateOfDay(day)
	}
	return &l.today
}
