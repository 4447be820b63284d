// Package gateway is the data port: it takes requests of the OpenAI API and of Anthropic's Messages API, sends each to
// the replica that the router names, and passes the answer back byte by byte.
//
// # Reading order
//
//   - server.go: the listener, start, [Server.Shutdown]
//   - handle.go: the order of a request: route, authenticate, scan the head, charge limits, pick or queue, relay, account
//   - call.go, attempt.go: what a request holds, and what each of its tries does
//   - deadline.go, hedge.go, waits.go: how long a try may take, and when a second one runs beside it
//   - upstream.go: what an engine is sent, and when another replica is tried
//   - answer.go, stream.go: how an answer reaches the client; messages.go: when it is translated on the way
//   - accept.go, conn.go, bodies.go: client connections, and what their bodies may hold; package hangup: how a client's departure is noticed
//   - limits.go, metrics.go, models.go: what limits keys and tenants (package quota decides), the books, the model list
//   - observe.go: what is told of each request, and its trace; packages record and sink say and send it
//   - sound.go, cors.go: which requests are too ambiguous to read, and what browsers are told
//   - endpoint.go, names.go: the table of inference paths; what a model's name in a request stands for
//   - inflate.go, vectors.go, kept.go: gzip bodies, the form of embeddings, responses that an engine keeps
//
// # What it decides
//
// Whether a request may pass (key, model, limits), what the engine must see other than the client sent (the model's name
// there, include_usage), whether a failed try is repeated elsewhere (only while no byte of an answer has reached the
// client, within a budget), whether a late one gets a second beside it (interactive requests only, likewise), and how
// every ending is told: each request ends in exactly one slo.Outcome. Answers are relayed as bytes; see package wire for
// the exceptions. Messages for engines that know chat completions only are translated both ways; see package anthropic
// for what that decides.
//
// A request is charged to the limits of its key and tenant after its body was scanned and before a replica is looked
// for; what becomes of it then, it counts as a request, and its tokens are settled when it ends. Tokens of a stream that
// broke or was left are those that were streamed; an answer that should have come whole and did not costs none.
//
// # What its caller owes it
//
//	srv, err := gateway.New(cfg, gateway.Deps{Router: gateway.FromOwn(r, table), Keys: keys, Observer: observer})
//	if err != nil { … }
//	go srv.Serve(listener)
//	…
//	srv.Shutdown(ctx) // streams finish within ctx; then what is left is cut with an error event
//
// Every few seconds Server.TakeUsage is made fact and Server.SyncUsage told what the facts are, or budgets are forgotten
// with the process. Without keys the listener must be loopback, or Serve refuses. The Observer is called from many
// goroutines and must not block. Deps.Records is closed after Shutdown, so that the last requests are told too.
//
// # Choices
//
// A client that closes its sending side counts as gone, as with nginx: nothing else can be told from a closed browser.
// A stream's head goes out with the first event that carries content, an end, usage or anything else but a role; chunks
// that only name a role are held until then. So a replica that fails before that costs the client nothing. Comments are
// not held: once one has gone out, the stream stays with its replica. An error event of an odd shape is told in the
// client's dialect, with the engine's message; one that SDKs understand goes on as it is; either ends the stream. A
// stream that ends in order without [DONE] after a finish reason gets one. Of Content-Encodings gzip is decoded, within the
// body limit; others are refused with 415. A form passes as it came, in the one copy that was read. Request headers go to the engine by an allow list (traceparent and tracestate; the rest is set here).
//
// What it does not do: TLS and HTTP/2 (terminate them in front), probing engines, storing keys, serving /metrics (the
// control port does, from the set in Deps).
package gateway
