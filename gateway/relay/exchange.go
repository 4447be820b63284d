package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"sluice/gateway/sock"
)

// Exchange is one request and its answer. The zero value is ready, and it may be used again after Finish. One goroutine
// drives it (Do, Await, Read, Pump, Finish, the accessors); Cancel may come from any.
//
// While it waits for bytes an exchange holds no buffer: room is taken from a pool when there is something to read.
type Exchange struct {
	client *Client
	conn   *conn
	head   head
	store  *headBuffer // what buf lies in; nil while nothing is there
	buf    []byte      // request head on the way out, answer head and what came with it on the way in
	rest   span        // body bytes in buf that came with the head
	slim   []byte      // what buf lies in while a small head is all there is to keep
	chunks chunks
	left   int64       // of a body with a known length
	room   [8][]byte   // of vector
	vector net.Buffers // a large request on its way
	noBody bool        // the request was a HEAD

	phase   phase
	interim int   // interim answers so far
	got     bool  // bytes of an answer have come
	sink    Sink  // of Pump
	err     error // what a step found

	began     bool // a byte of the body has been read
	ended     bool // the body is complete
	broken    bool // the connection cannot be used again
	reused    bool
	sent      bool      // the request is on its way
	written   int       // of a request that did not go out at once
	hold      time.Time // see Hold
	last      time.Time // Request.Deadline
	firstByte time.Time // deadline of the first body byte
	deadline  time.Time // the read deadline that is set

	mu        sync.Mutex
	cancelled bool               // guarded by mu
	live      *conn              // guarded by mu: what Cancel closes
	stopDial  context.CancelFunc // guarded by mu: what Cancel calls while connecting
}

// Status returns the answer's status.
func (x *Exchange) Status() int { return x.head.status }

// Length returns the answer's length in bytes, -1 when its end shows only as it comes.
func (x *Exchange) Length() int64 {
	switch x.head.framing {
	case framingNone:
		return 0
	case framingLength:
		return x.head.length
	}
	return -1
}

// Framed reports that the answer's end is told from a loss: false for answers that end with their connection.
func (x *Exchange) Framed() bool { return x.head.framing != framingClose }

// Ended reports that the body has been read to its end, without another look at the connection.
func (x *Exchange) Ended() bool { return x.ended }

// Reused reports that the exchange runs on a pooled connection.
func (x *Exchange) Reused() bool { return x.reused }

// NumHeaders returns the number of headers, and Header one of them, as sent. The slices live until DropHead or Finish.
func (x *Exchange) NumHeaders() int { return len(x.head.headers) }

// Header returns the name and value of header i.
func (x *Exchange) Header(i int) (name, value []byte) {
	h := x.head.headers[i]
	return x.buf[h.name.from:h.name.to], x.buf[h.value.from:h.value.to]
}

// Find returns the first value of a header, given in lower case; nil without one.
func (x *Exchange) Find(lower string) []byte {
	for i := range x.head.headers {
		if name, value := x.Header(i); equalFold(name, lower) {
			return value
		}
	}
	return nil
}

// Cancel ends the connection; whatever the exchange is doing ends with ErrCancelled. Safe from any goroutine, also
// before Do and after Finish, where it does nothing to connections of others.
func (x *Exchange) Cancel() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cancelled = true
	if x.live != nil {
		x.live.cut()
	}
	if x.stopDial != nil {
		x.stopDial()
	}
}

// own makes k the connection that Cancel closes. It reports false when Cancel was first.
func (x *Exchange) own(k *conn) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.live, x.stopDial = k, nil
	return !x.cancelled
}

func (x *Exchange) isCancelled() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.cancelled
}

// Begin makes x ready for an exchange. After it a Cancel counts, also one that comes before Do.
func (x *Exchange) Begin() {
	x.mu.Lock()
	x.cancelled, x.live, x.stopDial = false, nil, nil
	x.mu.Unlock()
	x.hold = time.Time{}
}

// Hold makes waiting for bytes of the answer end with ErrFirstByte at t, however many came before, instead of by the
// limits of first byte and idle time. The zero time gives those back. After ErrFirstByte the exchange is as it was, and
// Await or Pump go on with it.
func (x *Exchange) Hold(t time.Time) { x.hold = t }

// Do sends the request and reads the answer's head. On an error there is no answer; Finish is owed either way.
func (c *Client) Do(x *Exchange, req *Request) error {
	x.client, x.conn = c, nil
	x.head = head{headers: x.head.headers[:0]}
	x.began, x.ended, x.broken, x.reused = false, false, true, false
	x.noBody = req.Method == "HEAD"
	x.sent, x.last = false, req.Deadline
	x.firstByte = x.atLast(time.Now().Add(c.cfg.FirstByteTimeout))
	addr, prefix := splitAddr(req.Addr)
	for k := c.take(addr); k != nil; k = c.take(addr) { // ends: each turn takes one out
		x.reused = true
		silent, err := x.try(k, addr, prefix, req)
		if !errors.Is(err, errStale) {
			c.stats.reuses.Add(1)
			return x.settle(silent, err, req)
		}
		c.stats.stale.Add(1)
	}
	x.reused = false
	return x.fresh(addr, prefix, req)
}

// errStale: a pooled connection was closed, or not silent, so nothing was sent on it.
var errStale = errors.New("relay: a pooled connection is not silent")

// Await goes on waiting for the answer's head, after Do or Await returned ErrFirstByte. req is what Do was given.
func (c *Client) Await(x *Exchange, req *Request) error {
	if !x.sent {
		return ErrFirstByte // it was the request that did not get through
	}
	silent, err := x.readHead()
	return x.settle(silent, err, req)
}

// settle sends the request once more, on a fresh connection, if a pooled one died before any byte of an answer: the
// engine closed it as we wrote.
func (x *Exchange) settle(silent bool, err error, req *Request) error {
	if err == nil || !silent || !x.reused || x.isCancelled() {
		return err
	}
	x.client.stats.retries.Add(1)
	x.reused = false
	addr, prefix := splitAddr(req.Addr)
	return x.fresh(addr, prefix, req)
}

// fresh sends the request on a new connection.
func (x *Exchange) fresh(addr, prefix string, req *Request) error {
	k, err := x.connect(addr)
	if err != nil {
		return err
	}
	_, err = x.try(k, addr, prefix, req)
	return err
}

// splitAddr takes an address apart: host:port, and the path that goes before the request's.
func splitAddr(s string) (addr, prefix string) {
	s = strings.TrimPrefix(s, "http://")
	if slash := strings.IndexByte(s, '/'); slash >= 0 {
		return s[:slash], strings.TrimRight(s[slash:], "/")
	}
	return s, ""
}

func (x *Exchange) connect(addr string) (*conn, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	x.mu.Lock()
	if x.cancelled {
		x.mu.Unlock()
		return nil, ErrCancelled
	}
	x.stopDial = cancel
	x.mu.Unlock()
	k, err := x.client.dial(ctx, addr)
	if err != nil {
		if x.isCancelled() {
			return nil, ErrCancelled
		}
		return nil, fmt.Errorf("%w: %v", ErrConnect, err)
	}
	return k, nil
}

// try sends the request on k and reads the head. silent reports that the connection broke before any byte of an
// answer and not by a timeout.
func (x *Exchange) try(k *conn, addr, prefix string, req *Request) (silent bool, err error) {
	if x.conn != nil {
		x.conn.close()
	}
	x.conn, x.deadline, k.owner = k, time.Time{}, x
	x.phase, x.interim, x.got = phaseHead, 0, false
	if !x.own(k) {
		return false, ErrCancelled
	}
	if !x.small(req) {
		if x.reused && !k.quiet() {
			return false, errStale
		}
		x.grab()
		err = x.send(addr, prefix, req)
		x.drop()
		if err != nil {
			return x.unsent(x.fault("send the request", err))
		}
		x.sent = true
		return x.readHead()
	}
	return x.ask(addr, prefix, req)
}

// unsent looks for the answer of an engine that closed before it had read the whole request: too large, say. Without
// one, err says how the sending failed. The connection is not used again.
func (x *Exchange) unsent(err error) (silent bool, _ error) {
	if !errors.Is(err, ErrLost) {
		return true, err
	}
	silent, noHead := x.readHead() // waits for nothing: the connection is broken
	if noHead != nil {
		return silent, err
	}
	x.broken = true
	return false, nil
}

// grab takes room for the head, if there is none.
func (x *Exchange) grab() {
	if x.store == nil {
		x.store = headBuffers.Get().(*headBuffer)
		x.buf = x.store[:0]
	}
}

// drop gives the room back.
func (x *Exchange) drop() {
	if x.store != nil {
		headBuffers.Put(x.store)
		x.store, x.buf = nil, nil
	}
}

// DropHead forgets the answer's headers: the caller has told them on. Bytes of the body that came with the head are kept
// until they have been read.
func (x *Exchange) DropHead() {
	x.head.headers = x.head.headers[:0]
	x.compact()
}

// compact gives the head's room back when no bytes of the body are in it any more, moving what there is of headers.
func (x *Exchange) compact() {
	if x.store == nil || x.rest.from < x.rest.to {
		return
	}
	if n := len(x.head.headers); n > 0 {
		end := x.head.headers[n-1].value.to
		if end > slimHead {
			return
		}
		x.slim = append(x.slim[:0], x.buf[:end]...)
	}
	x.drop()
	x.buf = x.slim
}

// readHead reads up to the end of the head, interim answers skipped. silent reports a connection that broke before any
// byte of an answer, and not by a timeout.
func (x *Exchange) readHead() (silent bool, err error) {
	x.setDeadline(x.headBy())
	x.err = nil
	if err := x.conn.each(); err != nil {
		x.err = x.fault("read the answer's head", err)
	}
	return x.err != nil && !x.got && errors.Is(x.err, ErrLost), x.err
}

func (x *Exchange) headBy() time.Time {
	if !x.hold.IsZero() {
		return x.atLast(x.hold)
	}
	return x.firstByte
}

// stepHead reads what there is of the head.
func (x *Exchange) stepHead() (done bool) {
	for { // ends: each turn reads a byte, of at most maxInterim heads of MaxHeadBytes
		x.grab()
		if len(x.buf) >= MaxHeadBytes {
			x.err = malformed("a head that does not end")
			return true
		}
		room := x.store[len(x.buf):MaxHeadBytes]
		n, err := x.conn.read(room)
		if n == 0 {
			if len(x.buf) == 0 {
				x.drop()
			}
			if errors.Is(err, sock.ErrWait) {
				return false
			}
			x.err = x.fault("read the answer's head", err)
			return true
		}
		x.got = true
		x.buf = x.buf[:len(x.buf)+n]
		if x.parseHeads() {
			return true
		}
		if x.conn.drained(n, len(room)) {
			return false
		}
	}
}

// parseHeads looks for the answer's head in what was read. It reports that there is one, or an error.
func (x *Exchange) parseHeads() (done bool) {
	for end := headEnd(x.buf); end > 0; end = headEnd(x.buf) { // ends: maxInterim
		if x.err = x.head.parse(x.buf[:end], x.noBody); x.err != nil {
			return true
		}
		if x.head.status >= 200 {
			x.phase = phaseBody
			x.body(end, len(x.buf))
			return true
		}
		if x.interim++; x.interim > maxInterim {
			x.err = malformed("interim answers without end")
			return true
		}
		x.buf = x.buf[:copy(x.buf, x.buf[end:])]
	}
	return false
}

// body prepares for reading a body of which buf[from:to] is there.
func (x *Exchange) body(from, to int) {
	x.rest = span{from, to}
	x.chunks = chunks{}
	x.left = x.head.length
	x.broken = !x.head.keep
	if x.head.framing == framingNone {
		x.end(to > from)
	}
	x.compact()
}

// end notes that the body is complete. extra: bytes follow that no one asked for.
func (x *Exchange) end(extra bool) {
	x.ended = true
	x.broken = x.broken || extra
}

// Read reads the next bytes of the body into dst, framing taken off, and returns at once with what is there. dst must
// hold at least one byte. At the end it returns io.EOF; any other error means that the body is not complete.
func (x *Exchange) Read(dst []byte) (int, error) {
	for !x.ended { // ends: each turn reads at least one byte of framing, or fails
		var n int
		if x.rest.from < x.rest.to {
			n = x.fromHead(dst)
		} else {
			x.arm()
			var err error
			n, err = x.conn.Read(dst)
			if n == 0 && err != nil && x.conn.wake(err) {
				continue
			}
			if n == 0 && err != nil {
				if errors.Is(err, io.EOF) && x.head.framing == framingClose {
					x.end(false)
					break
				}
				x.broken = true
				return 0, x.fault("read the answer", err)
			}
		}
		n, err := x.unframe(dst[:n])
		if err != nil {
			x.broken = true
			return 0, err
		}
		if n > 0 {
			x.began = true
			return n, nil
		}
	}
	return 0, io.EOF
}

// fromHead copies body bytes that came with the head.
func (x *Exchange) fromHead(dst []byte) int {
	n := copy(dst, x.buf[x.rest.from:x.rest.to])
	x.rest.from += n
	x.compact()
	return n
}

// unframe takes the framing off fresh bytes, in place, and notes the body's end.
func (x *Exchange) unframe(b []byte) (int, error) {
	switch x.head.framing {
	case framingLength:
		n := int(min(x.left, int64(len(b))))
		if x.left -= int64(n); x.left == 0 {
			x.end(n < len(b) || x.rest.from < x.rest.to)
		}
		return n, nil
	case framingChunks:
		n, used, err := x.chunks.decode(b)
		if x.chunks.state == chunkEnd {
			x.end(used < len(b) || x.rest.from < x.rest.to)
		}
		return n, err
	}
	return len(b), nil
}

// arm sets the read deadline: for the first byte, then for the pause between bytes. The latter is moved only when an
// eighth of it has passed, since moving it costs more than reading the clock.
func (x *Exchange) arm() {
	if !x.hold.IsZero() {
		x.setDeadline(x.atLast(x.hold))
		return
	}
	if !x.began {
		x.setDeadline(x.firstByte)
		return
	}
	idle := x.client.cfg.IdleTimeout
	now := time.Now()
	if left := x.deadline.Sub(now); left < idle || left > idle+idle/8 {
		x.setDeadline(x.atLast(now.Add(idle + idle/8)))
	}
}

// atLast is t, or the request's deadline if that is earlier.
func (x *Exchange) atLast(t time.Time) time.Time {
	if !x.last.IsZero() && x.last.Before(t) {
		return x.last
	}
	return t
}

func (x *Exchange) setDeadline(t time.Time) {
	if !t.Equal(x.deadline) {
		x.deadline = t
		_ = x.conn.SetReadDeadline(t) // fails only on a closed connection, which the read will tell
	}
}

// fault names what went wrong.
func (x *Exchange) fault(doing string, err error) error {
	switch {
	case x.isCancelled():
		return ErrCancelled
	case errors.Is(err, os.ErrDeadlineExceeded) && x.began && x.hold.IsZero():
		return fmt.Errorf("%w: no byte for %v", ErrIdle, x.client.cfg.IdleTimeout)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: %s", ErrFirstByte, doing)
	}
	return fmt.Errorf("%w: %s: %v", ErrLost, doing, err)
}

// Finish ends the exchange: the connection goes back to the pool if the answer was complete and the engine keeps it,
// else it is closed. Headers and their slices are gone after it. More calls do nothing.
func (c *Client) Finish(x *Exchange) {
	x.mu.Lock()
	cancelled := x.cancelled
	x.live, x.stopDial = nil, nil
	x.mu.Unlock()
	k := x.conn
	x.conn = nil
	x.deadline, x.sink, x.rest = time.Time{}, nil, span{}
	x.drop()
	if k == nil {
		return
	}
	k.owner = nil
	if cancelled || x.broken || !x.ended || k.hung.Load() {
		k.close()
		return
	}
	_ = k.SetReadDeadline(time.Time{})
	c.give(k)
}
