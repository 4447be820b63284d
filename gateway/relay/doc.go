// Package relay is an HTTP/1.1 client for one purpose: to pass a request's bytes to an engine and the answer's bytes
// back as they come, and to stop at once.
//
// One connection belongs to one [Exchange] from the first byte of the request to the last of the answer; nobody else
// reads or writes it, and nothing of it is pooled while it is in use. To cancel is to close: an engine that sees its
// connection close gives the slot back, and no later request can ever read an answer that was meant for another.
//
// It decides when a connection may be used again (the answer ended where its framing said, nothing follows, the
// engine wants to keep it), when a pooled one must not be (closed or speaking out of turn, seen by a read that does
// not block), and when to try again: once, on a fresh connection, if a pooled one died before any byte of an answer.
// All other retries are the caller's.
//
// An exchange that waits holds no buffer: Pump asks its caller for room when the poller says that bytes are there.
// A wait may be cut short (Hold) and gone on with (Await, Pump), so a caller can act while an answer is late.
//
// A caller owes an exchange its end: Finish, exactly once, whatever happened. Typical use:
//
//	var x relay.Exchange
//	err := client.Do(&x, &relay.Request{Addr: "10.0.0.7:8000", Method: "POST", Path: "/v1/completions", Body: parts})
//	for err == nil {
//		n, err = x.Read(buf)
//		// pass on buf[:n]
//	}
//	client.Finish(&x)
//
// Answers are parsed strictly, because what two parsers read differently can be used to smuggle: both Content-Length
// and Transfer-Encoding, differing lengths, other codings than chunked, malformed chunk sizes, bare line feeds in the
// head and folded headers are refused. Interim answers (1xx) are skipped. Redirects are answers like others and are
// never followed. What it does not do: TLS, HTTP/2, compression, cookies, proxies.
package relay
