// Package registry holds the facts: specs of tenants, models and jobs, the
// phase and generation of everything that runs, who holds which GPU, what is
// reserved for whom, manifests, ledgers, and the totals of the books.
//
// It is a pure core. [State.Apply] takes one [Command] and either changes the
// facts and returns [Event]s, or returns an error and changes nothing. A
// command carries facts, the leader's time and an id made by its author; it
// never carries a rule to be computed again, so applying the same log always
// gives the same state. A command whose id was seen before has no second
// effect.
//
// What the caller owes: commands in log order, AtMs in fleet time (a smaller
// AtMs than the last is raised to it), and a copy of the state for readers in
// other goroutines: State has no lock.
//
// Invariants that Apply itself keeps, and [State.Check] verifies whole:
//
//   - a GPU has at most one active holder, and the declared memory of its
//     holders fits it;
//   - a GPU becomes free only by a command that reports the proof
//     (RankGone, ReplicaGone, and yield or sleep proved quiet);
//   - a gang's world size is 0, or within [min, max] and a multiple of
//     worldMultiple;
//   - an eviction names a placement that it makes possible, in the same
//     command that reserves what it frees;
//   - each GPU-millisecond is in exactly one book state.
//
// It decides nothing: which gang gives way is fill's to say.
package registry
