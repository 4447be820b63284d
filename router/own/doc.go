// Package own runs the router live: it holds the load counters, the waiting requests and the leases, and lets package
// router decide.
//
// # Reading order
//
// [Router.Acquire] is the way of a request. It reads the table by one atomic pointer, picks, and charges the counter of
// the chosen replica at once by add, check, undo. That fast path is open only while nobody waits for the model; else the
// request goes to the one goroutine that owns the model's bounded queue (line). A replica takes at most MaxInFlight
// requests, so waiting happens here, where the order holds, and not in the engine. The [Ticket] gives the charge back,
// once, when the request has ended.
//
// # What the caller owes it
//
// SetTable before the first Acquire, and again at each change. For every ticket FirstByte when the answer begins and
// exactly one Release at the very end of the exchange, not when headers come. Close at the end.
//
//	r := own.New(own.Default())
//	defer r.Close()
//	r.SetTable(table)
//	ticket, err := r.Acquire(&req, clientGone)
//	if err != nil { … router.ErrUnknownModel, *router.Refusal, own.ErrGone … }
//	… relay to ticket.Replica().Addr …
//	ticket.Release(own.Result{Outcome: slo.OK, TTFTMs: ttft, E2EMs: e2e})
//
// # Sleep is fenced
//
// A replica with an AgentAddr is chosen only while its lease is valid. The deadline is counted from before the request
// for the lease was sent and shortened by a tenth, so it ends here before it ends at the agent. A charge adds to the
// in-flight count first and reads the deadline second; giving a lease up clears the deadline first and reads the count
// second. So whatever the interleaving, no request is on its way to an engine whose lease has gone back.
//
// # What it does not do
//
// It does not probe engines or speak HTTP; it learns from the results that tickets bring back.
package own
