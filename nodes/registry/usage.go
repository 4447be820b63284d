package registry

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Limits of the books of usage.
const (
	// MaxUsageBatch is how many rows one command may carry.
	MaxUsageBatch = 4096
	// maxUsageRows bounds the rows of one day or month. Beyond it, what is used by a key and model that have no row yet
	// is added to one row a tenant, under UsageOther: the tenant's sums stay exact.
	maxUsageRows = 1 << 14
	// UsageDays and UsageMonths are how many of each are kept, the present one counted in; older ones are dropped.
	UsageDays   = 8
	UsageMonths = 13
)

// UsageOther stands for the keys and models of a tenant that have no row of their own.
const UsageOther = "other"

// UsageCount is what was used. Tokens of failed tries are not in it; those of a stream that its client left are, as far
// as they were streamed.
type UsageCount struct {
	Requests     int64 `json:"requests"`
	InputTokens  int64 `json:"inputTokens"`
	OutputTokens int64 `json:"outputTokens"`
	// EstimatedTokens are the part of both that the gateway counted itself, since the engine did not tell.
	EstimatedTokens int64 `json:"estimatedTokens,omitempty"`
}

// Tokens is input and output together, which is what budgets count.
func (c *UsageCount) Tokens() int64 { return c.InputTokens + c.OutputTokens }

func (c *UsageCount) add(x *UsageCount) {
	c.Requests += x.Requests
	c.InputTokens += x.InputTokens
	c.OutputTokens += x.OutputTokens
	c.EstimatedTokens += x.EstimatedTokens
}

// UsageRow is what one key used of one model on a day or in a month.
type UsageRow struct {
	Period string `json:"period"` // a day of UTC, 2026-11-30; in the listing of a month 2026-11
	Tenant string `json:"tenant"`
	Key    string `json:"key"` // empty: requests without a key
	Model  string `json:"model"`
	UsageCount
}

// UsageTable is one day or month: by tenant, key and model.
type UsageTable map[string]map[string]map[string]*UsageCount

// Usage is the books of requests and tokens. The zero value is empty.
type Usage struct {
	Days   map[string]UsageTable `json:"days,omitempty"`   // by 2026-11-30
	Months map[string]UsageTable `json:"months,omitempty"` // by 2026-11
	// Counts are the rows of each day and month.
	Counts map[string]int `json:"counts,omitempty"`
}

// UsageDay and UsageMonth name the day and the month of a fleet time.
func UsageDay(atMs int64) string { return time.UnixMilli(atMs).UTC().Format(time.DateOnly) }

// UsageMonth is the month of a fleet time, as the books name it.
func UsageMonth(atMs int64) string { return UsageDay(atMs)[:7] }

// add books rows, all or none, and drops what is too old at atMs. Rows of days that are not kept any more still count
// for their month.
func (u *Usage) add(rows []UsageRow, atMs int64) error {
	if len(rows) > MaxUsageBatch {
		return fmt.Errorf("%d rows of usage in one command, at most %d: %w", len(rows), MaxUsageBatch, ErrConflict)
	}
	for i := range rows {
		r := &rows[i]
		if _, err := time.Parse(time.DateOnly, r.Period); err != nil {
			return fmt.Errorf("row %d of usage has no day: %w", i, ErrConflict)
		}
		if r.Requests < 0 || r.InputTokens < 0 || r.OutputTokens < 0 || r.EstimatedTokens < 0 {
			return fmt.Errorf("row %d of usage is negative: %w", i, ErrConflict)
		}
	}
	if u.Days == nil {
		u.Days, u.Months, u.Counts = map[string]UsageTable{}, map[string]UsageTable{}, map[string]int{}
	}
	for i := range rows {
		u.book(u.Days, rows[i].Period, &rows[i])
		u.book(u.Months, rows[i].Period[:7], &rows[i])
	}
	today := time.UnixMilli(atMs).UTC()
	first := time.Date(today.Year(), today.Month()-UsageMonths+1, 1, 0, 0, 0, 0, time.UTC)
	u.drop(u.Days, today.AddDate(0, 0, -UsageDays+1).Format(time.DateOnly))
	u.drop(u.Months, first.Format(time.DateOnly)[:7])
	return nil
}

func (u *Usage) book(all map[string]UsageTable, period string, r *UsageRow) {
	t := all[period]
	if t == nil {
		t = UsageTable{}
		all[period] = t
	}
	tenant, key, model := r.Tenant, r.Key, r.Model
	if u.Counts[period] >= maxUsageRows && t[tenant][key][model] == nil {
		key, model = UsageOther, UsageOther
	}
	if t[tenant] == nil {
		t[tenant] = map[string]map[string]*UsageCount{}
	}
	if t[tenant][key] == nil {
		t[tenant][key] = map[string]*UsageCount{}
	}
	c := t[tenant][key][model]
	if c == nil {
		c = &UsageCount{}
		t[tenant][key][model] = c
		u.Counts[period]++
	}
	c.add(&r.UsageCount)
}

// drop forgets the periods before first.
func (u *Usage) drop(all map[string]UsageTable, first string) {
	for period := range all {
		if period < first {
			delete(all, period)
			delete(u.Counts, period)
		}
	}
}

// Rows lists a table in the order of tenants, keys and models. tenant chooses one; empty means all.
func (t UsageTable) Rows(period, tenant string) []UsageRow {
	out := []UsageRow{}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if tenant != "" && name != tenant {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(t[name])) {
			for _, model := range slices.Sorted(maps.Keys(t[name][key])) {
				out = append(out, UsageRow{Period: period, Tenant: name, Key: key, Model: model, UsageCount: *t[name][key][model]})
			}
		}
	}
	return out
}

// Tokens sums a table by key and by tenant.
func (t UsageTable) Tokens() (byKey, byTenant map[string]int64) {
	byKey, byTenant = map[string]int64{}, map[string]int64{}
	for tenant, keys := range t {
		for key, models := range keys {
			for _, c := range models {
				byKey[key] += c.Tokens()
				byTenant[tenant] += c.Tokens()
			}
		}
	}
	return byKey, byTenant
}
