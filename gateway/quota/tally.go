package quota

import (
	"time"

	"sluice/nodes/registry"
)

// maxRows bounds the rows of one Ledger's tally that are not handed over yet. Beyond it what is used is counted in one
// row a tenant and day, under registry.UsageOther: the tenant's sums stay right.
const maxRows = 1 << 14

// row says who used what: the key of the tally.
type row struct {
	day                int32
	tenant, key, model string
}

// count is what was used.
type count struct {
	requests, input, output, estimated int64
}

// count adds a request to the tally.
func (l *Ledger) count(r row, u *Use) {
	c := l.tally[r]
	if c == nil {
		if len(l.tally) >= maxRows {
			r.key, r.model = registry.UsageOther, registry.UsageOther
			c = l.tally[r]
		}
		if c == nil {
			c = &count{}
			l.tally[r] = c
		}
	}
	c.requests++
	c.input += u.Input
	c.output += u.Output
	if u.Estimated {
		c.estimated += u.Input + u.Output
	}
}

// Take appends what was used since the last Take to rows and forgets it. The caller hands it on exactly once.
func (l *Ledger) Take(rows []registry.UsageRow) []registry.UsageRow {
	for r, c := range l.tally {
		if *c == (count{}) {
			delete(l.tally, r) // nothing for a whole interval
			continue
		}
		rows = append(rows, registry.UsageRow{Period: dayStart(r.day).Format(time.DateOnly), Tenant: r.tenant, Key: r.key, Model: r.model,
			UsageCount: registry.UsageCount{Requests: c.requests, InputTokens: c.input, OutputTokens: c.output, EstimatedTokens: c.estimated}})
		*c = count{}
	}
	return rows
}

// Spent is what the facts hold of tokens used, for budgets. The zero value is nothing. It is not changed once given to
// a Ledger, so that several may share it.
type Spent struct {
	AtMs          int64 // fleet time of the reading
	Keys, Tenants map[string]Used
}

// Used is tokens of the day and of the month of a reading.
type Used struct{ DayTokens, MonthTokens int64 }

// Sync takes a new reading of the facts. All that was taken must be in it.
func (l *Ledger) Sync(facts *Spent, nowMs int64) {
	l.facts = facts
	today := l.date(nowMs)
	for _, all := range [...]map[string]*account{l.keys, l.tenants} {
		for _, a := range all {
			a.restore(facts, today)
		}
	}
	for r, c := range l.tally {
		on, n := dateOfDay(r.day), c.input+c.output
		if a := l.keys[r.key]; a != nil {
			a.spent.add(&on, n, n)
		}
		if a := l.tenants[r.tenant]; a != nil {
			a.spent.add(&on, n, n)
		}
	}
}

// restore sets what was spent to what the facts say.
func (a *account) restore(facts *Spent, today *date) {
	u := facts.Keys[a.id]
	if a.ofTenant {
		u = facts.Tenants[a.id]
	}
	a.spent = spent{}
	a.spent.turn(today)
	on := dateOfDay(int32(facts.AtMs / dayMs))
	a.spent.add(&on, u.DayTokens, u.MonthTokens)
}

// fillIn tells an account that gets a budget what its key or tenant has spent before.
func (l *Ledger) fillIn(a *account, nowMs int64) {
	a.restore(l.facts, l.date(nowMs))
	for r, c := range l.tally {
		if !a.ofTenant && r.key == a.id || a.ofTenant && r.tenant == a.id {
			on := dateOfDay(r.day)
			a.spent.add(&on, c.input+c.output, c.input+c.output)
		}
	}
}
