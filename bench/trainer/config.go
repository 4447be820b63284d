package trainer

import (
	"errors"
	"fmt"
	"io"
	"os"

	"sluice/nodes/rank"
)

// ErrConfig is wrapped by everything Validate refuses.
var ErrConfig = errors.New("trainer: bad configuration")

// Limits of one trainer.
const (
	MaxMicroBatches = 1024
	MaxHidden       = 4096
)

// Config of one rank. All ranks of a job, in all generations, need the same
// model, data and optimizer fields, or the curve is another one.
type Config struct {
	// MicroBatches in each global batch; a multiple of every world size used.
	MicroBatches int
	// MicroBatchSamples in each micro-batch.
	MicroBatchSamples int
	// MicroMs is how long a micro-batch takes on a rank, in milliseconds: the
	// real computation takes some 15 µs, the rest is waited for, against
	// absolute deadlines. 0 is unpaced.
	MicroMs float64
	// Seed of the data and of the first parameters.
	Seed uint64
	// Hidden units of the perceptron: a shard grows with it, some 400 bytes each.
	Hidden       int
	LearningRate float64
	Momentum     float64

	// MaxSteps of the whole job; 0 trains until stopped.
	MaxSteps int64
	// SaveEverySteps writes a checkpoint; 0 only when stopped or finished.
	SaveEverySteps int64
	// SaveMs stretches the writing of a shard, as a large one would take.
	SaveMs int64
	// EvalEverySteps and EvalMs make a pause far from any step boundary, in the
	// eval phase; 0 is none.
	EvalEverySteps int64
	EvalMs         int64

	// NoProtocol ignores SLUICE_SOCKET: signals stop the gang, and it finds its
	// checkpoints itself. Without a socket this is so too.
	NoProtocol bool
	// CheckpointDir; empty takes SLUICE_CHECKPOINT_DIR.
	CheckpointDir string
	// Scope reported for shards.
	Scope rank.Scope

	// ActiveBytes and ResidentBytes on each simulated GPU while training and
	// while yielded; 0 allocates nothing.
	ActiveBytes   int64
	ResidentBytes int64

	// StepLog, when set, is the prefix of this rank's own step counters: JSON
	// lines appended to StepLog + ".rank-N".
	StepLog string
	// JoinLimitMs is how long ranks wait for each other at the start.
	JoinLimitMs int64
	// ExchangeLimitMs is how long a rank waits for its peers within one step;
	// a controller may hold a gang for long, so it is no failure detector.
	ExchangeLimitMs int64

	// Log takes lines for people, from rank 0 every LogEverySteps; nil is none.
	Log           io.Writer
	LogEverySteps int64
	// Getenv replaces os.Getenv; ranks within one process need their own.
	Getenv func(string) string
	// Stop, closed, acts as the stop signal without the protocol.
	Stop <-chan struct{}
}

// Default is a trainer of 16 micro-batches of 8 samples, 2 ms each.
func Default() Config {
	return Config{
		MicroBatches: 16, MicroBatchSamples: 8, MicroMs: 2, Seed: 1, Hidden: 32, LearningRate: 0.05, Momentum: 0.9,
		MaxSteps: 1000, SaveEverySteps: 100, Scope: rank.ScopeNode,
		JoinLimitMs: 60_000, ExchangeLimitMs: 3_600_000, LogEverySteps: 50, Getenv: os.Getenv,
	}
}

// Validate says what is wrong, a rule a line. It does not need an environment.
func (c Config) Validate() error {
	rules := []struct {
		ok  bool
		why string
	}{
		{c.MicroBatches >= 1 && c.MicroBatches <= MaxMicroBatches, fmt.Sprintf("MicroBatches must be 1 to %d", MaxMicroBatches)},
		{c.MicroBatchSamples >= 1, "MicroBatchSamples must be at least 1"},
		{c.MicroMs >= 0 && c.MicroMs < 1e6, "MicroMs must be 0 or more, and below 1e6"},
		{c.Hidden >= 1 && c.Hidden <= MaxHidden, fmt.Sprintf("Hidden must be 1 to %d", MaxHidden)},
		{c.LearningRate > 0 && c.Momentum >= 0 && c.Momentum < 1, "LearningRate must be above 0 and Momentum within [0, 1)"},
		{c.MaxSteps >= 0 && c.SaveEverySteps >= 0 && c.SaveMs >= 0, "MaxSteps, SaveEverySteps and SaveMs must not be negative"},
		{c.EvalEverySteps >= 0 && c.EvalMs >= 0, "EvalEverySteps and EvalMs must not be negative"},
		{c.Scope == rank.ScopeNode || c.Scope == rank.ScopeShared, `Scope must be "node" or "shared"`},
		{c.ActiveBytes >= c.ResidentBytes && c.ResidentBytes >= 0, "ActiveBytes must be at least ResidentBytes"},
		{c.JoinLimitMs > 0 && c.ExchangeLimitMs > 0, "JoinLimitMs and ExchangeLimitMs must be above 0"},
		{c.Getenv != nil, "Getenv must be set (Default does)"},
	}
	for _, r := range rules {
		if !r.ok {
			return fmt.Errorf("%w: %s", ErrConfig, r.why)
		}
	}
	return nil
}

// checkWorld refuses a world size that would change the global batch.
func (c Config) checkWorld(world int) error {
	if world < 1 || c.MicroBatches%world != 0 {
		var allowed []int
		for w := 1; w <= c.MicroBatches; w++ {
			if c.MicroBatches%w == 0 {
				allowed = append(allowed, w)
			}
		}
		return fmt.Errorf("%w: world size %d does not divide %d micro-batches; use one of %v", ErrConfig, world, c.MicroBatches, allowed)
	}
	return nil
}

// curve names what shapes the loss curve; ranks that differ in it do not join.
func (c Config) curve() string {
	return fmt.Sprintf("%d×%d samples, seed %d, hidden %d, rate %g, momentum %g",
		c.MicroBatches, c.MicroBatchSamples, c.Seed, c.Hidden, c.LearningRate, c.Momentum)
}
