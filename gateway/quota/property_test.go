package quota

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// start is a fleet time in the middle of a day and month.
var start = int64(1_795_000_000_000)

func limitsGen(t *rapid.T, who string) Limits {
	some := func(name string, lo, hi int) int {
		if !rapid.Bool().Draw(t, who+" has "+name) {
			return 0
		}
		return rapid.IntRange(lo, hi).Draw(t, who+" "+name)
	}
	l := Limits{RequestsPerMin: some("requestsPerMin", 1, 120), TokensPerMin: some("tokensPerMin", 500, 20_000), Concurrent: some("concurrent", 1, 4)}
	l.TokensPerDay = int64(some("tokensPerDay", 2_000, 60_000))
	if l.TokensPerMonth = int64(some("tokensPerMonth", 60_000, 200_000)); l.TokensPerMonth == 0 && rapid.Bool().Draw(t, "month is day") {
		l.TokensPerMonth = l.TokensPerDay
	}
	return l
}

// TestObedientClientSucceeds plays one client that sends when its headers say that there is room, else waits as it is
// told: whatever its limits and sizes, a try after a wait is never refused, and no limit is passed.
func TestObedientClientSucceeds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, now := New(), start
		ask := Ask{Key: "k", Tenant: "t", KeyLimits: limitsGen(t, "key"), TenantLimits: limitsGen(t, "tenant"), Writes: true}
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			ask.PromptTokens = rapid.IntRange(0, 600).Draw(t, "prompt")
			ask.MaxTokens = rapid.IntRange(0, 900).Draw(t, "max tokens")
			ask.Choices = rapid.IntRange(0, 2).Draw(t, "choices")
			before := l.StandingOf(&ask, now)
			var h Hold
			no := l.Reserve(&h, &ask, now)
			n := estimateAs(&ask, l)
			if roomFor(&before.Requests, 1) && roomFor(&before.Tokens, n) && roomFor(&before.Concurrent, 1) && no.Cause != None {
				t.Fatalf("%+v left room for %d tokens, then %+v", before, n, no)
			}
			if no.Hopeless {
				if no.Asked <= no.Limit || no.WaitMs != 0 {
					t.Fatalf("%+v", no)
				}
				continue
			}
			if no.Cause != None {
				if no.WaitMs < 1000 || no.WaitMs%1000 != 0 {
					t.Fatalf("%+v", no)
				}
				if no.WaitMs > 1000 {
					// It was not told to wait in vain: a second earlier there is no room.
					early := h
					if l.clone().Reserve(&early, &ask, now+no.WaitMs-1001).Cause == None {
						t.Fatalf("could have come a second before %+v", no)
					}
				}
				now += no.WaitMs
				if again := l.Reserve(&h, &ask, now); again.Cause != None {
					t.Fatalf("waited %d ms as told by %+v, then %+v", no.WaitMs, no, again)
				}
			}
			took := int64(rapid.IntRange(0, 90_000).Draw(t, "took"))
			now += took
			use := Use{Model: "m"}
			if rapid.Bool().Draw(t, "succeeds") {
				use.Input = int64(ask.PromptTokens)
				use.Output = int64(rapid.IntRange(0, max(1, ask.MaxTokens)).Draw(t, "writes")) // at most what was estimated
			}
			l.Settle(&h, use, now)
			if l.Running() != 0 || l.HeldTokens() != 0 {
				t.Fatalf("%d running, %d tokens held", l.Running(), l.HeldTokens())
			}
			now += int64(rapid.IntRange(0, 5_000).Draw(t, "rests"))
		}
	})
}

func roomFor(m *Mark, n int64) bool { return m.Limit == 0 || m.Remaining >= n }

func estimateAs(ask *Ask, l *Ledger) int64 {
	return estimate(ask, l.keys[ask.Key], l.tenants[ask.Tenant])
}

// clone is a ledger that can be asked what would be.
func (l *Ledger) clone() *Ledger {
	c := New()
	c.facts, c.running, c.today = l.facts, l.running, l.today
	for id, a := range l.keys {
		x := *a
		c.keys[id] = &x
	}
	for id, a := range l.tenants {
		x := *a
		c.tenants[id] = &x
	}
	return c
}

// TestRefusedOnesComeOneByOne refuses many clients of one key at about the same time. All wait as told, and each
// succeeds at its second try.
func TestRefusedOnesComeOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := New()
		ask := Ask{Key: "k", Tenant: "t", Writes: true, MaxTokens: 1}
		perMin := rapid.IntRange(1, 600).Draw(t, "limit")
		tokens := rapid.Bool().Draw(t, "of tokens")
		if tokens {
			perMin *= 100
			ask.KeyLimits.TokensPerMin = perMin
			ask.MaxTokens = rapid.IntRange(1, perMin).Draw(t, "size")
		} else {
			ask.KeyLimits.RequestsPerMin = perMin
		}
		step := int64(ask.MaxTokens) * minuteMs / int64(perMin)
		if !tokens {
			step = minuteMs / int64(perMin)
		}
		fit := int(spreadMs / (step + roundMs)) // so many fit into the time that they are spread over
		now := start
		var waiting []int64
		for len(waiting) < min(50, fit) { // ends: a bucket fills up
			var h Hold
			if no := l.Reserve(&h, &ask, now); no.Cause != None {
				waiting = append(waiting, now+no.WaitMs)
				continue
			}
			l.Settle(&h, Use{Model: "m", Output: int64(ask.MaxTokens)}, now)
			now += rapid.Int64Range(0, step/2).Draw(t, "apart")
		}
		slices.Sort(waiting)
		for _, now := range waiting {
			var h Hold
			if no := l.Reserve(&h, &ask, now); no.Cause != None {
				t.Fatalf("waited as told, then %+v", no)
			}
			l.Settle(&h, Use{Model: "m", Output: int64(ask.MaxTokens)}, now)
		}
	})
}

// TestLimitsHold sends at random without any regard: what is let in stays within the limits.
func TestLimitsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, now := New(), start-start%dayMs // a day begins
		ask := Ask{Key: "k", Tenant: "t", KeyLimits: limitsGen(t, "key"), TenantLimits: limitsGen(t, "tenant"), Writes: true}
		var running []Hold
		var requests, tokens int64 // let in
		for range rapid.IntRange(1, 200).Draw(t, "events") {
			if len(running) > 0 && rapid.Bool().Draw(t, "ends") {
				i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
				l.Settle(&running[i], Use{Model: "m", Output: running[i].tokens}, now)
				running = append(running[:i], running[i+1:]...)
				continue
			}
			ask.MaxTokens = rapid.IntRange(1, 900).Draw(t, "max tokens")
			var h Hold
			if l.Reserve(&h, &ask, now).Cause == None {
				running = append(running, h)
				requests++
				tokens += h.tokens
			}
			now += int64(rapid.IntRange(0, 3_000).Draw(t, "apart"))
			for _, lim := range []Limits{ask.KeyLimits, ask.TenantLimits} {
				elapsed := now - (start - start%dayMs)
				over := func(limit, n int64) bool { return limit > 0 && n*minuteMs > limit*(minuteMs+elapsed) }
				if over(int64(lim.RequestsPerMin), requests) || over(int64(lim.TokensPerMin), tokens) ||
					lim.Concurrent > 0 && len(running) > lim.Concurrent ||
					lim.TokensPerDay > 0 && elapsed < dayMs && tokens > lim.TokensPerDay {
					t.Fatalf("%+v: %d requests, %d tokens, %d running after %d ms", lim, requests, tokens, len(running), elapsed)
				}
			}
		}
		for i := range running {
			l.Settle(&running[i], Use{Model: "m"}, now)
		}
		if l.Running() != 0 || l.HeldTokens() != 0 {
			t.Fatalf("%d running, %d tokens held", l.Running(), l.HeldTokens())
		}
	})
}
