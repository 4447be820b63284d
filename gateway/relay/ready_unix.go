//go:build unix

package relay

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// ready is how a connection is read when bytes are there, and looked at without waiting.
type ready struct {
	raw   syscall.RawConn       // nil for a connection without a descriptor
	fd    int                   // during step only
	step  func(fd uintptr) bool // made once, so that each allocates nothing
	probe func(fd uintptr) bool // made once, so that quiet allocates nothing
	fds   [1]unix.PollFd        // of the probe
	calm  bool                  // what the probe found
}

// prepare must be called once, before the connection is used.
func (k *conn) prepare(raw syscall.RawConn) {
	k.raw = raw
	k.step = func(fd uintptr) bool {
		k.fd = int(fd)
		return k.owner.step()
	}
	// poll and not a peeking recv: that one allocates in Go. Anything there, an end included, is not quiet.
	k.probe = func(fd uintptr) bool {
		k.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		n, err := unix.Poll(k.fds[:], 0)
		k.calm = n == 0 && err == nil
		return true
	}
}

// quiet reports that an idle connection is open and silent, by a look that does not block. An engine that closed it,
// or sent something that nobody asked for, makes it useless.
func (k *conn) quiet() bool {
	if k.raw == nil {
		return true
	}
	k.calm = false
	if k.raw.Read(k.probe) != nil {
		return false
	}
	return k.calm
}

// each calls the owner's step now, and then whenever bytes may be there, until it is done or the deadline has come.
func (k *conn) each() error {
	if k.raw == nil {
		for !k.owner.step() {
		}
		return nil
	}
	err := k.raw.Read(k.step)
	for err != nil && k.wake(err) { // ends: wake says yes once
		err = k.raw.Read(k.step)
	}
	return err
}

// drained reports that a read which filled n of room bytes has taken all there was, so that the next one can wait for
// the poller's word.
func (k *conn) drained(n, room int) bool { return n < room && k.watched && !k.hung.Load() }

// read is for steps. It never waits: without bytes it returns errWait.
func (k *conn) read(p []byte) (int, error) {
	if k.raw == nil {
		return k.Conn.Read(p)
	}
	for {
		n, err := unix.Read(k.fd, p)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return 0, errWait
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// cut ends the connection for whoever uses it, without waiting for them as closing would: a step may be writing to a
// client that does not read. The owner closes it.
func (k *conn) cut() {
	if k.raw == nil {
		k.close()
		return
	}
	_ = k.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}
