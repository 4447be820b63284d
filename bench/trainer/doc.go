// Package trainer is a real data-parallel trainer, small enough to run by the
// dozen: it trains a multilayer perceptron on data it makes, with gradients
// exchanged over TCP between processes, sharded checkpoints, the rank protocol,
// and simulated GPUs. It exists to prove that sluice loses no step.
//
// # What it guarantees
//
// The loss curve is bit for bit the same at every world size, and across any
// chain of stops and resumes at other sizes. The global batch is a fixed number
// of micro-batches ([Config].MicroBatches), of which each rank computes an equal
// share; each micro-batch's gradient is rounded to a fixed-point integer before
// it is summed, and integer sums do not depend on their order. Sample k of step
// s is a function of the seed alone.
//
// A checkpoint is one shard a rank: temporary file, fsync, rename, fsync of the
// folder, SHA-256. In protocol mode each shard is reported and the controller's
// manifest makes a checkpoint current. Without the protocol, rank 0 writes a
// manifest when every shard is safe, then the latest pointer, and a start takes
// the newest checkpoint whose sizes and digests hold ([Newest]).
//
// A peer that dies ends the whole gang at the next exchange, with an error.
// Waiting for a held peer is not limited by the collective but by
// [Config].ExchangeLimitMs, which is long: the agent ends gangs, not a timeout.
//
// # What it is owed
//
// The environment of a rank (see nodes/rank.Env): RANK, WORLD_SIZE, MASTER_ADDR
// and MASTER_PORT, and with the protocol SLUICE_SOCKET, SLUICE_CHECKPOINT_DIR,
// SLUICE_RESUME. Without the protocol Run listens to SIGUSR1 and SIGTERM itself,
// so its context must not end on those; the checkpoint folder must outlive the
// generation. SLUICE_SIMGPU_DIR with CUDA_VISIBLE_DEVICES and SLUICE_HOLDER
// makes it hold simulated GPUs.
//
//	cfg := trainer.Default()
//	cfg.MaxSteps = 500
//	err := trainer.Run(ctx, cfg)
//
// # What it does not do
//
// It is no framework: one model, plain momentum, a star for the all-reduce
// (rank 0 adds), which is enough for tens of ranks on one network.
package trainer
