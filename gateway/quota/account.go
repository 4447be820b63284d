package quota

import "time"

// account is what one key or one tenant has used of its limits.
type account struct {
	id       string
	ofTenant bool
	limits   Limits // as they came with the last request
	requests bucket
	tokens   bucket

	running    int
	startedMs  int64 // the sum of the times at which the running ones began
	promisedMs int64 // the last time told to somebody refused for running
	durationMs float64
	output     float64 // tokens that a choice usually has; 0: nothing is known yet

	held     int64 // tokens reserved by the running ones
	spent    spent
	budgeted bool // spent is kept, since there is or was a budget
}

// spent is what was used of the budgets.
type spent struct {
	day, month             int32
	dayTokens, monthTokens int64
}

// turn begins a new day and month with nothing spent.
func (s *spent) turn(today *date) {
	if s.day != today.day {
		s.day, s.dayTokens = today.day, 0
	}
	if s.month != today.month {
		s.month, s.monthTokens = today.month, 0
	}
}

// add books what was used on another day, as far as it counts today. s has been turned to today.
func (s *spent) add(on *date, dayTokens, monthTokens int64) {
	if on.day == s.day {
		s.dayTokens += dayTokens
	}
	if on.month == s.month {
		s.monthTokens += monthTokens
	}
}

// date is a day of the UTC calendar.
type date struct {
	day, month           int32 // days since 1970, months since year 0
	dayEndMs, monthEndMs int64
}

const dayMs = 24 * 3600 * 1000

func dateOfDay(day int32) date {
	y, m, _ := dayStart(day).Date()
	end := time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC)
	return date{day, int32(y*12 + int(m) - 1), (int64(day) + 1) * dayMs, end.UnixMilli()}
}

func dayStart(day int32) time.Time { return time.UnixMilli(int64(day) * dayMs).UTC() }

// begin makes an account ready for a look at nowMs under limits that may be new.
func (l *Ledger) begin(a *account, limits *Limits, nowMs int64) {
	a.drain(nowMs) // under the old limits until now
	a.limits = *limits
	if limits.TokensPerDay > 0 || limits.TokensPerMonth > 0 {
		if !a.budgeted {
			a.budgeted = true
			l.fillIn(a, nowMs)
		}
		a.spent.turn(l.date(nowMs))
	}
}

func (a *account) drain(nowMs int64) {
	a.requests.drain(int64(a.limits.RequestsPerMin), nowMs)
	a.tokens.drain(int64(a.limits.TokensPerMin), nowMs)
}

// fits finds what refuses a request that may use n tokens. The account has begun.
func (a *account) fits(no *Refusal, n int64, d *date, nowMs int64) {
	l := &a.limits
	for _, x := range [...]struct {
		limit int64
		cause Cause
	}{{int64(l.TokensPerMin), Tokens}, {l.TokensPerDay, DayTokens}, {l.TokensPerMonth, MonthTokens}} {
		if x.limit > 0 && n > x.limit {
			no.hopeless(x.cause, a.ofTenant, x.limit, n)
		}
	}
	if no.Hopeless {
		return
	}
	if w := a.requests.waitMs(int64(l.RequestsPerMin), 1); w > 0 {
		no.longer(Requests, a.ofTenant, int64(l.RequestsPerMin), 1, w)
	}
	if w := a.tokens.waitMs(int64(l.TokensPerMin), n); w > 0 {
		no.longer(Tokens, a.ofTenant, int64(l.TokensPerMin), n, w)
	}
	if l.Concurrent > 0 && a.running >= l.Concurrent {
		no.longer(Concurrent, a.ofTenant, int64(l.Concurrent), 1, a.freeMs(nowMs))
	}
	if l.TokensPerDay > 0 && a.spent.dayTokens+a.held+n > l.TokensPerDay {
		no.longer(DayTokens, a.ofTenant, l.TokensPerDay, n, d.dayEndMs-nowMs)
	}
	if l.TokensPerMonth > 0 && a.spent.monthTokens+a.held+n > l.TokensPerMonth {
		no.longer(MonthTokens, a.ofTenant, l.TokensPerMonth, n, d.monthEndMs-nowMs)
	}
}

// freeMs is when one of the running requests is expected to end: what they usually take, less what they have taken on
// average. The oldest has taken at least that.
func (a *account) freeMs(nowMs int64) int64 {
	age := nowMs - a.startedMs/int64(max(1, a.running))
	over := int64(a.durationMs) * int64(a.running-a.limits.Concurrent) / int64(a.limits.Concurrent) // the limit was lowered
	return max(roundMs, int64(a.durationMs)-age+over)
}

// promise lines a refused request up behind those that were refused before it, in each limit that refuses it.
func (a *account) promise(n, waitMs, nowMs int64) int64 {
	l := &a.limits
	out := waitMs
	if w := a.requests.waitMs(int64(l.RequestsPerMin), 1); w > 0 {
		out = max(out, a.requests.promise(int64(l.RequestsPerMin), 1, w, nowMs))
	}
	if w := a.tokens.waitMs(int64(l.TokensPerMin), n); w > 0 {
		out = max(out, a.tokens.promise(int64(l.TokensPerMin), n, w, nowMs))
	}
	if l.Concurrent > 0 && a.running >= l.Concurrent {
		out = max(out, queued(&a.promisedMs, a.freeMs(nowMs), int64(a.durationMs)/int64(l.Concurrent)+1, nowMs))
	}
	return out
}

// charge takes a request that fits.
func (a *account) charge(n, nowMs int64) {
	a.requests.add(int64(a.limits.RequestsPerMin), 1)
	a.tokens.add(int64(a.limits.TokensPerMin), n)
	a.held += n
	a.running++
	a.startedMs += nowMs
}

// learnt is the weight of a request among those before it: the last few dozen count.
const learnt = 1.0 / 16

// settle ends a request that was charged n tokens and used others.
func (a *account) settle(h *Hold, used int64, perChoice float64, d *date, nowMs int64) {
	a.running--
	a.startedMs -= h.startMs
	a.held -= h.tokens
	if a.running < 0 || a.held < 0 {
		panic("quota: a hold was settled twice")
	}
	a.tokens.drain(int64(a.limits.TokensPerMin), nowMs)
	a.tokens.add(int64(a.limits.TokensPerMin), used-h.tokens)
	a.spent.turn(d)
	a.spent.add(d, used, used)
	learn(&a.durationMs, float64(max(1, nowMs-h.startMs)))
	if perChoice > 0 {
		learn(&a.output, perChoice)
	}
}

func learn(mean *float64, x float64) {
	if *mean == 0 {
		*mean = x
		return
	}
	*mean += (x - *mean) * learnt
}

// idle reports that nothing would be lost by forgetting the account: what it spent is in the facts and the tally.
func (a *account) idle(nowMs int64) bool {
	a.drain(nowMs)
	return a.running == 0 && a.requests.used == 0 && a.tokens.used == 0
}
