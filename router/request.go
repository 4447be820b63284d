package router

import (
	"errors"
	"fmt"
	"math"

	"sluice/slo"
)

// Errors of the choice. A *Refusal is the third kind.
var (
	// ErrUnknownModel: no model has this name or alias. The client must change its request.
	ErrUnknownModel = errors.New("router: unknown model")
	// ErrLeaseRefused is returned by a Leaser whose agent is about to sleep or stop the engine: the replica is not
	// chosen any more, and its lease goes back when nothing is in flight.
	ErrLeaseRefused = errors.New("router: lease refused")
)

// Request is what the choice needs to know. The router does not keep it after Acquire returned.
type Request struct {
	Model        string // name or alias
	Version      string // the only version that may take it; empty: any
	Only         string // the only replica, by id, that may take it; empty: any
	Class        slo.Class
	Tenant       string
	TenantWeight float64 // share between tenants; 0 is read as 1
	PromptTokens int
	MaxTokens    int      // output limit, or the caller's estimate; 0 when unknown
	WorkMs       float64  // engine time predicted for it; 0: estimated from the tokens
	DeadlineMs   int64    // fleet time after which a first byte is of no use; 0: none but the router's own limit
	Prefix       []uint64 // block hashes of the prompt, from prefix.Hash; nil: no affinity
	BlockTokens  int      // prompt tokens a block of Prefix stands for; 0 is read as DefaultBlockTokens
	Exclude      []string // replica ids already tried
}

// Constants of the work estimate.
const (
	// DefaultBlockTokens: blocks of 256 bytes, about 4 bytes a token.
	DefaultBlockTokens = 64
	// msPerToken of prefill, before anything is learned: a 70B model on two H100.
	msPerToken = 0.1
	// outputWeight: an output token's share of a decode step, in prompt tokens.
	outputWeight = 8
	// unknownOutput tokens are assumed when the request does not limit them, and at most.
	unknownOutput = 256
)

// weights returns the prompt and the whole request in prompt tokens of work.
func (r *Request) weights() (prompt, all float64) {
	out := r.MaxTokens
	if out <= 0 || out > unknownOutput {
		out = unknownOutput
	}
	prompt = float64(max(1, r.PromptTokens))
	return prompt, prompt + float64(outputWeight*out)
}

// Work is the predicted engine time of the request on a replica of average speed, ms.
func (r *Request) Work() float64 {
	if r.WorkMs > 0 {
		return r.WorkMs
	}
	_, all := r.weights()
	return msPerToken * all
}

// saved is the work that a cached prefix of so many blocks saves, never more than the whole prompt's.
func (r *Request) saved(blocks int) float64 {
	perBlock := r.BlockTokens
	if perBlock <= 0 {
		perBlock = DefaultBlockTokens
	}
	prompt, all := r.weights()
	return r.Work() * min(float64(blocks*perBlock), prompt) / all
}

func (r *Request) excludes(id string) bool {
	for _, e := range r.Exclude {
		if e == id {
			return true
		}
	}
	return false
}

// Refusal is an honest no. Outcome names it in metrics, Code in the answer's body.
type Refusal struct {
	Code         string // stable: "queue_full", "deadline", "no_replica"
	Outcome      slo.Outcome
	RetryAfterMs int64 // when a retry is likely to be served; at least 1
	Message      string
}

// Error implements error.
func (r *Refusal) Error() string {
	return fmt.Sprintf("router: %s: %s (retry after %d ms)", r.Code, r.Message, r.RetryAfterMs)
}

// Refuse builds the refusal of an outcome.
func Refuse(outcome slo.Outcome, retryAfterMs int64, message string) *Refusal {
	code := "no_replica"
	switch outcome {
	case slo.RefusedQueueFull:
		code = "queue_full"
	case slo.RefusedDeadline:
		code = "deadline"
	}
	return &Refusal{Code: code, Outcome: outcome, RetryAfterMs: max(1, retryAfterMs), Message: message}
}

// Bounds of RetryAfterMs.
const (
	MinRetryAfterMs = 250
	MaxRetryAfterMs = 60_000
)

// Coming is capacity on its way: so many replicas in EtaMs from now. The zero value is none.
type Coming struct {
	EtaMs    int64
	Replicas int
}

// WaitMs is how long a queue with so many ahead takes to drain at drainPerS requests a second, faster by the share of
// capacity that is on its way once that has come; now is how many replicas serve. +Inf when nothing drains or comes.
func WaitMs(ahead int, drainPerS float64, now int, coming Coming) float64 {
	n, waitMs := float64(max(0, ahead)), math.Inf(1)
	if drainPerS > 0 {
		waitMs = n / drainPerS * 1000
	}
	if coming.Replicas <= 0 {
		return waitMs
	}
	eta := float64(max(0, coming.EtaMs))
	switch {
	case drainPerS <= 0 || now <= 0:
		waitMs = eta
	case waitMs > eta:
		left := n - drainPerS*eta/1000
		faster := drainPerS * float64(now+coming.Replicas) / float64(now)
		waitMs = eta + left/faster*1000
	}
	return waitMs
}

// RetryAfterMs is how long a refused client should stay away: WaitMs of the queue with itself in it, within bounds.
func RetryAfterMs(queueDepth int, drainPerS float64, now int, coming Coming) int64 {
	return BoundRetryMs(WaitMs(queueDepth+1, drainPerS, now, coming))
}

// BoundRetryMs holds a wait within MinRetryAfterMs and MaxRetryAfterMs.
func BoundRetryMs(waitMs float64) int64 {
	return int64(max(MinRetryAfterMs, min(MaxRetryAfterMs, waitMs)))
}
