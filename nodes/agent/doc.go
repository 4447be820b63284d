// Package agent runs one node: it is the only program that starts or stops
// anything on the node's GPUs.
//
// What it decides: whether an order may be obeyed (raft term, generation, id
// known, GPUs proved free), and whether a holder is gone, asleep or yielded,
// which it says only after proof. What should run is decided elsewhere, by the
// leader whose orders it takes.
//
// # Holders
//
// Every holder (see [sluice/nodes.HolderSpec]) runs under `sluice hold`, in a
// session and a cgroup of its own. Shims outlive the agent: an agent that is
// killed touches nothing, and the next one takes its holders back from DATA:
//
//	agent.lock       flock: one agent a node
//	journal          JSON lines, synced before each fork, compacted
//	holders/ID/      what package hold describes, rank.sock, resume.json
//
// What the journal does not know is ended at the start.
//
// # Proofs
//
// Gone: no process in the holder's group, none of its pids on the devices, used
// memory back to the baseline plus what other holders declare. Quiet (asleep,
// yielded): the engine says it sleeps, or every rank has said yielded, and no
// activity is read from the holder's pids. Until then a state stays, and its
// reason says what is still there.
//
// # Order of use
//
//	cfg := agent.Default()
//	cfg.NodeID, cfg.DataDir = "n1", "/var/lib/sluice"
//	cfg.Devices = agent.NewSimDevices(dir)
//	cfg.Dial = &agent.HTTPDialer{Addrs: addrs}
//	cfg.HoldCommand = []string{self, "hold"} // run as self hold --dir DIR
//	err := agent.Run(ctx, cfg)               // until ctx ends; holders go on
//
// The stream to the leader is dialled again for ever. Nothing stops while it
// is away, except gangs after LeaderlessMs.
//
// # Leases
//
// A gateway holds a lease on each replica it may use: POST /v1/leases/ID with
// {"gateway":"g1"} answers {"ttlMs":2000}, or 409 {"error":"draining"} while a
// sleep or stop is pending. A holder of a lease that asks again while draining
// keeps it (it has requests in flight), and gives it back with DELETE
// /v1/leases/ID?gateway=g1. Sleep and stop go on when no lease is left.
//
// # Inside
//
// One goroutine, the owner, has the state; see owner.go. Everything slow is
// done by workers, which observe and report and never judge. What an
// observation proves is decided by pure functions in proof.go.
//
// It plans nothing, retries no holder, and keeps no history.
package agent
