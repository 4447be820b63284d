// Package hold is the shim around one holder, run as `sluice hold --dir DIR`:
// it starts the holder's command in a cgroup of its own, keeps its output in a
// bounded log, and leaves its exit status in a file. It outlives the agent that
// started it, and it decides nothing.
//
// DIR is made by the agent and is the whole conversation between the two:
//
//	run.json   what to run (agent writes, before the fork)
//	hold.lock  locked by flock while the shim lives, before anything else
//	shim.pid   "pid startTicks" of the shim
//	child.pid  the same of the command
//	log, log.1 stdout and stderr, at most LogMaxBytes each
//	exit.json  how the command ended; there it stays, whole or not at all
//
// A shim that finds exit.json runs nothing: an agent that decides, with the
// lock in hand, that a start never happened writes one, and a shim that comes
// late obeys it (see [Cancel]).
//
// When the command ends, the shim writes exit.json, kills what else is left of
// the holder, waits for that within a limit, and exits. There is no Pdeathsig
// and no pipe to the agent. Hangups, interrupts and SIGTERM do not end it: the
// agent ends a holder through its group. If the shim itself is killed, the
// holder's log ends and the agent ends the holder ("shim lost").
//
// It restarts nothing, and it does not know what a GPU is.
package hold
