// Package replog keeps a state machine in a replicated log: hashicorp/raft
// with a bolt store around whatever implements [Machine].
//
// What it decides: the order of commands, and when one of them is safe. A
// command whose Apply returned without an error is on the disk of a majority
// of voters and survives kill -9, power loss and the loss of a minority.
//
// What the caller owes it: a Machine that is a pure function of the commands
// it was given (no clock, no randomness: both travel inside the command); one
// [Open] per directory; [Log.Close] at the end. The Machine is only called
// from one goroutine of the log, one call at a time, so a Machine that others
// read while it runs brings its own means to share what it computed.
//
// A single voter (no Peers) opens no port, bootstraps itself, and is leader
// when Open returns, with every command replayed. With Peers, Open returns at
// once; wait for [Log.LeaderCh] and call [Log.Barrier] before the first read
// as a leader, since a commit index is not stored and replay ends only when a
// leader has committed something in its own term.
//
//	log, err := replog.Open(replog.Config{Dir: "/var/lib/sluice/log", ID: "s1"}, machine)
//	if err != nil {
//		return err // names what to do
//	}
//	defer log.Close()
//	result, err := log.Apply(ctx, command)
//
// Applies from many goroutines are committed in groups: one write and one
// fsync serve all that wait at that moment, so throughput grows with the
// number of callers while one lone caller pays one fsync.
//
// What it does not do: forward commands to the leader ([ErrNotLeader] names
// it), drop duplicates (commands carry ids; the Machine does that), encrypt
// what it stores, or grow a cluster by itself.
package replog
