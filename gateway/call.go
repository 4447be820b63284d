package gateway

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/valyala/fasthttp"

	"sluice/gateway/quota"
	"sluice/gateway/record"
	"sluice/gateway/wire"
	"sluice/router"
	"sluice/slo"
)

// Limits of a call.
const (
	maxErrorBytes = 8 << 10   // of an engine's error that are kept
	maxPrompt     = 128 << 10 // bytes of a prompt that are hashed
)

// call is one request from its first byte to its last. The serving goroutine owns it; it goes back to the pool when
// nothing else can reach it (clientConn.detach).
type call struct {
	srv  *Server
	ctx  *fasthttp.RequestCtx
	conn *clientConn

	endpoint *endpoint // never nil: noEndpoint until the path is known
	id       []byte    // request id, checked or made
	key      Key
	hash     keyHash
	head     wire.Head
	model    *router.Model
	target   router.Target // what the asked name stands for
	kept     kept          // of a request about an answer that an engine keeps
	convert  *converter    // of the vectors in the answer; nil: there are none
	books    *modelBooks
	hold     quota.Hold
	ask      router.Request
	exclude  [maxTries + 1]string // replicas tried, of which one may have been beside another
	excluded int

	at      *attempt // the try whose answer counts; never nil
	told    told
	attempt attempt // the call's own, used one after the other for all tries but a second one beside it
	race    race
	out     []byte
	prefix  []uint64

	translation *translation // nil: the engine speaks the client's language

	arrived    time.Time
	deadline   time.Time
	wrote      time.Time // when the write deadline was set
	queueMs    float64
	patienceMs int64 // the time that the client allowed, shorter than the model's; 0: it did not say
	outcome    slo.Outcome
	observed   bool // Arrived was called
	begun      bool // bytes of the answer have gone to the client
	direct     bool // the answer does not go through fasthttp
	chunked    bool // the answer to the client is framed in chunks
	stopped    bool // the client cannot be written to
	sealed     bool // the end of the answer has gone out
	closing    bool // the client's connection ends with this answer
}

func newCall(s *Server) *call {
	k := &call{srv: s}
	k.attempt.call, k.at = k, &k.attempt
	return k
}

// begin takes the call for a request.
func (k *call) begin(ctx *fasthttp.RequestCtx, c *clientConn) {
	k.ctx, k.conn, k.endpoint = ctx, c, noEndpoint
	k.arrived = time.Now()
	k.wrote = k.arrived
	k.outcome = slo.Internal // until something is decided
	k.readID()
	k.openRecord()
	c.busy.Store(true)
	k.srv.books.inFlight.Add(1)
	_ = ctx.SetWriteDeadline(k.arrived.Add(ms(k.srv.cfg.ClientWriteMs))) // also makes fasthttp flush; see clientConn
}

// end gives back whatever the call holds, on every way out, and books how it ended.
func (k *call) end() {
	if r := recover(); r != nil {
		k.panicked(r)
	}
	k.release()
	k.bill()
	if k.books != nil {
		k.bookIt()
	}
	k.closeRecord()
	if k.direct {
		k.conn.swallow = true
		if k.closing {
			k.ctx.SetConnectionClose()
		}
	}
	k.srv.bodies.release(&k.ctx.Request.Header)
	k.srv.books.inFlight.Add(-1)
	k.conn.busy.Store(false)
	k.reset()
	k.srv.calls.Put(k)
}

// reset drops every reference, keeping buffers.
func (k *call) reset() {
	k.ctx, k.conn, k.key, k.model, k.books = nil, nil, Key{}, nil, nil
	k.ask, k.exclude, k.excluded = router.Request{}, [maxTries + 1]string{}, 0
	k.target, k.kept = router.Target{}, kept{}
	k.convert.giveBack()
	k.convert = nil
	k.told = told{}
	k.translation.giveBack()
	k.translation = nil
	if k.at != &k.attempt {
		k.at.putBack()
	}
	k.at = &k.attempt
	k.at.reset()
	k.race.run = false
	k.id, k.out, k.prefix = k.id[:0], k.out[:0], k.prefix[:0]
	k.deadline, k.queueMs, k.patienceMs = time.Time{}, 0, 0
	k.observed, k.begun, k.direct, k.chunked, k.stopped, k.sealed, k.closing = false, false, false, false, false, false, false
}

// panicked is the last resort: the fault is ours, the other requests go on.
func (k *call) panicked(r any) {
	k.srv.books.panics.Inc()
	k.srv.deps.Log.Error("a handler panicked", "requestId", string(k.id), "panic", fmt.Sprint(r))
	k.outcome = slo.Internal
	if k.begun {
		k.closing = true
		k.conn.Conn.Close()
		return
	}
	k.direct = false
	k.refuse(fasthttp.StatusInternalServerError, slo.Internal, "internal", "The gateway failed.", 0)
}

// release ends the try.
func (k *call) release() {
	k.endRace()
	k.conn.detach()
	k.at.release(k.outcome)
}

func msSince(t time.Time) float64 { return float64(time.Since(t)) / float64(time.Millisecond) }

// bookIt tells the books and the observer how the request ended.
func (k *call) bookIt() {
	sample := slo.Sample{
		Model: k.books.name, Tenant: k.key.Tenant, Replica: k.at.replica.ID, Class: k.ask.Class, Outcome: k.outcome,
		ArrivalMs: k.srv.deps.NowMs() - time.Since(k.arrived).Milliseconds(), QueueMs: k.queueMs,
		TTFTMs: k.at.ttftMs(), E2EMs: msSince(k.arrived), PatienceMs: float64(k.patienceMs),
	}
	sample.InputTokens, sample.OutputTokens = k.at.tokens()
	sample.ITLMs = k.at.itlMs(sample.OutputTokens)
	if a := k.at; !a.first.IsZero() && !k.endpoint.free {
		k.waits().observe(float64(a.first.Sub(a.started))/float64(time.Millisecond), sample.ArrivalMs)
	}
	k.books.finished(&sample)
	if k.observed && k.outcome == slo.OK {
		k.books.choices.Add(k.head.N)
	}
	if k.observed {
		k.books.inFlight.Add(-1)
		k.srv.deps.Observer.Finished(sample)
	}
}

// readID takes the client's x-request-id if its form is harmless, else makes one.
func (k *call) readID() {
	sent := k.ctx.Request.Header.Peek("X-Request-Id")
	if validID(sent) {
		k.id = append(k.id[:0], sent...)
		return
	}
	k.id = appendNewID(k.id[:0])
}

func appendNewID(dst []byte) []byte {
	dst = append(dst, "req_"...)
	const digits = "0123456789abcdef"
	for range 2 {
		for r, i := rand.Uint64(), 0; i < 16; i++ {
			dst = append(dst, digits[r&15])
			r >>= 4
		}
	}
	return dst
}

func validID(b []byte) bool {
	if len(b) == 0 || len(b) > record.MaxIDBytes {
		return false
	}
	for _, ch := range b {
		if !record.PlainID(ch) {
			return false
		}
	}
	return true
}
