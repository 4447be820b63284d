package relay

import (
	"errors"
	"io"
	"sync"

	"sluice/gateway/sock"
)

// headBuffer has room for a head, or for a small request.
type headBuffer [MaxHeadBytes]byte

// headBuffers are taken when there is something to put in, so a waiting exchange has none.
var headBuffers = sync.Pool{New: func() any { return new(headBuffer) }}

// phase is what an exchange reads next.
type phase uint8

const (
	phaseHead phase = iota
	phaseBody
	phaseSend // nothing yet: the request goes first
)

// Sink takes the bytes of an answer from Pump.
type Sink interface {
	// Room returns where the next bytes go, one at least. It is called when there are some, so a sink need not hold room
	// while it waits. Asked again before Take, it returns the same.
	Room() []byte
	// Take is told how many bytes of the room hold payload, framing taken off: 0 when there were none after all. It
	// returns false to stop Pump.
	Take(n int) bool
}

// Pump reads the body and gives each piece to s as soon as it is there. It returns nil when s stopped it, and may be
// called again then; io.EOF at the end; ErrFirstByte at the time of Hold, after which it may be called again; any other
// error means that the body is not complete.
func (x *Exchange) Pump(s Sink) error {
	x.sink = s
	for !x.ended { // ends with the body, an error, or s
		if x.rest.from < x.rest.to {
			if !x.deliver(x.fromHead(s.Room())) {
				return x.err
			}
			continue
		}
		x.arm()
		x.err = nil
		if err := x.conn.each(); err != nil {
			err = x.fault("read the answer", err)
			x.broken = x.broken || !errors.Is(err, ErrFirstByte)
			return err
		}
		if !x.ended || x.err != nil {
			return x.err
		}
	}
	return io.EOF
}

// deliver takes the framing off the n bytes in the sink's room and passes them on. False says that the pumping ends, by
// the sink's wish or with err.
func (x *Exchange) deliver(n int) bool {
	x.err = nil
	room := x.sink.Room()
	n, err := x.unframe(room[:n])
	if err != nil {
		x.broken, x.err = true, err
		x.sink.Take(0)
		return false
	}
	if n > 0 {
		x.began = true
	}
	return x.sink.Take(n)
}

// step is called when bytes may be there. It reports that the pumping, or the reading of the head, is over.
func (x *Exchange) step() (done bool) {
	switch x.phase {
	case phaseSend:
		return x.stepSend()
	case phaseHead:
		return x.stepHead()
	}
	for { // ends: each turn reads a byte, up to the end of the body
		room := x.sink.Room()
		n, err := x.conn.read(room)
		if n > 0 {
			if !x.deliver(n) || x.ended {
				return true
			}
			x.arm()
			if x.conn.drained(n, len(room)) {
				return false
			}
			continue
		}
		more := x.sink.Take(0)
		switch {
		case errors.Is(err, sock.ErrWait):
			return !more
		case errors.Is(err, io.EOF) && x.head.framing == framingClose:
			x.end(false)
		default:
			x.err = x.fault("read the answer", err)
			x.broken = x.broken || !errors.Is(x.err, ErrFirstByte)
		}
		return true
	}
}
