package main

import (
	"errors"

	"github.com/spf13/cobra"

	"sluice/bench/trainer"
	"sluice/nodes/rank"
)

// newTrainerCmd runs one rank of a small real data-parallel training.
func newTrainerCmd() *cobra.Command {
	cfg := trainer.Default()
	cfg.MicroBatches = 24 // worlds of 1 to 4, 6 and 8 share them: the examples take any number up to 4
	c := &cobra.Command{Use: "trainer", Short: "Run one rank of a small real training", Args: argCount(0, ""),
		Example: "  sluice job submit small --world 1-4 -- sluice trainer --max-steps 2000\n  sluice trainer --max-steps 100 --checkpoint-dir /tmp/run"}
	active, resident, scope := "0", "0", string(cfg.Scope)
	f := c.Flags()
	f.IntVar(&cfg.MicroBatches, "micro-batches", cfg.MicroBatches, "in each global batch; a multiple of every world size used")
	f.IntVar(&cfg.MicroBatchSamples, "micro-batch-samples", cfg.MicroBatchSamples, "samples in each micro-batch")
	f.Float64Var(&cfg.MicroMs, "micro-ms", cfg.MicroMs, "time of a micro-batch on a rank; 0 is as fast as it goes")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "of data and first parameters")
	f.IntVar(&cfg.Hidden, "hidden", cfg.Hidden, "hidden units; checkpoints grow with it")
	f.Float64Var(&cfg.LearningRate, "learning-rate", cfg.LearningRate, "of the optimizer")
	f.Float64Var(&cfg.Momentum, "momentum", cfg.Momentum, "of the optimizer")
	f.Int64Var(&cfg.MaxSteps, "max-steps", cfg.MaxSteps, "of the whole job; 0 trains until stopped")
	f.Int64Var(&cfg.SaveEverySteps, "save-every", cfg.SaveEverySteps, "steps between checkpoints; 0 saves only at the end")
	f.Int64Var(&cfg.SaveMs, "save-ms", cfg.SaveMs, "stretches a checkpoint, as a large one would take")
	f.Int64Var(&cfg.EvalEverySteps, "eval-every", cfg.EvalEverySteps, "steps between evaluations; 0 is none")
	f.Int64Var(&cfg.EvalMs, "eval-ms", cfg.EvalMs, "time of an evaluation")
	f.BoolVar(&cfg.NoProtocol, "no-protocol", cfg.NoProtocol, "stop by signal, as a job that knows nothing of sluice")
	f.StringVar(&cfg.CheckpointDir, "checkpoint-dir", cfg.CheckpointDir, "default: SLUICE_CHECKPOINT_DIR")
	f.StringVar(&scope, "scope", scope, "of checkpoints: node or shared")
	f.StringVar(&active, "active-memory", active, "memory on each simulated GPU while training")
	f.StringVar(&resident, "resident-memory", resident, "memory kept while yielded")
	f.StringVar(&cfg.StepLog, "step-log", cfg.StepLog, "prefix of files with this rank's own step counters")
	f.Int64Var(&cfg.JoinLimitMs, "join-limit-ms", cfg.JoinLimitMs, "how long ranks wait for each other at the start")
	f.Int64Var(&cfg.LogEverySteps, "log-every", cfg.LogEverySteps, "steps between lines for people, from rank 0")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := memoryFlags(c, active, resident, &cfg.ActiveBytes, &cfg.ResidentBytes); err != nil {
			return err
		}
		cfg.Scope = rank.Scope(scope)
		cfg.Log = c.OutOrStdout()
		if err := cfg.Validate(); err != nil {
			return &usageError{text: err.Error(), see: c.CommandPath()}
		}
		err := trainer.Run(c.Context(), cfg)
		if errors.Is(err, trainer.ErrConfig) {
			return &usageError{text: err.Error(), see: c.CommandPath()}
		}
		return err
	}
	return c
}
