//go:build unix

package relay

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// watch prepares quiet.
func (k *conn) watch(raw syscall.RawConn) {
	k.raw = raw
	var one [1]byte
	k.probe = func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		k.calm = err == unix.EAGAIN
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
