// Package load plays requests against an OpenAI-compatible gateway in an open
// loop: each is sent at its own time, however slow the answers are, and its
// latencies count from that intended time, so that a stalled server cannot hide
// its stall by slowing its clients.
//
//	results, err := load.Run(ctx, load.Config{Addr: "127.0.0.1:8080"}, requests, nil)
//
// The caller owes it requests sorted by AtMs. It sends to one address only and
// ends by itself: when all requests have ended, or when ctx does.
package load
