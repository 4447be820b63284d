// Package sock reads and writes TCP connections at less cost than package net, with the same meaning. It decides when the
// kernel is asked:
//
//   - Sockets never block, so their calls need not tell the scheduler that they might ([ReadNow], [WriteNow]).
//   - A deadline that moves on is not told to the poller each time. The poller's timer may fire early; then it is set to
//     the deadline of that moment and the waiting goes on ([Conn.SetReadDeadline]).
//   - A reader may run each time bytes are there, and hold no room while it waits ([Conn.Each]).
//
// Example:
//
//	c := sock.Wrap(accepted)
//	c.SetReadDeadline(time.Now().Add(time.Minute)) // cheap, each time
//	n, err := c.Read(buf)
//
// Its caller owes it one reader and one writer at a time, as with net.Conn. Connections without a descriptor (pipes, TLS)
// and systems other than Linux work the plain way. It does not buffer, frame, or watch for departures.
package sock
