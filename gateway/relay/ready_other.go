//go:build !unix

package relay

import "syscall"

// ready has nothing to offer here: reads wait, and hold their room meanwhile.
type ready struct{}

func (k *conn) prepare(syscall.RawConn) {}

// quiet cannot look without blocking here; the retry on a fresh connection covers for it.
func (k *conn) quiet() bool { return true }

// each calls the owner's step until it is done.
func (k *conn) each() error {
	for !k.owner.step() { // ends: the step's read fails at its deadline
	}
	return nil
}

func (k *conn) read(p []byte) (int, error) { return k.Conn.Read(p) }

func (k *conn) cut() { k.close() }

func (k *conn) drained(n, room int) bool { return false }
