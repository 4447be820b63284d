package engine

import (
	"errors"
	"fmt"
	"math"

	"sluice/bench/perf"
)

// ErrConfig: a field of Config cannot be; the text says which and why.
var ErrConfig = errors.New("engine: bad configuration")

// Config says what to serve and how fast. Start from Default.
type Config struct {
	Listen      string // host:port; port 0 takes a free one, see OnListen
	ServedModel string // the name requests must ask for

	Model string // measured profile, see perf.Keys
	GPU   string
	TP    int
	Speed float64 // simulated seconds a real second; divides every simulated time

	MaxBatch       int // sequences that run at once
	MaxWaiting     int // sequences that wait; the next one is refused with 503
	KVTokens       int // room of the KV cache
	MaxModelTokens int // prompt and output of one request; more is 400
	PrefillTokens  int // prompt tokens of one prefill iteration; one longer prompt goes alone

	ActiveBytes   int64 // mapped on each simulated GPU while awake
	ResidentBytes int64 // still mapped while asleep at level 1
	LoadMs        int64 // simulated time from start until healthy
	WakeMs        int64 // simulated time of /wake_up
	SleepMs       int64 // simulated time of /sleep, after the last request
	DrainMs       int64 // real time for running requests at the end of the process

	Seed           uint64 // of the text
	StreamInterval int    // tokens a streamed chunk, after the first token
	EmbeddingDims  int    // length of an embedding unless the request names one

	Messages bool // speak Anthropic's Messages API too
	Faults   bool // let requests ask for faults, see the package comment

	OnListen func(addr string) // called once with the bound address; may be nil
}

// Default returns a llama2-70b on two A100s at real speed.
func Default() Config {
	return Config{
		Listen: "127.0.0.1:8000", ServedModel: "sim",
		Model: "llama2-70b", GPU: "a100-80gb", TP: 2, Speed: 1,
		MaxBatch: 64, MaxWaiting: 256,
		// What 160 GB leave beside 140 GB of weights at 320 KiB a token: the
		// table's batch of 32 (20,480 tokens) still fitted, that of 64 did not.
		KVTokens: 32768, MaxModelTokens: 16384,
		PrefillTokens: 2048,
		ActiveBytes:   72 << 30, ResidentBytes: 2 << 30,
		LoadMs: 2000, WakeMs: 500, SleepMs: 200, DrainMs: 1000,
		Seed: 1, StreamInterval: 1, EmbeddingDims: 256,
	}
}

// maxDims bounds the embedding a request may ask for.
const maxDims = 8192

// Validate returns ErrConfig with every rule that is broken.
func (c Config) Validate() error {
	var broken []error
	rule := func(ok bool, format string, args ...any) {
		if !ok {
			broken = append(broken, fmt.Errorf(format, args...))
		}
	}
	rule(c.Listen != "", "Listen must be host:port")
	rule(c.ServedModel != "", "ServedModel must be a name")
	if _, err := perf.Lookup(c.Model, c.GPU, c.TP); err != nil {
		broken = append(broken, err)
	}
	rule(c.Speed > 0 && !math.IsInf(c.Speed, 0), "Speed must be above 0, not %v", c.Speed)
	rule(c.MaxBatch > 0, "MaxBatch must be above 0, not %d", c.MaxBatch)
	rule(c.MaxWaiting > 0, "MaxWaiting must be above 0, not %d", c.MaxWaiting)
	rule(c.MaxModelTokens > 1, "MaxModelTokens must be above 1, not %d", c.MaxModelTokens)
	rule(c.KVTokens >= c.MaxModelTokens, "KVTokens (%d) must hold one request of MaxModelTokens (%d)", c.KVTokens, c.MaxModelTokens)
	rule(c.PrefillTokens > 0, "PrefillTokens must be above 0, not %d", c.PrefillTokens)
	rule(c.ResidentBytes >= 0 && c.ActiveBytes >= c.ResidentBytes, "ActiveBytes (%d) must be at least ResidentBytes (%d), and that at least 0", c.ActiveBytes, c.ResidentBytes)
	rule(c.LoadMs >= 0 && c.WakeMs >= 0 && c.SleepMs >= 0 && c.DrainMs >= 0, "LoadMs, WakeMs, SleepMs and DrainMs must be at least 0")
	rule(c.StreamInterval > 0, "StreamInterval must be above 0, not %d", c.StreamInterval)
	rule(c.EmbeddingDims > 0 && c.EmbeddingDims <= maxDims, "EmbeddingDims must be 1 to %d, not %d", maxDims, c.EmbeddingDims)
	if broken == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrConfig, errors.Join(broken...))
}
