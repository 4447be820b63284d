// Package nodes says what is there: nodes, their GPUs, what runs on them as
// their agents report it, and the words in which a controller orders an agent
// to change it.
//
// It is a pure core: types and arithmetic, no clock, no socket, no goroutine.
// What *should* be there (specs, phases, assignments) are facts and live in
// nodes/registry; what *is* there comes from agents and lives in the types of
// this package:
//
//   - [Node] and [GPU]: inventory of one machine, sent when an agent connects.
//   - [HolderSpec]: everything an agent needs to run one holder, a replica of
//     a model or one rank (or one torchrun) of a gang.
//   - [Order]: one change the controller wants, with raft term, generation and
//     an id. An agent refuses an order of an older term and repeats its
//     earlier answer to an id it knows, so orders may be sent again freely.
//   - [Frame]: one line of the stream from an agent: hello, answers, holder
//     states, readings, rank messages.
//   - [Fleet]: the controller's picture of all agents, updated by frames.
//
// Words are those of docs/ARCHITECTURE.md. GPUs are named by UUID everywhere;
// an index is for people's eyes only, since its order differs between tools
// and after a reboot.
package nodes
