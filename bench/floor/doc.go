// Package floor holds the tests of a whole floor: a server, agents, shims,
// engines and trainers as processes of the built program, with TLS, a join
// token and gossip on loopback, on simulated GPUs. It has no code of its own
// beside them.
//
// What they show: whatever is killed with kill -9, only requests whose answer
// had begun on a killed replica fail; nothing that runs on a GPU is touched by
// the end of an agent or of the server; all comes back within a bound; no
// checkpoint is lost or torn; no GPU ever has two active holders; the books
// balance; and the ledger of a job agrees with what its ranks wrote down
// themselves, step by step.
//
// They build the program once, need Linux, and are skipped with -short.
//
//	go test ./bench/floor
package floor
