// Package gossip says who is there: which nodes live, at which addresses, in
// which role. Nothing else travels by it (hashicorp/memberlist carries about
// ten messages a second over 10,000 nodes); facts live in the replicated log,
// orders and readings on direct streams, and the loss of an agent is declared
// by the lease on its stream, not here.
//
// What it decides:
//
//   - Seeds are joined again and again for as long as the process lives, since
//     gossip alone does not always heal a partition. Absent seeds come first;
//     present ones are asked too, one a round. A healed network is whole again
//     within two rejoin intervals and a reclaim time.
//   - A node that comes back at another address under its old name is
//     accepted once its old address was declared dead for ReclaimTime. Two
//     that live at once under one name are a conflict: the first stays, the
//     second is refused, and both the event and Stats say so.
//   - Traffic is encrypted (AES-256-GCM) with the key from package trust and
//     carries the cluster's label; anything else is dropped and counted. Without
//     a key only loopback addresses are allowed.
//
// What the caller owes it: a NodeID that is unique in the cluster and stable
// over restarts, and Leave (an orderly goodbye) or Close (none) at the end.
//
//	g, err := gossip.Start(gossip.Config{
//		NodeID: "gpu-07", Bind: "10.0.0.7", Port: 7946, Key: w.GossipKey, Cluster: w.Label,
//		Seeds: []string{"10.0.0.1:7946"},
//		Meta: gossip.Meta{Role: "agent", AgentAddr: "10.0.0.7:7070"},
//	}, logger)
//	for e := range g.Events() { … }
//
// Events hold the latest state of each node: a reader that falls behind misses
// intermediate changes, never the last one, and never holds up gossip.
package gossip
