package relay

import (
	"errors"

	"sluice/gateway/sock"
)

// ready is how a connection is read when bytes are there, and looked at without waiting.
type ready struct {
	fd    int                   // during step only
	step  func(fd uintptr) bool // made once, so that each allocates nothing
	probe func(fd uintptr) bool // made once, so that quiet allocates nothing
	one   [1]byte               // for the probe
	calm  bool                  // what the probe found
}

// prepare must be called once, before the connection is used.
func (k *conn) prepare() {
	k.step = func(fd uintptr) bool {
		k.fd = int(fd)
		return k.owner.step()
	}
	k.probe = func(fd uintptr) bool {
		k.fd = int(fd)
		k.calm = k.silent() == nil
		return true
	}
}

// quiet reports that an idle connection is open and silent, by a look that does not wait. An engine that closed it, or
// sent something that nobody asked for, makes it useless. Where there is no such look, the retry on a fresh connection
// covers for it.
func (k *conn) quiet() bool {
	if !k.Direct() {
		return true
	}
	k.calm = false
	return k.Each(k.probe) == nil && k.calm
}

// silent is for steps. It returns nil for a connection that is open and has nothing to read. io.EOF or another error says
// that it is over, errStale that bytes are there which nobody asked for.
func (k *conn) silent() error {
	if !k.Direct() {
		return nil
	}
	switch _, err := sock.ReadNow(k.fd, k.one[:]); {
	case err == nil:
		return errStale
	case errors.Is(err, sock.ErrWait):
		return nil
	default:
		return err
	}
}

// write is for steps. It writes what there is room for; less than all comes with sock.ErrWait or another error.
func (k *conn) write(p []byte) (n int, err error) {
	if !k.Direct() {
		return k.Write(p)
	}
	for n < len(p) && err == nil { // ends: each turn writes something, or fails
		var m int
		m, err = sock.WriteNow(k.fd, p[n:])
		n += m
	}
	return n, err
}

// each calls the owner's step now, and then whenever bytes may be there, until it is done or the deadline has come.
func (k *conn) each() error {
	if !k.Direct() {
		for !k.owner.step() { // ends: the step's read fails at its deadline
		}
		return nil
	}
	err := k.Each(k.step)
	for err != nil && k.wake(err) { // ends: wake says yes once
		err = k.Each(k.step)
	}
	return err
}

// drained reports that a read which filled n of room bytes has taken all there was, so that the next one can wait for
// the poller's word.
func (k *conn) drained(n, room int) bool { return n < room && k.watched && !k.hung.Load() }

// read is for steps. It never waits: without bytes it returns sock.ErrWait.
func (k *conn) read(p []byte) (int, error) {
	if !k.Direct() {
		return k.Read(p)
	}
	return sock.ReadNow(k.fd, p)
}
