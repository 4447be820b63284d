// Package fill decides who holds which GPU next. It is a pure core: a view of
// the facts goes in, commands come out; it does no I/O, has no clock and no lock.
//
// Two halves:
//
//   - [Planner.Plan] chooses: how many replicas each model gets and where, which
//     gangs give way for them and how (yield, shrink, pause), which gangs start,
//     go on, grow or move, what each tenant may hold, and why the rest waits.
//   - [Advance] carries out: it moves every replica and job along its life cycle
//     as agents report, and ends what outlived its deadline. Orders for agents
//     are the difference between facts and reports.
//
// What the caller owes the planner: a view that stays still during the call,
// fleet time that does not run backwards, and every command applied in the
// order given before the next plan (a command refused as stale is dropped; the
// next plan sees why). Plans are reversible until applied: nothing of them is
// kept but timers and learned durations, which may be lost.
//
//	p := fill.NewPlanner(fill.Default())
//	plan := p.Plan(fill.View{State: state, Fleet: fleet, Headroom: headroom}, nowMs)
//	for i := range plan.Commands {
//		state.Apply(&plan.Commands[i]) // through the log
//	}
//
// How it decides, in the order of a plan:
//
//  1. Wanted: replicas needed at the horizon, at least the minimum, at most the
//     maximum. More come at once. A surplus goes back when holding it has cost
//     what taking it again would (ski rental, a level at a time).
//  2. Takes: each replica where it is cheapest among the ways that meet the
//     deadline: wake a sleeper, start on free GPUs, or make gangs give way.
//     Prices are GPU-milliseconds: work redone, restarts, idle ends. A reclaim is
//     one command that reserves and evicts; no victim in it could be spared, and
//     nobody is evicted for a replica that cannot be placed whole.
//  3. Training: yielded gangs whose GPUs are all free go on in place; waiting
//     gangs start whole in the tightest domain that fits, by guarantee, weighted
//     share, priority within the tenant, age; guarantees and fair shares are
//     given back by agreed stops; one elastic gang grows when it pays.
//  4. Waiting: a cause for everything that does not run.
//
// A gang that was placed and has not begun cannot be asked to stop: its
// generation is ended by a command just before the reclaim that takes its GPUs.
// That is the one case in which reserving and evicting are two commands.
//
// Reclaims are never held back; returns are, when a gang or the fleet has spent
// its share of time on switching.
//
// What it does not do: it holds no host memory to account (specs declare none),
// moves no gang to fight fragmentation while it runs well, and stops no replica
// of one model for another's.
package fill
