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
)

// Exchange is one request and its answer. The zero value is ready, and it may be used again after Finish; it keeps its
// buffers. One goroutine drives it (Do, Read, Finish, the accessors); Cancel may come from any.
type Exchange struct {
	client *Client
	conn   *conn
	head   head
	buf    []byte // request head on the way out, answer head and what came with it on the way in
	rest   span   // body bytes in buf that came with the head
	chunks chunks
	left   int64       // of a body with a known length
	room   [8][]byte   // of vector
	vector net.Buffers // a large request on its way

	began     bool // a byte of the body has been read
	ended     bool // the body is complete
	broken    bool // the connection cannot be used again
	reused    bool
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

// NumHeaders returns the number of headers, and Header one of them, as sent. The slices live until Finish.
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

// Cancel closes the connection; whatever the exchange is doing ends with ErrCancelled. Safe from any goroutine, also
// before Do and after Finish, where it does nothing to connections of others.
func (x *Exchange) Cancel() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cancelled = true
	if x.live != nil {
		x.live.close()
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
}

// Do sends the request and reads the answer's head. On an error there is no answer; Finish is owed either way.
func (c *Client) Do(x *Exchange, req *Request) error {
	x.client, x.conn = c, nil
	x.head = head{headers: x.head.headers[:0]}
	x.began, x.ended, x.broken, x.reused = false, false, true, false
	addr, prefix := splitAddr(req.Addr)
	limit := c.cfg.FirstByteTimeout
	if req.FirstByteTimeout > 0 && req.FirstByteTimeout < limit {
		limit = req.FirstByteTimeout
	}
	x.firstByte = time.Now().Add(limit)
	if k := c.take(addr); k != nil {
		x.reused = true
		silent, err := x.try(k, addr, prefix, req)
		if err == nil || !silent || x.isCancelled() {
			return err
		}
		// A pooled connection died before any byte of an answer: the engine closed it as we wrote. Once more, fresh.
		c.stats.retries.Add(1)
		x.reused = false
	}
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
	x.conn, x.deadline = k, time.Time{}
	if !x.own(k) {
		return false, ErrCancelled
	}
	if err := x.send(addr, prefix, req); err != nil {
		return x.unsent(x.fault("send the request", err), req)
	}
	got, err := x.readHead(req.Method == "HEAD")
	return err != nil && !got && errors.Is(err, ErrLost), err
}

// unsent looks for the answer of an engine that closed before it had read the whole request: too large, say. Without
// one, err says how the sending failed. The connection is not used again.
func (x *Exchange) unsent(err error, req *Request) (silent bool, _ error) {
	if !errors.Is(err, ErrLost) {
		return true, err
	}
	got, noHead := x.readHead(req.Method == "HEAD") // waits for nothing: the connection is broken
	if noHead != nil {
		return !got, err
	}
	x.broken = true
	return false, nil
}

func (x *Exchange) send(addr, prefix string, req *Request) error {
	size := 0
	for _, part := range req.Body {
		size += len(part)
	}
	b := x.buf[:0]
	b = append(b, req.Method...)
	b = append(b, ' ')
	b = append(b, prefix...)
	b = append(b, req.Path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, addr...)
	b = append(b, "\r\n"...)
	b = append(b, req.Header...)
	if size > 0 || req.Method == "POST" {
		b = append(b, "Content-Length: "...)
		b = appendInt(b, int64(size))
		b = append(b, "\r\n"...)
	}
	b = append(b, "\r\n"...)
	if err := x.conn.SetWriteDeadline(time.Now().Add(x.client.cfg.WriteTimeout)); err != nil {
		return err
	}
	if len(b)+size <= copyBelow {
		for _, part := range req.Body {
			b = append(b, part...)
		}
		x.buf = b
		_, err := x.conn.Write(b)
		return err
	}
	x.buf = b
	x.vector = append(x.room[:0], b)
	x.vector = append(x.vector, req.Body...)
	_, err := x.vector.WriteTo(x.conn.Conn)
	x.vector = nil
	clear(x.room[:])
	return err
}

func appendInt(b []byte, n int64) []byte {
	var digits [20]byte
	i := len(digits)
	for {
		i--
		digits[i] = byte('0' + n%10)
		if n /= 10; n == 0 {
			return append(b, digits[i:]...)
		}
	}
}

// readHead reads up to the end of the head, interim answers skipped. got reports that bytes came.
func (x *Exchange) readHead(noBody bool) (got bool, err error) {
	if cap(x.buf) < MaxHeadBytes {
		x.buf = make([]byte, 0, MaxHeadBytes)
	}
	b := x.buf[:0]
	x.setDeadline(x.firstByte)
	for interim := 0; ; {
		end := headEnd(b)
		if end == 0 {
			if len(b) >= MaxHeadBytes {
				return true, malformed("a head that does not end")
			}
			n, err := x.conn.Read(b[len(b):MaxHeadBytes])
			got = got || n > 0
			b = b[:len(b)+n]
			if n == 0 && err != nil {
				return got, x.fault("read the answer's head", err)
			}
			continue
		}
		x.buf = b
		if err := x.head.parse(b[:end], noBody); err != nil {
			return true, err
		}
		if x.head.status >= 200 {
			x.body(end, len(b))
			return true, nil
		}
		if interim++; interim > maxInterim {
			return true, malformed("interim answers without end")
		}
		b = b[:copy(b, b[end:])]
	}
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
			n = copy(dst, x.buf[x.rest.from:x.rest.to])
			x.rest.from += n
		} else {
			x.arm()
			var err error
			if n, err = x.conn.Read(dst); n == 0 && err != nil {
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
	if !x.began {
		x.setDeadline(x.firstByte)
		return
	}
	idle := x.client.cfg.IdleTimeout
	now := time.Now()
	if left := x.deadline.Sub(now); left < idle || left > idle+idle/8 {
		x.setDeadline(now.Add(idle + idle/8))
	}
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
	case errors.Is(err, os.ErrDeadlineExceeded) && x.began:
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
	x.deadline = time.Time{}
	if cap(x.buf) > keptBuffer {
		x.buf = nil
	}
	if k == nil {
		return
	}
	if cancelled || x.broken || !x.ended {
		k.close()
		return
	}
	_ = k.SetReadDeadline(time.Time{})
	c.give(k)
}
