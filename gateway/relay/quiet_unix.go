//go:build unix

package relay

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// watch prepares quiet.
func (k *conn) watch(raw syscall.RawConn) {
	k.raw = raw
	// poll and not a peeking recv: that one allocates in Go. Anything there, an end included, is not quiet.
	fds := make([]unix.PollFd, 1)
	k.probe = func(fd uintptr) bool {
		fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		n, err := unix.Poll(fds, 0)
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
