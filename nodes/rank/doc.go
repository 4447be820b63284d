// Package rank is the rank protocol, version 1: how the ranks of a training
// gang and the agent of their node speak about steps, checkpoints and stops.
//
// # What it decides
//
// Two pure state machines decide everything, without sockets or clocks:
//
//   - [Machine] is the rank's side. Orders go in, answers come out, and Begin
//     says at each step boundary whether to go on, wait, yield, or save and exit.
//   - [Stop] is the controller's side of one agreed stop: it collects the
//     ranks' answers, takes S (the highest step any rank has begun), and says
//     when all have reached S or when the deadline has passed.
//
// [Server] and [Client] carry them over a Unix socket, one JSON object a line.
// [Manifest] names a complete checkpoint. The last two are kept; older files and
// directories of the job are removed where their names begin with "step-" and a
// number that grows.
//
// # Stopping together
//
//	controller: prepare ─► all ranks      each answers prepared(begun) at once and
//	                                      begins no further step
//	controller: S = max begun; S is recorded as a fact, then
//	            commit S ─► all ranks     each goes on through S, then yields
//	                                      (yielded) or saves and exits (stopped)
//	controller: resume ─► yielded ranks   (resumed)
//
// A rank that has begun S waits in its collective only for ranks that have not,
// and each of those is let through to S by the commit: so all reach S and none
// passes it. Before the commit is decided the controller may abort instead.
//
// What the controller owes: it records S before it sends the first commit, and
// the decision to abort or to resume before it sends the first of those; it
// never aborts after a commit; it sends an unanswered order again, with the same id,
// until the deadline; it answers a prepared of an id it does not know with
// abort. Then its own loss, and duplicated, delayed or reordered orders, can
// neither hang a gang nor stop it at two steps.
//
// # Counting
//
// Steps count from 1; begun and done are cumulative, so a lost message costs
// nothing. Samples are the samples the job has consumed through done, over all
// generations. Messages that must not be lost (shard, stopped, finished) carry
// seq and are sent again on each connection until the agent's ack.
//
// # Example
//
//	env, err := rank.EnvFrom(os.Getenv)
//	c, err := rank.Dial(ctx, env)
//	for step := env.Step + 1; step <= last; step++ {
//		v, err := c.BeginStep(step) // blocks while held or yielded
//		if v.Kind == rank.SaveAndStop {
//			save(v.Step)        // c.Shard(...)
//			return c.Stopped(v.Step)
//		}
//		loss := train(step)
//		c.EndStep(step, loss, samples)
//	}
//
// sluice.py in this folder (see [Helper]) is the same client for Python.
//
// # What it does not do
//
// It starts, signals and kills nothing, chooses no victims and writes no
// checkpoint: those belong to the agent, to fill and to the trainer. A rank that
// is silent is the controller's to end.
package rank
