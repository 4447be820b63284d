// Package rig is both ends of what is measured: a simulated engine and the clients, on one epoll loop in one thread.
// Prepared bytes, no goroutine a connection and no allocation a message keep it cheaper than any gateway between the
// two, and one clock for both ends gives a token's transit time and the moment an engine's connection is closed.
//
//	r, err := rig.New()
//	e, err := r.Listen("127.0.0.1:0")
//	e.Answer = rig.Answer{Body: rig.PlainAnswer(1024)}
//	c, err := r.Closed(rig.Target{Addr: gateway, Request: bytes}, 64)
//	r.Run(time.Second) // serves and asks
//	c.Close()
//
// Everything belongs to the goroutine that calls Run; nothing but Stop is safe for concurrent use. Times are nanoseconds of the
// rig's own monotone clock. The caller pins the process; the rig decides nothing about cores and reads no one's CPU.
//
// What it does not do: TLS, HTTP/2, request pipelining, chunked requests, names instead of addresses. Linux only.
package rig
