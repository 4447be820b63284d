// Package wire reads and writes the bytes that pass a gateway, and nothing else: no socket, clock, lock or goroutine.
//
// It decides
//
//   - what a request asks for, by one pass over its raw JSON body ([Head.Scan]), and where bytes must be spliced to
//     rename the model or to ask an engine for usage ([Head.AppendEdits]); the body is never decoded or re-encoded;
//   - where the events of a server-sent event stream begin and end ([Framer]), what each says ([ReadEvent]), and
//     which bytes of the stream go to the client ([Stream.Feed]);
//   - the same for multipart forms ([Head.ScanForm]);
//   - how many tokens an answer reports ([UsageScanner]), and in which form its vectors are ([Vectors]);
//   - how to look into JSON without decoding it ([Members], [Elements]), and whether it is valid ([Valid]);
//   - what an error looks like ([AppendError], [AppendErrorEvent]).
//
// A caller owes it the bytes in order, and that it does not change a buffer while a result still points into it; each
// method says how long its results live. A typical request:
//
//	var head wire.Head
//	if err := head.Scan(body); err != nil {
//		return wire.AppendError(nil, wire.Error{Message: err.Error(), Type: wire.TypeInvalidRequest})
//	}
//	parts := head.AppendEdits(nil, body, wire.Edits{Model: "llama-70b-v2", IncludeUsage: head.Stream})
//
// What it does not do: it does not check what engines check themselves (string contents, roles, ranges of sampling
// parameters), it knows no HTTP, and it keeps no text of any answer.
//
// Nothing here is safe for concurrent use unless it says so; all types are ready as zero values. Steady state
// allocates nothing.
package wire
