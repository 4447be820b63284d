//go:build unix

package relay

import "golang.org/x/sys/unix"

// cut ends the connection for whoever uses it, without waiting for them as closing would: a step may be writing to a
// client that does not read. The owner closes it.
func (k *conn) cut() {
	raw, err := k.SyscallConn()
	if err != nil {
		k.close()
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}
