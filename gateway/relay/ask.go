package relay

import (
	"errors"
	"time"

	"sluice/gateway/sock"
)

// ask sends a small request and reads the head in one go: a look whether the connection is silent, the request, and then
// the wait for bytes.
func (x *Exchange) ask(addr, prefix string, req *Request) (silent bool, err error) {
	x.grab()
	x.buf = x.compose(addr, prefix, req)
	for _, part := range req.Body {
		x.buf = append(x.buf, part...)
	}
	x.phase, x.written = phaseSend, 0
	silent, err = x.readHead()
	if x.phase != phaseSend {
		return silent, err
	}
	// The step ended before all was sent.
	switch {
	case x.isCancelled():
		x.drop()
		return false, ErrCancelled
	case errors.Is(x.err, errStale), errors.Is(x.err, ErrProtocol):
		x.drop()
		return false, x.err
	case x.err == nil, errors.Is(x.err, ErrFirstByte) && !x.hold.IsZero():
		// No room for all of it, or the time of Hold came first: that bounds the answer, not the request.
		err = x.conn.SetWriteDeadline(time.Now().Add(x.client.cfg.WriteTimeout))
		if err == nil {
			_, err = x.conn.Write(x.buf[x.written:])
		}
		if err != nil {
			err = x.fault("send the request", err)
		}
	}
	x.drop()
	x.phase = phaseHead
	if err != nil {
		return x.unsent(err)
	}
	x.sent = true
	return x.readHead()
}

// stepSend sends what ask composed. It reports that the step cannot go on.
func (x *Exchange) stepSend() (done bool) {
	k := x.conn
	switch err := k.silent(); {
	case err == nil:
	case x.reused:
		x.err = errStale
		return true
	case errors.Is(err, errStale):
		x.err = malformed("bytes before the request")
		return true
	default:
		x.err = x.fault("send the request", err)
		return true
	}
	n, err := k.write(x.buf)
	if x.written = n; err != nil && !errors.Is(err, sock.ErrWait) {
		x.err = x.fault("send the request", err)
		return true
	}
	if n < len(x.buf) {
		return true // the rest waits for room
	}
	x.drop()
	x.sent, x.phase = true, phaseHead
	return !k.Direct() && x.stepHead() // what has no poller waits in the read
}

// small reports that a request goes out in one piece from one buffer.
func (x *Exchange) small(req *Request) bool {
	const frame = 256 // bytes of the first line, Host and Content-Length, at most, but for what is counted here
	return frame+len(req.Method)+len(req.Path)+2*len(req.Addr)+len(req.Header)+size(req) <= copyBelow
}

func size(req *Request) (n int) {
	for _, part := range req.Body {
		n += len(part)
	}
	return n
}

// compose puts the request's head into the room.
func (x *Exchange) compose(addr, prefix string, req *Request) []byte {
	b := append(x.buf[:0], req.Method...)
	b = append(b, ' ')
	b = append(b, prefix...)
	b = append(b, req.Path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, addr...)
	b = append(b, "\r\n"...)
	b = append(b, req.Header...)
	if n := size(req); n > 0 || req.Method == "POST" {
		b = append(b, "Content-Length: "...)
		b = appendInt(b, int64(n))
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...)
}

// send sends a large request, gathered by the kernel.
func (x *Exchange) send(addr, prefix string, req *Request) error {
	if err := x.conn.SetWriteDeadline(time.Now().Add(x.client.cfg.WriteTimeout)); err != nil {
		return err
	}
	x.vector = append(x.room[:0], x.compose(addr, prefix, req))
	x.vector = append(x.vector, req.Body...)
	_, err := x.conn.WriteBuffers(&x.vector)
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
