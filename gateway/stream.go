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

// relayEvents passes an event stream: each read is one write, as soon as it holds a whole event. again: the stream
// failed before anything was sent.
func (k *call) relayEvents() (again bool) {
	x, body := &k.exchange, k.body()
	kept := 0
	for { // ends with the stream
		n, err := x.Read(body[kept:])
		if n > 0 {
			send, keep := k.feed(kept, kept+n)
			if k.stream.Error && !k.begun {
				return k.errorFirst()
			}
			if !k.pass(send, keep) {
				return false
			}
			kept = copy(body, body[send:send+keep])
		}
		if errors.Is(err, io.EOF) {
			return k.endEvents(kept)
		}
		if err == nil && time.Now().After(k.deadline) {
			err = relay.ErrIdle
		}
		if err != nil {
			if !k.begun {
				return k.lost(err)
			}
			k.breakEvents(err)
			return false
		}
	}
}

// feed looks at the new bytes body[kept:total] and notes the times of tokens.
func (k *call) feed(kept, total int) (send, keep int) {
	s, body := &k.stream, k.body()
	before := s.Content
	send, keep = s.Feed(body[:total], kept, total == len(body))
	if s.Content > before {
		k.last = time.Now()
		if k.first.IsZero() {
			k.first = k.last
			k.ticket.FirstByte()
		}
	}
	return send, keep
}

// pass sends the first bytes of body; keep bytes behind them stay there.
func (k *call) pass(send, keep int) bool {
	if send == 0 {
		return true
	}
	if !k.begun {
		k.appendHead(-1, true)
	}
	if keep == 0 {
		return k.send(send, k.exchange.Ended() && k.stream.Done)
	}
	// The frame is put around the bytes where they are; what is kept must get out of its way.
	var aside [chunkTailRoom]byte
	n := copy(aside[:], k.buf[chunkHeadRoom+send:])
	ok := k.send(send, false)
	copy(k.buf[chunkHeadRoom+send:], aside[:n])
	return ok
}

// errorFirst keeps a failure that came as the first event of a good answer; another replica may do better.
func (k *call) errorFirst() (again bool) {
	k.outcome = slo.UpstreamError
	k.failure.set(fasthttp.StatusBadGateway, slo.UpstreamError, "upstream_error", "The engine reported an error.")
	return true
}

// endEvents ends a stream whose body ended in order, with kept bytes of an event that has not. An engine that closed
// after a finish reason, or whose body's framing is whole, has said everything; the end marker is added if it forgot.
func (k *call) endEvents(kept int) (again bool) {
	s, body := &k.stream, k.body()
	n := 0
	if kept > 0 && kept+2 <= len(body) {
		// Only the blank line may be missing. If what is there reads as an event it goes on, with one.
		copy(body[kept:], "\n\n")
		before := s.Malformed
		if send, _ := s.Feed(body[:kept+2], kept, true); s.Malformed == before {
			n = send
		}
	}
	switch {
	case s.Error:
		if !k.begun {
			return k.errorFirst()
		}
		k.outcome = slo.UpstreamError
	case s.Done, s.Finish, k.exchange.Framed() && s.Events > 0:
		k.outcome = slo.OK
		if !s.Done {
			n += copy(body[n:], wire.DoneEvent)
		}
	case !k.begun:
		return k.lost(relay.ErrLost)
	default:
		k.breakEvents(relay.ErrLost)
		return false
	}
	if !k.begun {
		k.appendHead(-1, true)
	}
	if n > 0 || !k.sealed {
		k.send(n, true)
	}
	return false
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
	case errors.Is(err, relay.ErrIdle), errors.Is(err, relay.ErrFirstByte):
		e.Message, e.Code = "The engine stopped in the middle of its answer.", "upstream_timeout"
	case errors.Is(err, relay.ErrProtocol):
		e.Message, e.Code = "The engine's answer was malformed; it is not complete.", "upstream_malformed"
	}
	n := 0
	if k.stream.Torn {
		n = copy(k.body(), "\n\n") // ends the event whose beginning has gone out
	}
	k.scratch = k.endpoint.dialect.appendErrorEvent(k.scratch[:0], e)
	n += copy(k.body()[n:], k.scratch)
	outcome := k.outcome
	k.send(n, true)
	k.outcome = outcome
}
