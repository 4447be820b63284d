// Package hangup tells when the other end of a connection has closed it, whatever the connection's users are doing: they
// may wait for something else, or not read at all.
//
// One epoll set holds all connections, each added once and removed by its closing. The set itself lies in Go's poller,
// so a quiet watcher costs neither a thread nor a wake-up, and a busy connection nothing: bytes are not reported.
//
//	w, err := hangup.New()
//	id, ok := w.Add(conn, peer) // peer.Left is called once the other end has closed
//	…
//	w.Remove(id)                // before or after conn is closed
//	w.Close()
//
// A caller owes Remove for each Add. Left is called from the watcher's goroutine and must not block; it may still be
// called while Remove runs. What it does not do: report bytes, or closings by this end. Where there is no epoll nothing
// is watched, and Add says so.
package hangup
