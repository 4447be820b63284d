//go:build !unix

package relay

import "syscall"

func (k *conn) watch(syscall.RawConn) {}

// quiet cannot look without blocking here; the retry on a fresh connection covers for it.
func (k *conn) quiet() bool { return true }
