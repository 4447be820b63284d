// Package quota decides whether a request fits the limits of its key and of its tenant, when to come back if it does
// not, and keeps what was used.
//
// # What it decides
//
// A [Ledger] checks requests a minute, tokens a minute, requests at once, and tokens a day and a month (UTC), of key and
// tenant, and charges all of them or none, in one call: a request that is refused has paid nothing anywhere. Tokens are
// reserved by an estimate (the prompt, and what may be written: max tokens, or what the key's requests usually write)
// and settled with what was used, 0 for a failure.
//
// # Why buckets that drain
//
// A limit a minute is a bucket that requests fill and time drains evenly (the generic cell rate algorithm). It is two
// numbers whatever the limit, all in whole 60,000ths, so the time at which a given size fits is exact and told as it
// is; and places come back one by one, so that those who wait come back one by one. A sliding window holds the sum of
// every 60 s below the limit, but keeps each request of the last minute, and gives places back in the lumps in which
// they were taken. The price: after a minute of rest, one limit's worth at once and another one evenly over the next
// minute. What an estimate reserved too much is given back at the end, drained or not, so a burst may be larger by what
// drained meanwhile; over any longer time the limit holds.
//
// Budgets are counters by the calendar: nothing drains, all is given back at midnight UTC.
//
// # What is promised
//
// [Refusal.WaitMs] is the time after which a request of the same size succeeds if nobody else comes first. Those who
// are refused by the same limit are told different times, one behind the other, at most spreadMs later than the first
// could come: all who wait as told succeed at their next try. For requests at once the wait is an expectation: what the
// key's requests usually take, less what the running ones have taken.
//
// A minute's limit on tokens may be overdrawn by requests that use more than their estimate; the debt, at most maxDebt
// minutes' worth, drains before anything is let in. A budget may be overdrawn likewise, never by what was estimated.
//
// # What its caller owes it
//
//	var hold quota.Hold
//	if no := ledger.Reserve(&hold, &ask, nowMs); no.Cause != quota.None { … no.Message(), no.WaitMs … }
//	…
//	ledger.Settle(&hold, quota.Use{Model: "chat", Input: 90, Output: 230}, nowMs) // exactly once a hold
//
// A lock: a Ledger has one owner. A key and its tenant belong in the same Ledger; tenants may be spread over several.
// Every few seconds [Ledger.Take] hands over what was used since; once it is among the facts, [Ledger.Sync] tells what
// the facts hold, so that budgets survive a restart. Limits come with each request, so a change takes effect with the
// next one, and what was used before counts.
//
// What it does not do: find keys, count tokens, answer clients, store anything.
package quota
