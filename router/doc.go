// Package router decides which replica serves a request, and who is next when none can.
//
// It is a pure core: tables, loads and random numbers come in as arguments; no goroutine, lock or clock. Package own
// runs it live.
//
//   - A [Table] is immutable: models by name and alias, their versions with weights, their replicas, each with a slot
//     number into the load counters that the caller keeps. A change is a new table.
//   - [Pick] chooses by least predicted work: among all of up to ScanAll replicas, else between two taken at random
//     (the power of two choices) and those that hold the prompt's prefix. A cached prefix lowers the cost of a replica
//     by the work it saves, and by no more, so affinity ends where the queue behind it costs as much.
//   - [Queue] orders who waits: class, then fair share between tenants, then deadline.
//   - [RetryAfterMs] turns drain rate and capacity on its way into an honest answer.
//
// What the caller owes: it charges the load of the chosen replica at once, not when headers come back (cases RT-01,
// RT-02), and releases it exactly once.
//
//	slot, verdict := router.Pick(model, &req, loads, nil, rand.Uint64())
//	if verdict == router.Picked { … charge loads[slot] … }
//
// It does not hash prompts (router/prefix), hold counters (router/own), or speak to replicas (gateway).
package router
