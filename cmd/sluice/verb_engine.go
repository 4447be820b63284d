package main

import (
	"errors"

	"github.com/spf13/cobra"

	"sluice/bench/engine"
)

// newEngineCmd runs the simulated engine: an OpenAI-compatible server with the
// measured speed of a large model and no weights.
func newEngineCmd() *cobra.Command {
	cfg := engine.Default()
	c := &cobra.Command{Use: "engine", Short: "Run the simulated engine", Args: argCount(0, ""),
		Example: "  sluice engine --listen 127.0.0.1:8000 --served-model chat\n  sluice engine --listen 127.0.0.1:{{port}} --speed 8 --active-memory 20GiB --resident-memory 1GiB"}
	var active, resident string
	f := c.Flags()
	f.StringVar(&cfg.Listen, "listen", cfg.Listen, "host:port")
	f.StringVar(&cfg.ServedModel, "served-model", cfg.ServedModel, "name that requests ask for")
	f.StringVar(&cfg.Model, "model", cfg.Model, "measured profile: llama2-70b or bloom-176b")
	f.StringVar(&cfg.GPU, "gpu", cfg.GPU, "measured on: a100-80gb or h100-80gb")
	f.IntVar(&cfg.TP, "tp", cfg.TP, "measured with this tensor parallelism: 2, 4 or 8")
	f.Float64Var(&cfg.Speed, "speed", cfg.Speed, "simulated seconds a real second")
	f.IntVar(&cfg.MaxBatch, "max-batch", cfg.MaxBatch, "sequences that run at once")
	f.IntVar(&cfg.MaxWaiting, "max-waiting", cfg.MaxWaiting, "sequences that wait; the next is refused with 503")
	f.IntVar(&cfg.KVTokens, "kv-tokens", cfg.KVTokens, "room of the KV cache, in tokens")
	f.IntVar(&cfg.MaxModelTokens, "max-model-tokens", cfg.MaxModelTokens, "prompt and output of one request")
	f.IntVar(&cfg.PrefillTokens, "prefill-tokens", cfg.PrefillTokens, "prompt tokens of one prefill iteration")
	f.StringVar(&active, "active-memory", bytesText(cfg.ActiveBytes), "memory on each simulated GPU while awake")
	f.StringVar(&resident, "resident-memory", bytesText(cfg.ResidentBytes), "memory still kept while asleep")
	f.Int64Var(&cfg.LoadMs, "load-ms", cfg.LoadMs, "simulated time until healthy")
	f.Int64Var(&cfg.WakeMs, "wake-ms", cfg.WakeMs, "simulated time to wake up")
	f.Int64Var(&cfg.SleepMs, "sleep-ms", cfg.SleepMs, "simulated time to fall asleep")
	f.Int64Var(&cfg.DrainMs, "drain-ms", cfg.DrainMs, "real time for running requests at the end")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "of the text")
	f.IntVar(&cfg.StreamInterval, "stream-interval", cfg.StreamInterval, "tokens of a streamed chunk")
	f.IntVar(&cfg.EmbeddingDims, "embedding-dims", cfg.EmbeddingDims, "length of an embedding")
	f.BoolVar(&cfg.Messages, "messages", false, "speak Anthropic's Messages API too")
	f.BoolVar(&cfg.Faults, "faults", false, "let requests ask for faults (\"fault:KIND\" in the last message), for tests")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := memoryFlags(c, active, resident, &cfg.ActiveBytes, &cfg.ResidentBytes); err != nil {
			return err
		}
		if err := cfg.Validate(); err != nil {
			return &usageError{text: err.Error(), see: c.CommandPath()}
		}
		return ended(c, engine.Run(c.Context(), cfg))
	}
	return c
}

// memoryFlags reads --active-memory and --resident-memory.
func memoryFlags(c *cobra.Command, active, resident string, activeBytes, residentBytes *int64) (err error) {
	if *activeBytes, err = parseSize(active); err != nil {
		return &usageError{text: "--active-memory: " + err.Error(), see: c.CommandPath()}
	}
	if *residentBytes, err = parseSize(resident); err != nil {
		return &usageError{text: "--resident-memory: " + err.Error(), see: c.CommandPath()}
	}
	return nil
}

// ended takes the end that was asked for by a signal for success.
func ended(c *cobra.Command, err error) error {
	if c.Context().Err() != nil && errors.Is(err, c.Context().Err()) {
		return nil
	}
	return err
}
