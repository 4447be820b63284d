// Package anthropic speaks Anthropic's Messages API for engines that know chat completions only. It is pure: bytes in,
// bytes out.
//
// It decides
//
//   - what a Messages request means as a chat completions request ([AppendChat]), and which requests mean something
//     that no such request can say: those are refused with a [wire.BodyError] that names the field;
//   - what a chat completion means as a message ([AppendMessage]), and a stream of its chunks as a stream of a
//     message's events ([Stream]);
//   - what errors look like ([AppendError], [AppendErrorEvent]), and how many tokens a request has when no engine
//     counts them ([EstimateTokens]).
//
// A caller owes it whole bodies, and streams in order, in pieces of any size: the same bytes in other pieces give the
// same answer. A typical request:
//
//	chat, want, err := anthropic.AppendChat(nil, body)
//	if err != nil { … 400 … }
//	// send chat to the engine; then, for each piece of a streamed answer,
//	s.Begin(anthropic.Answer{ID: requestID, Model: model, Wanted: want})
//	out = s.Feed(out[:0], piece)
//	…
//	out = s.End(out[:0]) // the answer ended in order
//
// # Choices
//
// Nothing is dropped that would change what the model is asked or what it said. Hints about cost and caching
// (cache_control, service_tier, speed, context_management, eager_input_streaming) change neither and are ignored.
// Fields that neither API knows go to the engine as they are, so extensions of engines can be used; fields that mean
// something in chat completions must be written as the Messages API writes them, so that there is one way. In nested
// objects unknown fields are refused.
//
// A tool's result that failed (is_error) begins with "Error: ", and its images go into the user's message that follows,
// since a tool's message holds text only. Several text blocks of a user, a tool or the system become one text with
// blank lines between; those of an assistant are one text already and are joined as they are. An assistant's message at
// the end is continued (continue_final_message, which vLLM and SGLang know; llama.cpp does it by itself). Thinking maps
// to reasoning_content both ways, whether or not it was asked for: what was paid for is shown. Engines sign nothing, so
// signatures are empty and those that come back are not checked.
//
// In a stream blocks follow each other, one open at a time. What belongs to a later block waits, within MaxHeldBytes;
// a tool's block ends when its arguments are a complete object and another block waits. Fragments of tool calls are
// told apart by id, then by index; where neither tells (no index, or the same for all, in calls that overlap) the
// stream ends with an error: two calls are never glued together.
//
// What it does not do: it knows no HTTP, checks no role order and no ranges (engines do), and does not fetch images.
//
// Types are not safe for concurrent use. The zero Stream is ready.
package anthropic
