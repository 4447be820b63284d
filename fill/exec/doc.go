// Package exec runs the decisions: it is the only place where the pure cores of
// fill and nodes/registry meet clocks, disks and sockets.
//
// A [Controller] owns the facts (behind the replicated log), the picture of the
// agents, and the planner. One goroutine, its loop, takes frames from agents,
// ticks and pokes; each round it lets fill.Advance and the planner look at one
// still view, submits their commands as one entry of the log, and sends each
// agent the orders that are the difference between facts and reports. All other
// goroutines read under a lock, submit single commands, or carry bytes.
//
// Ownership: the state is changed only by the log's apply (under mu); the fleet
// only by the loop (under mu); the planner, the sent orders and the leases
// belong to the loop alone.
//
// The caller owes it a headroom function that is safe for concurrent use, and
// calls Close. A Controller that does not lead serves reads and decides nothing.
package exec
