package quota

import "fmt"

const (
	// roundMs is what a wait is rounded up to, since Retry-After has seconds.
	roundMs = 1000
	// spreadMs is how much later than the first of them the last of those who were refused is told to come.
	spreadMs = 60_000
)

// Cause is the limit that refuses a request.
type Cause uint8

// The causes, None for a request that may pass.
const (
	None        Cause = iota
	Requests          // requests a minute
	Tokens            // tokens a minute
	Concurrent        // requests at once
	DayTokens         // budget of tokens of the day
	MonthTokens       // budget of tokens of the month
	Full              // there are maxAccounts busy keys and tenants already
)

// Refusal says why a request may not pass and when it may. The zero value means that it may.
type Refusal struct {
	Cause    Cause
	OfTenant bool // the limit is the tenant's, not the key's
	Limit    int64
	Asked    int64 // what the request needs of it
	// Hopeless: the request needs more than the whole limit; no wait helps.
	Hopeless bool
	// WaitMs is when to come back: whole seconds, at least one; 0 when hopeless.
	WaitMs int64
}

func (r *Refusal) hopeless(c Cause, ofTenant bool, limit, asked int64) {
	if !r.Hopeless {
		*r = Refusal{Cause: c, OfTenant: ofTenant, Limit: limit, Asked: asked, Hopeless: true}
	}
}

// longer notes a limit that refuses, if it does so for longer than those before.
func (r *Refusal) longer(c Cause, ofTenant bool, limit, asked, waitMs int64) {
	if !r.Hopeless && waitMs > r.WaitMs {
		*r = Refusal{Cause: c, OfTenant: ofTenant, Limit: limit, Asked: asked, WaitMs: waitMs}
	}
}

// round makes the wait whole seconds.
func (r *Refusal) round() { r.WaitMs = max(1, ceilDiv(r.WaitMs, roundMs)) * roundMs }

// Code names the cause for programs. A request that no wait helps has one of its own.
func (r *Refusal) Code() string {
	if r.Hopeless {
		return "request_exceeds_limit"
	}
	switch r.Cause {
	case Requests:
		return "requests_per_minute"
	case Tokens:
		return "tokens_per_minute"
	case Concurrent:
		return "concurrency_limit"
	case DayTokens:
		return "tokens_per_day"
	case MonthTokens:
		return "tokens_per_month"
	case Full:
		return "too_many_keys"
	}
	return ""
}

// Message tells people the cause, and what to do about it.
func (r *Refusal) Message() string {
	who := "key"
	if r.OfTenant {
		who = "tenant"
	}
	what := map[Cause]string{Tokens: "tokens a minute", DayTokens: "tokens a day", MonthTokens: "tokens a month"}[r.Cause]
	if r.Hopeless {
		return fmt.Sprintf("This request may use %d tokens and this %s has %d %s, so no wait would help. Ask for fewer with max_tokens, shorten the prompt, or have the limit raised.",
			r.Asked, who, r.Limit, what)
	}
	switch r.Cause {
	case Requests:
		return fmt.Sprintf("This %s has used its %d requests a minute. Wait as Retry-After says.", who, r.Limit)
	case Concurrent:
		return fmt.Sprintf("This %s has as many requests running as it may at once: %d. Wait as Retry-After says.", who, r.Limit)
	case Tokens:
		return fmt.Sprintf("This request may use %d tokens, which is more than is left of this %s's %d %s. Wait as Retry-After says, or ask for fewer with max_tokens.",
			r.Asked, who, r.Limit, what)
	case DayTokens, MonthTokens:
		return fmt.Sprintf("This request may use %d tokens, which is more than is left of this %s's budget of %d %s (UTC). Wait as Retry-After says, ask for fewer with max_tokens, or have the budget raised.",
			r.Asked, who, r.Limit, what)
	}
	return "Too many keys are in use at once. Wait as Retry-After says."
}
