package gateway

import (
	"errors"
	"io"
	"time"

	"github.com/valyala/fasthttp"

	"sluice/gateway/relay"
	"sluice/gateway/wire"
	"sluice/slo"
)

// relayEvents passes an event stream: each read is one write, as soon as it holds a whole event.
func (k *call) relayEvents() verdict { return k.endStream(k.at.pump()) }

// endStream ends a stream of which no more is read. err is what the reading ended with; nil: it was stopped.
func (k *call) endStream(err error) verdict {
	a := k.at
	switch {
	case k.stopped:
		return answered
	case !a.committed && k.beaten():
		k.outcome = slo.ClientGone
		return elsewhere
	case a.stream.Error:
		return k.endFault()
	case k.translation.faulty():
		return k.endUntold()
	case errors.Is(err, io.EOF):
		return k.endEvents()
	case err == nil:
		err = relay.ErrIdle // the request's time is over
	}
	if !k.begun {
		return k.lost(err)
	}
	k.breakEvents(err)
	return answered
}

// takeEvents takes the next n bytes of an event stream. Until something is worth sending the events are held, as far as
// there is room: a stream that only said who speaks can still be replaced by another replica's.
func (a *attempt) takeEvents(n int) bool {
	k := a.call
	send, keep := a.feed(n)
	if !a.committed {
		if a.stream.Early {
			return false
		}
		a.held, a.kept = send, send+keep
		if !a.stream.Begun() && a.kept < bodyBuffer {
			return true
		}
		if !a.commit() || a.racing {
			return false
		}
	}
	return k.pass(send, keep) && !a.stream.Error && !k.translation.faulty() && k.inTime()
}

// feed looks at n new bytes behind what is kept and notes the times of tokens. send counts what is held too.
func (a *attempt) feed(n int) (send, keep int) {
	s, room := &a.stream, a.body()[a.held:]
	before, kept := s.Content, a.kept-a.held
	send, keep = s.Feed(room[:kept+n], kept, kept+n == len(room))
	if s.Content > before {
		a.token()
	}
	a.noteKept()
	return a.held + send, keep
}

// pass sends the first bytes of the room; keep bytes behind them stay there.
func (k *call) pass(send, keep int) bool {
	a := k.at
	ok := true
	if send > 0 {
		if !k.begun {
			k.appendHead(-1, true)
		}
		// The frame is put around the bytes where they are; what is kept must get out of its way.
		var aside [chunkTailRoom]byte
		room, at := a.body(), chunkHeadRoom+send
		n := copy(aside[:min(keep, len(aside))], a.buf[at:])
		ok = k.send(send, keep == 0 && a.exchange.Ended() && a.stream.Done)
		copy(a.buf[at:], aside[:n])
		copy(room, room[send:send+keep])
	}
	a.held, a.kept = 0, keep
	return ok
}

// endFault ends a stream in which the engine told of a failure. Before anything else another replica may do better.
func (k *call) endFault() verdict {
	a := k.at
	message := a.stream.Fault
	if message == "" {
		message = "The engine reported an error."
	}
	if !k.begun {
		k.fail(fasthttp.StatusBadGateway, slo.UpstreamError, "upstream_error", message)
		return elsewhere
	}
	k.outcome, k.closing = slo.UpstreamError, true
	a.held, a.kept = 0, 0
	if a.stream.Untold {
		k.sendError(wire.Error{Message: message, Type: wire.TypeServer, Code: "upstream_error"})
	} else {
		k.seal(0)
	}
	return answered
}

// endEvents ends a stream whose body ended in order, perhaps with bytes of an event that has not. An engine that closed
// after a finish reason, or whose body's framing is whole, has said everything; the end marker is added if it forgot. A
// stream of typed events has ended with its last one only.
func (k *call) endEvents() verdict {
	a := k.at
	s, n := &a.stream, a.held
	if kept := a.kept - a.held; kept > 0 && a.kept+2 <= bodyBuffer {
		// Only the blank line may be missing. If what is there reads as an event it goes on, with one.
		room := a.body()[a.held:]
		copy(room[kept:], "\n\n")
		before := s.Malformed
		if send, _ := s.Feed(room[:kept+2], kept, true); s.Malformed == before {
			n += send
		}
	}
	switch {
	case s.Error && (k.begun || !s.Early):
		if !a.committed && !a.commit() {
			k.outcome = slo.ClientGone
			return elsewhere
		}
		k.pass(n, 0)
		return k.endFault()
	case s.Error:
		return k.endFault()
	case s.Done, !s.Typed && (s.Finish || a.exchange.Framed() && s.Events > 0):
		k.outcome = slo.OK
		if !s.Done {
			n += copy(a.body()[n:], wire.DoneEvent)
		}
	case !k.begun:
		return k.lost(relay.ErrLost)
	default:
		k.breakEvents(relay.ErrLost)
		return answered
	}
	if !k.begun {
		if !a.commit() {
			k.outcome = slo.ClientGone
			return elsewhere
		}
		k.appendHead(-1, true)
	}
	k.seal(n)
	return answered
}

// seal sends the last n bytes of the room, and the end of the answer if it has not gone yet.
func (k *call) seal(n int) {
	if n > 0 || !k.sealed {
		outcome := k.outcome
		k.send(n, true)
		if k.outcome = outcome; k.translation.faulty() {
			k.outcome = slo.UpstreamError
		}
	}
}

// breakEvents ends a stream that cannot go on, with an error event if anybody is there to read it.
func (k *call) breakEvents(err error) {
	k.outcome = endingOf(err)
	k.closing = true
	e := wire.Error{Message: "The connection to the engine broke; the answer is not complete.", Type: wire.TypeServer, Code: "upstream_lost"}
	switch {
	case errors.Is(err, relay.ErrCancelled):
		if !k.conn.cut.Load() {
			return
		}
		k.outcome = slo.NoReplica
		e.Message, e.Code = "The gateway is shutting down; the answer is not complete.", "shutting_down"
	case !time.Now().Before(k.deadline):
		e.Message, e.Code = "The time of the request is over; the answer is not complete.", "upstream_timeout"
	case errors.Is(err, relay.ErrIdle), errors.Is(err, relay.ErrFirstByte):
		e.Message, e.Code = "The engine stopped in the middle of its answer.", "upstream_timeout"
	case errors.Is(err, relay.ErrProtocol):
		e.Message, e.Code = "The engine's answer was malformed; it is not complete.", "upstream_malformed"
	}
	k.sendError(e)
}

// sendError ends a stream with an error event.
func (k *call) sendError(e wire.Error) {
	a := k.at
	a.held, a.kept, a.aside = 0, 0, a.aside[:0]
	k.told.code = e.Code
	if k.translation != nil {
		k.translation.over = true
	}
	n := 0
	if a.stream.Torn {
		n = copy(a.body(), "\n\n") // ends the event whose beginning has gone out
	}
	a.scratch = k.endpoint.dialect.appendErrorEvent(a.scratch[:0], e, k.id)
	n += copy(a.body()[n:], a.scratch)
	k.seal(n)
}
