package gateway

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sluice/slo"
)

const roleEvent = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"

// duel is two replicas, of which the one that the first try goes to plays a and the other b, with hedging at once.
type duel struct {
	*floor
	firstAsked  chan struct{} // closed when a has its request
	secondAsked chan struct{} // closed when b has its request
}

func openDuel(t *testing.T, a, b func(d *duel, x *asked)) *duel {
	t.Helper()
	d := &duel{firstAsked: make(chan struct{}), secondAsked: make(chan struct{})}
	play := func(x *asked) {
		switch {
		case strings.Contains(x.head, "Authorization: try-1\r\n"):
			close(d.firstAsked)
			a(d, x)
		case strings.Contains(x.head, "Authorization: try-2\r\n"):
			close(d.secondAsked)
			b(d, x)
		default:
			t.Error("a third request")
			x.conn.Close()
		}
	}
	d.floor = open(t, nil, nil, startEngine(t, play), startEngine(t, play))
	d.eager()
	var tries atomic.Int64 // in the order in which they are made, which need not be that in which engines see them
	d.srv.deps.UpstreamAuth = func(string) string { return fmt.Sprintf("try-%d", tries.Add(1)) }
	return d
}

// eager makes every interactive request one whose answer is late, with a full budget.
func (f *floor) eager() {
	books := f.srv.books.of("m")
	books.waits[0].lateUs.Store(1)
	books.waits[1].lateUs.Store(1)
	f.srv.hedges.milli.Store(hedgeBurst * 1000)
}

func (d *duel) hedges(t *testing.T, started, won uint64) {
	t.Helper()
	if b := d.srv.books; b.hedges.Get() != started || b.hedgesWon.Get() != won {
		t.Errorf("%d hedges, %d won; want %d, %d", b.hedges.Get(), b.hedgesWon.Get(), started, won)
	}
}

const interactive = "X-Sluice-Class: interactive"

// good is a whole stream that says who sent it.
func good(who string) []string { return []string{roleEvent, delta(who), finishEvent, doneEvent} }

func body(events []string) string { return strings.Join(events, "") }

func TestHedge(t *testing.T) {
	stall := func(_ *duel, x *asked) { hold(x) }
	stallAfter := func(events ...string) func(*duel, *asked) {
		return func(_ *duel, x *asked) {
			x.write(sseHead)
			for _, e := range events {
				x.write(chunk(e))
			}
			hold(x)
		}
	}
	answerAs := func(who string) func(*duel, *asked) {
		return func(_ *duel, x *asked) { stream(x, good(who)...) }
	}
	// slow answers when the other has been asked, so that both run.
	slow := func(who string) func(*duel, *asked) {
		return func(d *duel, x *asked) { <-d.secondAsked; stream(x, good(who)...) }
	}
	die := func(_ *duel, x *asked) { x.conn.Close() }
	dieLate := func(d *duel, x *asked) { <-d.secondAsked; x.conn.Close() }
	full := func(_ *duel, x *asked) { replyJSON(x, 503, `{"error":{"message":"full"}}`) }
	garbage := func(_ *duel, x *asked) { x.write("220 smtp\r\n\r\n"); x.conn.Close() }
	fault := func(_ *duel, x *asked) { stream(x, roleEvent, "data: {\"error\":{\"message\":\"quota\"}}\n\n") }
	for _, c := range []struct {
		name string
		a, b func(*duel, *asked)
		want string // body, or a code
		won  uint64
	}{
		{"B wins, A silent", stall, answerAs("b"), body(good("b")), 1},
		{"B wins, A said its role", stallAfter(roleEvent), answerAs("b"), body(good("b")), 1},
		{"A wins, B silent", slow("a"), stall, body(good("a")), 0},
		{"A wins, B said its role", slow("a"), stallAfter(roleEvent), body(good("a")), 0},
		{"A wins, B dead", slow("a"), die, body(good("a")), 0},
		{"A wins, B full", slow("a"), full, body(good("a")), 0},
		{"A wins, B speaks garbage", slow("a"), garbage, body(good("a")), 0},
		{"A wins, B in error", slow("a"), fault, body(good("a")), 0},
		{"A dies, B goes on", dieLate, answerAs("b"), body(good("b")), 1},
		{"A full, B goes on", func(d *duel, x *asked) { <-d.secondAsked; full(d, x) }, answerAs("b"), body(good("b")), 1},
		{"A in error, B goes on", func(d *duel, x *asked) { <-d.secondAsked; fault(d, x) }, answerAs("b"), body(good("b")), 1},
		{"both die", dieLate, die, "upstream_lost", 0},
		{"both in error", func(d *duel, x *asked) { <-d.secondAsked; fault(d, x) }, fault, "upstream_error", 0},
		{"A's answer is an error of the request", func(d *duel, x *asked) {
			<-d.secondAsked
			replyJSON(x, 400, `{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}`)
		}, stall, "context_length_exceeded", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := openDuel(t, c.a, c.b)
			a := d.do("/v1/chat/completions", chatStream, interactive)
			if a.err != nil || a.body != c.want && (strings.HasPrefix(c.want, "data:") || a.code() != c.want) {
				t.Fatalf("%+v", a)
			}
			s := d.outcome()
			if strings.HasPrefix(c.want, "data:") && (s.Outcome != slo.OK || s.OutputTokens != 1) {
				t.Fatalf("%+v", s)
			}
			d.hedges(t, 1, c.won)
			d.idle(t)
		})
	}
}

// idle checks that no replica holds a charge any more.
func (f *floor) idle(t *testing.T) {
	t.Helper()
	until(t, "charges are given back", func() bool {
		for _, r := range f.router.Stats(0).Replicas {
			if r.InFlight != 0 || r.WorkMs != 0 {
				return false
			}
		}
		return true
	})
}

func TestHedgeOfAWholeAnswer(t *testing.T) {
	d := openDuel(t, func(_ *duel, x *asked) { hold(x) }, func(_ *duel, x *asked) { replyJSON(x, 200, jsonAnswer, "X-Who: b") })
	a := d.do("/v1/chat/completions", chat, interactive)
	if a.err != nil || a.body != jsonAnswer || a.header.Get("X-Who") != "b" {
		t.Fatalf("%+v", a)
	}
	if s := d.outcome(); s.Outcome != slo.OK || s.InputTokens != 7 || s.OutputTokens != 3 {
		t.Fatalf("%+v", s)
	}
	d.hedges(t, 1, 1)
	d.idle(t)
}

func TestClientLeavesInTheMiddleOfAHedge(t *testing.T) {
	for _, reset := range []bool{false, true} {
		var closed sync.WaitGroup
		closed.Add(2)
		wait := func(_ *duel, x *asked) { hold(x); closed.Done() }
		d := openDuel(t, wait, wait)
		c := d.raw(post("/v1/chat/completions", chatStream, interactive))
		<-d.firstAsked
		<-d.secondAsked
		leaveBy(c, reset)
		closed.Wait() // both engines were told
		if s := d.outcome(); s.Outcome != slo.ClientGone {
			t.Fatalf("%+v", s)
		}
		d.idle(t)
	}
}

func TestNoHedge(t *testing.T) {
	answer := func(x *asked) { stream(x, good("x")...) }
	two := func(t *testing.T) *floor { return open(t, nil, nil, startEngine(t, answer), startEngine(t, answer)) }
	for name, prepare := range map[string]func(t *testing.T) (*floor, string){
		"standard class": func(t *testing.T) (*floor, string) { f := two(t); f.eager(); return f, "X-Sluice-Class: standard" },
		"under load": func(t *testing.T) (*floor, string) {
			f := two(t)
			f.eager()
			f.srv.books.of("m").inFlight.Add(77) // of 128, and the request itself: above 0.6
			t.Cleanup(func() { f.srv.books.of("m").inFlight.Add(-77) })
			return f, interactive
		},
		"budget spent": func(t *testing.T) (*floor, string) {
			f := two(t)
			f.eager()
			f.srv.hedges.milli.Store(0)
			return f, interactive
		},
		"switched off": func(t *testing.T) (*floor, string) {
			f := two(t)
			f.eager()
			f.srv.cfg.HedgeRatio = 0
			return f, interactive
		},
		"one replica": func(t *testing.T) (*floor, string) {
			f := open(t, nil, nil, startEngine(t, answer))
			f.eager()
			return f, interactive
		},
		"nothing learned": func(t *testing.T) (*floor, string) { return two(t), interactive },
	} {
		t.Run(name, func(t *testing.T) {
			f, class := prepare(t)
			if a := f.do("/v1/chat/completions", chatStream, class); a.err != nil || a.body != body(good("x")) {
				t.Fatalf("%+v", a)
			}
			if n := f.srv.books.hedges.Get(); n != 0 {
				t.Fatalf("%d hedges", n)
			}
		})
	}
}

func TestHedgeBudgetIsAShare(t *testing.T) {
	b := emptyBudget(Default().HedgeRatio, hedgeBurst)
	made := 0
	for range 10_000 {
		b.request()
		if b.spend() {
			made++
		}
	}
	if made > 500 || made < 490 {
		t.Errorf("%d second tries for 10,000 requests", made)
	}
}

func TestWaits(t *testing.T) {
	var w waits
	for i := range waitFewest - 1 {
		w.observe(100, int64(i))
	}
	if w.lateMs() != 0 {
		t.Error("speaks too early")
	}
	for i := range 10 * waitFewest {
		w.observe(100+float64(i%100), 100)
	}
	if late := w.lateMs(); late < 180 || late > 230 {
		t.Errorf("p95 of 100 to 200: %v", late)
	}
	for range 10 * waitFewest {
		w.observe(1, 10*waitWindowMs)
	}
	if late := w.lateMs(); late != hedgeFloorMs {
		t.Errorf("after windows of quick answers: %v", late)
	}
	for _, odd := range []float64{-1, 0, 1e300} {
		w.observe(odd, 10*waitWindowMs)
	}
	if raceOn {
		return
	}
	if n := testing.AllocsPerRun(100, func() { w.observe(5, 10*waitWindowMs) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestHedgeStorm lets engines do anything while every request is hedged: each client gets one whole answer, of one
// engine, or an error.
func TestHedgeStorm(t *testing.T) {
	engines := make([]*engine, 4)
	for i := range engines {
		who := fmt.Sprintf("engine-%d", i)
		var n atomic.Int64
		engines[i] = startEngine(t, func(x *asked) {
			switch n.Add(1) % 8 {
			case 0:
				x.conn.Close()
			case 1:
				x.write(sseHead + chunk(roleEvent))
				x.conn.Close()
			case 2:
				x.write(sseHead + chunk(roleEvent) + chunk(delta(who)) + chunk("data: {\"cho"))
				x.conn.Close()
			case 3:
				replyJSON(x, 503, "{}")
			case 4:
				x.write(sseHead + chunk(roleEvent) + chunk("data: {\"error\":{\"message\":\"quota\"}}\n\n") + "0\r\n\r\n")
			default:
				stream(x, good(who)...)
			}
		})
	}
	f := open(t, nil, nil, engines...)
	requests, workers := 400, 8
	if testing.Short() {
		requests = 120
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range requests / workers {
				f.eager()
				c, err := net.Dial("tcp", f.addr)
				if err != nil {
					t.Error(err)
					return
				}
				a := f.exchange(c, post("/v1/chat/completions", chatStream, interactive, "Connection: close"), (w+i)%5 == 0)
				c.Close()
				if a != nil && a.err == nil {
					oneAnswer(t, a)
				}
			}
		})
	}
	wg.Wait()
	f.deserted()
	f.idle(t)
	if f.srv.books.hedges.Get() == 0 || f.srv.books.panics.Get() != 0 {
		t.Errorf("%d hedges, %d panics", f.srv.books.hedges.Get(), f.srv.books.panics.Get())
	}
}
