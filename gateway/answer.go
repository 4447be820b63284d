package gateway

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"sluice/gateway/relay"
	"sluice/slo"
)

// relay passes a good answer to the client.
func (k *call) relay() verdict {
	a := k.at
	a.look()
	switch {
	case a.opaque && k.convert != nil:
		return k.unreadable()
	case a.misformed():
		return k.untold("it is encoded, or not of the form that was asked for")
	case a.events:
		return k.relayEvents()
	}
	return k.relayBody()
}

// look sees what kind of answer it is.
func (a *attempt) look() {
	a.events = bytes.HasPrefix(a.exchange.Find("content-type"), []byte("text/event-stream"))
	a.opaque = !a.events && len(a.exchange.Find("content-encoding")) > 0
}

// takeBody takes the next bytes of an answer that is no event stream.
func (a *attempt) takeBody(n int) bool {
	if a.first.IsZero() {
		a.token()
	}
	if !a.opaque {
		a.usage.Feed(a.body()[:n])
		a.noteKept()
	}
	if !a.committed {
		if !a.commit() {
			return false
		}
		if a.racing {
			a.held, a.kept = n, n
			return false
		}
	}
	return a.call.passBody(n)
}

// passBody sends the first n bytes of the room. It reports whether there may be more.
func (k *call) passBody(n int) bool {
	x := &k.at.exchange
	switch {
	case k.translation != nil:
		return k.translation.keep(k.at.body()[:n]) && k.inTime()
	case k.convert.needed():
		return k.passVectors(n)
	}
	if !k.begun {
		length := x.Length()
		if x.Ended() {
			length = int64(n)
		}
		k.appendHead(length, false)
	}
	last := x.Ended()
	if last {
		k.outcome = slo.OK
	}
	return k.send(n, last) && k.inTime()
}

// relayBody passes an answer that is no event stream.
func (k *call) relayBody() verdict { return k.endBody(k.at.pump()) }

// endBody ends an answer of which no more is read. err is what the reading ended with; nil: it was stopped.
func (k *call) endBody(err error) verdict {
	a := k.at
	switch {
	case k.stopped:
	case !a.committed && k.beaten():
		k.outcome = slo.ClientGone
		return elsewhere
	case k.convert.broken(err):
		return k.unreadable()
	case k.translation != nil && k.translation.large:
		return k.untold("it is too large")
	case k.translation != nil && errors.Is(err, io.EOF):
		return k.tellMessage()
	case k.translation != nil && err == nil: // its time is over
		return k.lost(relay.ErrIdle)
	case errors.Is(err, io.EOF):
		if !k.begun {
			if !a.commit() {
				k.outcome = slo.ClientGone
				return elsewhere
			}
			k.appendHead(0, false)
		}
		k.outcome = slo.OK
		if !k.sealed {
			k.send(0, true)
		}
	case err == nil: // its time is over
		k.breakOff(relay.ErrIdle)
	case !k.begun:
		return k.lost(err)
	default:
		k.breakOff(err)
	}
	return answered
}

// breakOff ends an answer that cannot be completed: the connection is closed, so no reader takes it for whole.
func (k *call) breakOff(err error) {
	k.outcome = endingOf(err)
	k.closing = true
	if errors.Is(err, relay.ErrCancelled) && k.conn.cut.Load() {
		k.outcome = slo.NoReplica
	}
}

// endingOf is the outcome of an answer that broke with err after it had begun.
func endingOf(err error) slo.Outcome {
	switch {
	case errors.Is(err, relay.ErrCancelled):
		return slo.ClientGone
	case errors.Is(err, relay.ErrIdle), errors.Is(err, relay.ErrFirstByte):
		return slo.Timeout
	case errors.Is(err, relay.ErrProtocol):
		return slo.UpstreamError
	}
	return slo.UpstreamLost
}

// send writes the first n bytes of body, framed if the answer is, behind the head if that has not gone yet, in one
// write; with last, the end of the framing too. It reports false when the client is gone, and notes it.
func (k *call) send(n int, last bool) bool {
	if t := k.translation; t != nil && !t.over && k.at.events {
		return k.sendEvents(n, last)
	}
	k.sealed = k.sealed || last
	var piece []byte
	if n > 0 || k.chunked {
		piece = k.at.body()[:n]
	}
	if k.chunked {
		piece = frame(k.at.buf[:], n, last)
	}
	return k.put(piece)
}

// put writes a piece of the answer, behind the head if that has not gone yet.
func (k *call) put(piece []byte) bool {
	if !k.begun {
		k.out = append(k.out, piece...)
		piece = k.out
	}
	first := !k.begun
	ok := k.write(piece)
	if first {
		k.at.exchange.DropHead()
	}
	return ok
}

// lastChunk ends a chunked body.
const lastChunk = "0\r\n\r\n"

// frame puts a chunk's frame around n bytes that lie in buf behind chunkHeadRoom, in place.
func frame(buf []byte, n int, last bool) []byte {
	from, to := chunkHeadRoom, chunkHeadRoom+n
	if n > 0 {
		to += copy(buf[to:], "\r\n")
		from -= 2
		copy(buf[from:], "\r\n")
		for v := n; v > 0; v >>= 4 {
			from--
			buf[from] = "0123456789abcdef"[v&15]
		}
	}
	if last {
		to += copy(buf[to:], lastChunk)
	}
	return buf[from:to]
}

// write sends bytes to the client.
func (k *call) write(p []byte) bool {
	k.begun, k.direct = true, true
	if len(p) == 0 {
		return true
	}
	k.moveDeadline()
	k.told.sent += int64(len(p))
	if k.sealed {
		k.bill() // before the client can know that it is over, and ask again
	}
	if _, err := k.conn.Conn.Write(p); err != nil {
		k.outcome = slo.ClientGone
		k.closing, k.stopped = true, true
		return false
	}
	return true
}

// moveDeadline gives the next write its time. The deadline is moved when a quarter of it has passed, since moving it
// costs more than comparing clocks.
func (k *call) moveDeadline() {
	limit := ms(k.srv.cfg.ClientWriteMs)
	if now := time.Now(); now.Sub(k.wrote) > limit/4 {
		k.wrote = now
		_ = k.conn.Conn.SetWriteDeadline(now.Add(limit)) // fails only on a closed connection, which the write will tell
	}
}

// appendHead puts the answer's head into out: the engine's status and headers without those that are not the client's
// business, and our own. A negative length means that only its end shows it.
func (k *call) appendHead(length int64, events bool) {
	x := &k.at.exchange
	http11 := k.ctx.Request.Header.IsHTTP11()
	k.chunked = length < 0 && http11
	k.closing = k.closing || k.srv.draining.Load() || k.ctx.Request.Header.ConnectionClose() || !http11
	k.told.status = x.Status()
	b := append(k.out[:0], "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(x.Status()), 10)
	b = append(b, ' ')
	b = append(b, fasthttp.StatusMessage(x.Status())...)
	b = append(b, "\r\n"...)
	connection := x.Find("connection")
	for i := range x.NumHeaders() {
		name, value := x.Header(i)
		if dropped(name, events) || (len(connection) > 0 && listed(connection, name)) {
			continue
		}
		b = append(b, name...)
		b = append(b, ": "...)
		b = append(b, value...)
		b = append(b, "\r\n"...)
	}
	b = append(b, "X-Request-Id: "...)
	b = append(b, k.id...)
	b = append(b, "\r\n"...)
	b = k.appendLimits(b)
	if k.endpoint.dialect == dialectAnthropic {
		b = append(b, "Request-Id: "...) // where Anthropic's clients look for it
		b = append(b, k.id...)
		b = append(b, "\r\n"...)
	}
	b = k.appendCORS(b)
	if events {
		b = append(b, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"...)
	}
	switch {
	case length >= 0:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, length, 10)
		b = append(b, "\r\n"...)
	case k.chunked:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	if k.closing {
		b = append(b, "Connection: close\r\n"...)
	}
	k.out = append(b, "\r\n"...)
}

// dropped knows the answer headers that end here: hop by hop, framing, and what is the gateway's to say.
func dropped(name []byte, events bool) bool {
	var room [24]byte
	lower := room[:min(len(name), len(room))] // no name below is as long; the beginning of a longer one decides
	for i, ch := range name[:len(lower)] {
		if ch-'A' <= 'Z'-'A' {
			ch |= 0x20
		}
		lower[i] = ch
	}
	switch string(lower) {
	case "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade",
		"content-length", "server", "set-cookie", "x-request-id", "request-id", "x-accel-buffering", "location", "alt-svc":
		return true
	case "cache-control":
		return events
	}
	return bytes.HasPrefix(lower, []byte("x-ratelimit-")) || bytes.HasPrefix(lower, []byte("anthropic-ratelimit-")) || bytes.HasPrefix(lower, []byte("access-control-"))
}

// listed reports that a Connection header names another header.
func listed(connection, name []byte) bool {
	for item := range bytes.SplitSeq(connection, []byte(",")) {
		if bytes.EqualFold(bytes.TrimSpace(item), name) {
			return true
		}
	}
	return false
}
