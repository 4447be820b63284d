package quota

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice/nodes/registry"
)

func (l *Ledger) mustReserve(t *testing.T, ask *Ask, now int64) *Hold {
	t.Helper()
	h := &Hold{}
	if no := l.Reserve(h, ask, now); no.Cause != None {
		t.Fatalf("%+v", no)
	}
	return h
}

func (l *Ledger) mustRefuse(t *testing.T, ask *Ask, now int64, want Refusal) {
	t.Helper()
	var h Hold
	if no := l.Reserve(&h, ask, now); no != want || h.Held() {
		t.Fatalf("%+v, want %+v", no, want)
	}
}

func TestAllOrNothing(t *testing.T) {
	l := New()
	ask := &Ask{Key: "k", Tenant: "t", KeyLimits: Limits{RequestsPerMin: 2, TokensPerMin: 1000}, TenantLimits: Limits{Concurrent: 1}, Writes: true, MaxTokens: 100}
	h := l.mustReserve(t, ask, start)
	before := l.StandingOf(ask, start)
	l.mustRefuse(t, ask, start, Refusal{Cause: Concurrent, OfTenant: true, Limit: 1, Asked: 1, WaitMs: 1000})
	if after := l.StandingOf(ask, start); after != before {
		t.Fatalf("a refused request paid: %+v, %+v", before, after)
	}
	l.Settle(h, Use{Model: "m", Output: 40}, start)
	l.Settle(l.mustReserve(t, ask, start), Use{Model: "m", Output: 40}, start)
	l.mustRefuse(t, ask, start, Refusal{Cause: Requests, Limit: 2, Asked: 1, WaitMs: 30_000})
	if s := l.StandingOf(ask, start); s.Tokens.Remaining != 920 || s.Requests.Remaining != 0 || s.Requests.ResetMs != 60_000 || s.Concurrent.Remaining != 1 {
		t.Fatalf("%+v", s)
	}
}

func TestEstimates(t *testing.T) {
	for _, c := range []struct {
		ask  Ask
		want int64
	}{
		{Ask{PromptTokens: 10, Writes: true, MaxTokens: 5, Choices: 3}, 25},
		{Ask{PromptTokens: 10, Writes: true, MaxTokens: 5}, 15},
		{Ask{PromptTokens: 10, Writes: true}, 10 + firstOutput},
		{Ask{PromptTokens: 10, MaxTokens: 99}, 10},
		{Ask{PromptTokens: 10, Writes: true, KeyLimits: Limits{TokensPerMin: 100}}, 100},
		{Ask{PromptTokens: 1 << 62, Writes: true, MaxTokens: 1 << 62, Choices: 1 << 62}, maxTokens},
	} {
		key := &account{limits: c.ask.KeyLimits}
		if n := estimate(&c.ask, key, nil); n != c.want {
			t.Errorf("%+v: %d, want %d", c.ask, n, c.want)
		}
	}
	// The key's own requests teach what to expect.
	l := New()
	ask := &Ask{Key: "k", Tenant: "t", KeyLimits: Limits{TokensPerMin: 1 << 20}, Writes: true, PromptTokens: 8}
	for range 100 {
		l.Settle(l.mustReserve(t, ask, start), Use{Model: "m", Input: 8, Output: 40}, start)
	}
	if h := l.mustReserve(t, ask, start); h.tokens < 48 || h.tokens > 50 {
		t.Fatal(h.tokens)
	}
}

func TestMoreThanTheWholeLimit(t *testing.T) {
	l := New()
	ask := &Ask{Key: "k", Tenant: "t", KeyLimits: Limits{TokensPerMin: 100}, TenantLimits: Limits{TokensPerDay: 50}, Writes: true, MaxTokens: 101}
	want := Refusal{Cause: Tokens, Limit: 100, Asked: 101, Hopeless: true}
	l.mustRefuse(t, ask, start, want)
	if want.Code() != "request_exceeds_limit" || !strings.Contains(want.Message(), "101 tokens and this key has 100 tokens a minute") {
		t.Fatal(want.Message())
	}
	ask.MaxTokens = 60
	l.mustRefuse(t, ask, start, Refusal{Cause: DayTokens, OfTenant: true, Limit: 50, Asked: 60, Hopeless: true})
}

func TestBudgets(t *testing.T) {
	at := func(text string) int64 {
		v, err := time.Parse(time.DateTime, text)
		if err != nil {
			t.Fatal(err)
		}
		return v.UnixMilli()
	}
	l := New()
	ask := &Ask{Key: "k", Tenant: "t", KeyLimits: Limits{TokensPerDay: 100, TokensPerMonth: 250}, Writes: true, MaxTokens: 60}
	day := at("2028-02-28 23:00:00") // a leap year
	h := l.mustReserve(t, ask, day)
	hour := int64(3_600_000)
	l.mustRefuse(t, ask, day, Refusal{Cause: DayTokens, Limit: 100, Asked: 60, WaitMs: hour})
	l.Settle(h, Use{}, day) // failed: nothing is used
	for _, text := range []string{"2028-02-28 23:00:00", "2028-02-29 00:00:00"} {
		l.Settle(l.mustReserve(t, ask, at(text)), Use{Model: "m", Input: 30, Output: 65}, at(text)) // 35 more than estimated
	}
	l.mustRefuse(t, ask, at("2028-02-29 01:00:00"), Refusal{Cause: DayTokens, Limit: 100, Asked: 60, WaitMs: 23 * hour})
	ask.KeyLimits.TokensPerDay = 0 // a change counts at once, and so does what was used before it
	s := l.StandingOf(ask, at("2028-02-29 01:00:00"))
	if s.Tokens != (Mark{250, 60, 23 * hour}) {
		t.Fatalf("%+v", s)
	}
	l.Settle(l.mustReserve(t, ask, at("2028-02-29 01:00:00")), Use{Model: "m", Output: 60}, at("2028-02-29 01:00:00"))
	l.mustRefuse(t, ask, at("2028-02-29 01:00:00"), Refusal{Cause: MonthTokens, Limit: 250, Asked: 60, WaitMs: 23 * hour})
	l.mustReserve(t, ask, at("2028-03-01 00:00:00"))
	if d := dateOfDay(int32(at("2028-12-31 12:00:00") / dayMs)); d.dayEndMs != d.monthEndMs || d.dayEndMs != at("2029-01-01 00:00:00") {
		t.Fatalf("%+v", d)
	}
}

func TestLearnsWhenAPlaceIsFree(t *testing.T) {
	l := New()
	ask := &Ask{Key: "k", KeyLimits: Limits{Concurrent: 2}}
	for i := range int64(40) {
		l.Settle(l.mustReserve(t, ask, start+i*20_000), Use{Model: "m"}, start+i*20_000+10_000)
	}
	now := start + 1_000_000
	l.mustReserve(t, ask, now)
	l.mustReserve(t, ask, now)
	now += 4000
	for _, wait := range []int64{6000, 12_000, 17_000} { // one place every 5 s, and a little
		l.mustRefuse(t, ask, now, Refusal{Cause: Concurrent, Limit: 2, Asked: 1, WaitMs: wait})
	}
}

func TestChangeOfALimit(t *testing.T) {
	l := New()
	ask := &Ask{Key: "k", KeyLimits: Limits{RequestsPerMin: 10}}
	for range 10 {
		l.Settle(l.mustReserve(t, ask, start), Use{Model: "m"}, start)
	}
	ask.KeyLimits.RequestsPerMin = 12
	l.Settle(l.mustReserve(t, ask, start), Use{Model: "m"}, start)
	l.Settle(l.mustReserve(t, ask, start), Use{Model: "m"}, start)
	l.mustRefuse(t, ask, start, Refusal{Cause: Requests, Limit: 12, Asked: 1, WaitMs: 5000})
	ask.KeyLimits = Limits{}
	h := l.mustReserve(t, ask, start)
	ask.KeyLimits.RequestsPerMin = 1
	l.Settle(h, Use{Model: "m"}, start)
	l.mustRefuse(t, ask, start, Refusal{Cause: Requests, Limit: 1, Asked: 1, WaitMs: 720_000})
}

func TestDebtIsBounded(t *testing.T) {
	l := New()
	ask := &Ask{Key: "k", KeyLimits: Limits{TokensPerMin: 10}, Writes: true, MaxTokens: 1}
	l.Settle(l.mustReserve(t, ask, start), Use{Model: "m", Output: 1 << 40}, start)
	l.mustRefuse(t, ask, start, Refusal{Cause: Tokens, Limit: 10, Asked: 1, WaitMs: (maxDebt-1)*minuteMs + 6000})
}

func TestTallyGoesToTheFactsAndBack(t *testing.T) {
	l := New()
	ask := &Ask{Key: "k", Tenant: "t", KeyLimits: Limits{TokensPerDay: 100}, Writes: true, MaxTokens: 10}
	l.Settle(l.mustReserve(t, ask, start), Use{Model: "m", Input: 7, Output: 9}, start)
	l.Settle(l.mustReserve(t, ask, start), Use{Model: "m", Input: 1, Output: 2, Estimated: true}, start)
	want := registry.UsageRow{Period: registry.UsageDay(start), Tenant: "t", Key: "k", Model: "m",
		UsageCount: registry.UsageCount{Requests: 2, InputTokens: 8, OutputTokens: 11, EstimatedTokens: 3}}
	rows := l.Take(nil)
	if len(rows) != 1 || rows[0] != want {
		t.Fatalf("%+v", rows)
	}
	l.Settle(l.mustReserve(t, ask, start), Use{Model: "m", Output: 5}, start) // not taken yet
	facts := &Spent{AtMs: start, Keys: map[string]Used{"k": {19, 19}}, Tenants: map[string]Used{"t": {19, 19}}}
	l.Sync(facts, start)
	if s := l.StandingOf(ask, start); s.Tokens.Remaining != 100-24 {
		t.Fatalf("%+v", s)
	}
	if rows := l.Take(nil); len(rows) != 1 || rows[0].OutputTokens != 5 {
		t.Fatalf("%+v", rows)
	}
	if rows := l.Take(nil); len(rows) != 0 || len(l.tally) != 0 {
		t.Fatalf("%+v", rows)
	}
	fresh := New() // after a restart
	fresh.Sync(facts, start)
	if s := fresh.StandingOf(ask, start); s.Tokens.Remaining != 100-19 {
		t.Fatalf("%+v", s)
	}
	if s := fresh.StandingOf(ask, start+2*dayMs); s.Tokens.Remaining != 100 {
		t.Fatalf("%+v", s)
	}
}

func TestBounds(t *testing.T) {
	l := New()
	ask := &Ask{KeyLimits: Limits{Concurrent: 1}}
	for i := range maxAccounts {
		ask.Key = fmt.Sprint(i)
		h := l.mustReserve(t, ask, start)
		if i > 0 {
			l.Settle(h, Use{Model: ask.Key}, start)
		}
	}
	if len(l.tally) != maxRows+1 { // the tenant has none, and one row for what was too much
		t.Fatalf("%d rows", len(l.tally))
	}
	sum := int64(0)
	for _, r := range l.Take(nil) {
		sum += r.Requests
	}
	if sum != maxAccounts-1 {
		t.Fatalf("%d of the requests in the tally", sum)
	}
	ask.Key = "one more"
	l.mustReserve(t, ask, start)
	if len(l.keys) != 2 {
		t.Fatalf("%d accounts, of which 2 are busy", len(l.keys))
	}
	for i := range maxAccounts - 2 {
		ask.Key = fmt.Sprint("busy ", i)
		l.mustReserve(t, ask, start)
	}
	ask.Key = "too many"
	l.mustRefuse(t, ask, start, Refusal{Cause: Full, WaitMs: 1000})
}

func TestResetReadsAsDurationsDo(t *testing.T) {
	for _, ms := range []int64{0, 1, 999, 1000, 1500, 1050, 1005, 59_999, 60_000, 360_000, 3_599_999, 3_600_000, 90_000_001, 2_678_400_000} {
		if got, want := string(AppendReset(nil, ms)), (time.Duration(ms) * time.Millisecond).String(); got != want {
			t.Errorf("%d ms: %s, want %s", ms, got, want)
		}
	}
}

func TestHeaders(t *testing.T) {
	l := New()
	ask := &Ask{Key: "k", Tenant: "t", KeyLimits: Limits{RequestsPerMin: 60, TokensPerMin: 150_000, Concurrent: 8},
		TenantLimits: Limits{RequestsPerMin: 6000, Concurrent: 2}, Writes: true, MaxTokens: 16}
	h := l.mustReserve(t, ask, start)
	s := l.Standing(h, start)
	const want = "X-Ratelimit-Limit-Requests: 60\r\nX-Ratelimit-Remaining-Requests: 59\r\nX-Ratelimit-Reset-Requests: 1s\r\n" +
		"X-Ratelimit-Limit-Tokens: 150000\r\nX-Ratelimit-Remaining-Tokens: 149984\r\nX-Ratelimit-Reset-Tokens: 7ms\r\n" +
		"X-Ratelimit-Limit-Concurrent: 2\r\nX-Ratelimit-Remaining-Concurrent: 1\r\n"
	if got := string(s.Append(nil)); got != want {
		t.Fatalf("%s", got)
	}
	if s := (Standing{}); len(s.Append(nil)) != 0 {
		t.Fatal("headers without limits")
	}
}

func TestEveryCauseHasItsCode(t *testing.T) {
	seen := map[string]bool{}
	for c := Requests; c <= Full; c++ {
		r := Refusal{Cause: c}
		if code := r.Code(); code == "" || seen[code] || r.Message() == "" {
			t.Errorf("cause %d: code %q, %q", c, code, r.Message())
		} else {
			seen[code] = true
		}
	}
}

func TestSettledTwice(t *testing.T) {
	l := New()
	h := l.mustReserve(t, &Ask{Key: "k", KeyLimits: Limits{Concurrent: 1}}, start)
	l.Settle(h, Use{}, start)
	defer func() {
		if recover() == nil {
			t.Fatal("nobody noticed")
		}
	}()
	l.Settle(h, Use{}, start)
}

var allLimits = Limits{RequestsPerMin: 1 << 29, TokensPerMin: 1 << 29, Concurrent: 1 << 20, TokensPerDay: 1 << 40, TokensPerMonth: 1 << 45}

func oneRequest(l *Ledger, ask *Ask, dst []byte, now int64) []byte {
	var h Hold
	if no := l.Reserve(&h, ask, now); no.Cause != None {
		panic(no.Message())
	}
	s := l.Standing(&h, now)
	dst = s.Append(dst[:0])
	l.Settle(&h, Use{Model: "m", Input: 7, Output: 20}, now)
	return dst
}

func TestNoAllocations(t *testing.T) {
	l, now := New(), start
	ask := &Ask{Key: "k", Tenant: "t", KeyLimits: allLimits, TenantLimits: allLimits, Writes: true, PromptTokens: 7}
	dst := oneRequest(l, ask, make([]byte, 0, 1024), now)
	if n := testing.AllocsPerRun(100, func() { now++; dst = oneRequest(l, ask, dst, now) }); n != 0 {
		t.Fatalf("%v allocations a request", n)
	}
}

// BenchmarkRequest is all that a request of a limited key of a limited tenant costs here.
func BenchmarkRequest(b *testing.B) {
	l, now := New(), start
	ask := &Ask{Key: "k", Tenant: "t", KeyLimits: allLimits, TenantLimits: allLimits, Writes: true, PromptTokens: 7}
	dst := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		now++
		dst = oneRequest(l, ask, dst, now)
	}
}
