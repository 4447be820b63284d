package sock

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrWait is returned by ReadNow and WriteNow when the socket has nothing to read, or no room, at this moment.
var ErrWait = errors.New("sock: not ready")

// Conn is a connection that saves calls. Make it with Wrap. Close and the deadlines are safe from any goroutine; one
// goroutine may read while another one writes.
type Conn struct {
	net.Conn
	raw   syscall.RawConn // nil: reads and writes go through Conn
	read  transfer
	write transfer
}

// transfer is one direction.
type transfer struct {
	limit limit
	p     []byte
	n     int
	err   error
	step  func(fd uintptr) bool // made once, so that a call allocates nothing
}

// Wrap makes nc cheaper. The caller uses nc no more.
func Wrap(nc net.Conn) *Conn {
	c := &Conn{Conn: nc}
	if !direct {
		return c
	}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return c
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return c
	}
	c.raw = raw
	c.read.step = c.readStep
	c.write.step = c.writeStep
	return c
}

// SyscallConn implements syscall.Conn; nil without a descriptor.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if c.raw == nil {
		return nil, errors.ErrUnsupported
	}
	return c.raw, nil
}

// Direct reports that Each and the calls without waiting work on c.
func (c *Conn) Direct() bool { return c.raw != nil }

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if c.raw == nil || len(p) == 0 {
		return c.Conn.Read(p)
	}
	t := &c.read
	t.p, t.n, t.err = p, 0, nil
	err := c.Each(t.step)
	t.p = nil
	if err != nil {
		return t.n, err
	}
	return t.n, t.err
}

func (c *Conn) readStep(fd uintptr) bool {
	t := &c.read
	t.n, t.err = ReadNow(int(fd), t.p)
	return !errors.Is(t.err, ErrWait)
}

// Each calls step at once, and again whenever there may be something to read, until it returns true. It returns an error
// when the connection is closed, or at the read deadline with os.ErrDeadlineExceeded. Only for Direct connections.
func (c *Conn) Each(step func(fd uintptr) bool) error {
	for { // ends: the poller fires early once for a deadline that has moved
		err := c.raw.Read(step)
		if err == nil || !c.read.limit.early(err) {
			return err
		}
		if err := c.read.limit.tell(c.Conn.SetReadDeadline); err != nil {
			return err
		}
	}
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	if c.raw == nil || len(p) == 0 {
		return c.Conn.Write(p)
	}
	t := &c.write
	t.p, t.n, t.err = p, 0, nil
	err := c.flush()
	t.p = nil
	if err == nil {
		err = t.err
	}
	return t.n, err
}

// WriteBuffers writes all of v in as few calls as it takes, and consumes it as net.Buffers.WriteTo does.
func (c *Conn) WriteBuffers(v *net.Buffers) (int64, error) {
	if c.raw != nil && c.write.limit.told.Load() != 0 {
		if err := c.write.limit.tell(c.Conn.SetWriteDeadline); err != nil {
			return 0, err
		}
	}
	return v.WriteTo(c.Conn)
}

func (c *Conn) flush() error {
	for { // ends as Each does
		err := c.raw.Write(c.write.step)
		if err == nil || !c.write.limit.early(err) {
			return err
		}
		if err := c.write.limit.tell(c.Conn.SetWriteDeadline); err != nil {
			return err
		}
	}
}

func (c *Conn) writeStep(fd uintptr) bool {
	t := &c.write
	for t.n < len(t.p) { // ends: each turn writes something, or leaves
		n, err := WriteNow(int(fd), t.p[t.n:])
		t.n += n
		if errors.Is(err, ErrWait) {
			return false
		}
		if t.err = err; err != nil {
			return true
		}
		if n == 0 {
			t.err = io.ErrUnexpectedEOF
			return true
		}
	}
	return true
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn. It is exact, and costs next to nothing while deadlines only move on.
func (c *Conn) SetReadDeadline(t time.Time) error {
	if c.raw == nil {
		return c.Conn.SetReadDeadline(t)
	}
	return c.read.limit.set(t, c.Conn.SetReadDeadline)
}

// SetWriteDeadline implements net.Conn, as SetReadDeadline does.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.raw == nil {
		return c.Conn.SetWriteDeadline(t)
	}
	return c.write.limit.set(t, c.Conn.SetWriteDeadline)
}

// origin is what times are counted from, on the monotone clock.
var origin = time.Now()

// never stands for no deadline.
const never = int64(1<<63 - 1)

// limit is a deadline, and what the poller was told. Both are nanoseconds since origin; 0 says that nothing was set yet.
// The poller is never told a later time than the deadline, so it fires early or in time.
type limit struct {
	wanted atomic.Int64
	told   atomic.Int64
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return never
	}
	return max(1, int64(t.Sub(origin)))
}

func (l *limit) set(t time.Time, tell func(time.Time) error) error {
	at := nanos(t)
	l.wanted.Store(at)
	if told := l.told.Load(); told == 0 && at == never || told != 0 && told <= at {
		return nil // the poller's timer fires before, if at all
	}
	l.told.Store(at)
	return tell(t)
}

// early reports that err is a timeout for which it is not time yet.
func (l *limit) early(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) && l.wanted.Load() > int64(time.Since(origin))
}

// tell gives the poller the deadline as it is now.
func (l *limit) tell(tell func(time.Time) error) error {
	for { // ends: again only when the deadline was brought forward in between
		at := l.wanted.Load()
		l.told.Store(at)
		t := time.Time{}
		if at != never {
			t = origin.Add(time.Duration(at))
		}
		if err := tell(t); err != nil || l.wanted.Load() >= at {
			return err
		}
	}
}
