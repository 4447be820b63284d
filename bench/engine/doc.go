// Package engine is a simulated inference engine: a process that speaks the
// OpenAI API, vLLM's health, metrics and sleep endpoints, and takes the time a
// real engine takes, from times measured on real GPUs (bench/perf).
//
// It decides when each token of each request appears. Batching is continuous:
// one iteration is either the prefill of waiting requests that fit (up to
// PrefillTokens together, or one longer prompt) or one decode step for all
// running ones; prefill goes first. A request is admitted when the KV cache has
// room for its prompt and its whole output, so nothing is ever preempted. The
// waiting queue is bounded; beyond it the answer is 503 with Retry-After. A
// client that leaves frees its slot at once.
//
// Iterations end at absolute deadlines, so a late timer does not add up. All
// simulated times are divided by Speed.
//
// Output is deterministic: the text by Seed and prompt, its length max_tokens
// where given (as with ignore_eos; there is no end-of-text before it), else 16
// to 256 by prompt. A prompt has one token for every four bytes of content,
// rounded up.
//
// On simulated GPUs (see nodes/simgpu; found through the environment) it maps
// ActiveBytes on each while awake and ResidentBytes while asleep, and is the
// active holder from load until sleep. A wake-up that does not get everything
// gives back what it took, answers 500 and stays asleep. A lost GPU ends the
// process with an error.
//
// Callers owe it a context that ends when the process should:
//
//	cfg := engine.Default()
//	cfg.Listen, cfg.ServedModel, cfg.Speed = "127.0.0.1:8001", "chat", 10
//	err := engine.Run(ctx, cfg) // returns nil after ctx ended
//
// # The surface
//
// Chats and completions with n, logprobs, tools and response_format;
// embeddings (floats or base64), responses (create, stream, background, get,
// cancel, delete; the last 256 are kept), rerank, score, tokenize and
// detokenize, audio transcriptions and translations, and with Messages the
// Anthropic API too. Usage is what was counted.
//
// An answer calls tools when the last message is the user's and contains
// "call:NAME" for a tool that is declared, once for every such mark, or when
// tool_choice demands it. Arguments are made from the tool's schema: every
// property, in the order of names, strings of words, lists of one item. JSON
// that response_format asks for is made alike. Such an answer has an end of its
// own, which max_tokens only bounds; a token of it is four bytes. The choices of
// n are decoded in turn, as one sequence.
//
// With Faults, the last message (or the prompt) may ask for something to go
// wrong: "fault:KIND" every time, "fault:KIND/KEY" the first time that KEY is
// seen. KIND is
//
//	refuse-429, refuse-500, refuse-503   an error in time, with Retry-After: 1 (not 500)
//	die                                  the connection is cut after three tokens
//	stall                                three tokens, then nothing until the client leaves
//	error-object, error-event,           three tokens, then an error of that shape:
//	error-string, error-flat             as vLLM, SGLang and others tell it
//
// It does not compute anything, and knows no stop sequences, no prefix cache
// and no LoRA: such fields are ignored.
package engine
