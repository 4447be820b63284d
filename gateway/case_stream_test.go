package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/slo"
)

func (f *floor) failedTries(o slo.Outcome) uint64 { return f.srv.books.of("m").failed[o].Get() }

func TestCase_GW_09_error_after_the_first_chunk(t *testing.T) {
	const quota = `data: {"error":{"message":"quota","type":"insufficient_quota","code":"insufficient_quota"}}` + "\n\n"
	for _, content := range []bool{false, true} {
		var n atomic.Int64
		reply := func(a *asked) {
			switch {
			case n.Add(1) > 1:
				stream(a, good("b")...)
			case content:
				stream(a, roleEvent, delta("1"), delta("2"), delta("3"), quota, delta("never"), doneEvent)
			default:
				stream(a, roleEvent, quota)
			}
		}
		f := open(t, nil, nil, startEngine(t, reply), startEngine(t, reply))
		a := f.do("/v1/chat/completions", chatStream)
		want, outcome, served := body(good("b")), slo.OK, int64(2)
		if content {
			want, outcome, served = roleEvent+delta("1")+delta("2")+delta("3")+quota, slo.UpstreamError, 1
		}
		if a.err != nil || a.body != want || n.Load() != served {
			t.Errorf("content=%v: %d requests, %+v", content, n.Load(), a)
		}
		if s := f.outcome(); s.Outcome != outcome {
			t.Errorf("content=%v: %+v", content, s)
		}
		if n := f.failedTries(slo.UpstreamError); n != 1 {
			t.Errorf("content=%v: %d failed tries are counted", content, n)
		}
	}
}

func TestCase_GW_10_error_of_odd_shape(t *testing.T) {
	for _, c := range [][2]string{
		{"event: error\ndata: {\"message\":\"engine died\"}\n\n", "engine died"},
		{"data: {\"error\":\"engine died\"}\n\n", "engine died"},
		{"data: {\"object\":\"error\",\"message\":\"engine died\",\"code\":500}\n\n", "engine died"},
		{"data: {\"error\":\"a \\\"b\\\"\\n\\u003cscript\\u003e\\u0000\"}\n\n", "a \"b\"\n<script>\x00"},
		{"data: {\"error\":{\"code\":7}}\n\n", "The engine reported an error."},
		{"data: {\"error\":\"" + strings.Repeat("x", 3000) + "\"}\n\n", strings.Repeat("x", 500)},
	} {
		e := startEngine(t, func(a *asked) { stream(a, delta("a"), c[0], delta("never"), doneEvent) })
		f := open(t, nil, nil, e)
		a := f.do("/v1/chat/completions", chatStream)
		event, ok := strings.CutPrefix(a.body, delta("a")+"data: ")
		if got := (answer{body: event}); a.err != nil || !ok || got.code() != "upstream_error" || got.message() != c[1] || strings.Contains(event, "<") {
			t.Errorf("%.60q: %+v", c[0], a)
		}
		if s := f.outcome(); s.Outcome != slo.UpstreamError || f.failedTries(slo.UpstreamError) != 1 {
			t.Errorf("%.60q: %+v", c[0], s)
		}
	}
}

// Comments go out at once, and from then on the stream stays with its replica.
func TestNoOtherReplicaAfterAComment(t *testing.T) {
	var n atomic.Int64
	told := make(chan struct{})
	reply := func(a *asked) {
		n.Add(1)
		a.write(sseHead + chunk(": PROCESSING\n\n"))
		<-told
		a.conn.Close()
	}
	f := open(t, nil, nil, startEngine(t, reply), startEngine(t, reply))
	c := f.raw(post("/v1/chat/completions", chatStream, "Connection: close"))
	br := bufio.NewReader(c)
	for line := ""; !strings.HasPrefix(line, ": PROCESSING"); line, _ = br.ReadString('\n') {
	}
	close(told)
	rest, _ := io.ReadAll(br)
	if !bytes.Contains(rest, []byte("upstream_lost")) || n.Load() != 1 {
		t.Fatalf("%d requests, %q", n.Load(), rest)
	}
	if s := f.outcome(); s.Outcome != slo.UpstreamLost {
		t.Fatalf("%+v", s)
	}
}

// A replica that says its role and nothing more loses the request to another when its time is over.
func TestFirstTokenDeadline(t *testing.T) {
	var n atomic.Int64
	reply := func(a *asked) {
		if n.Add(1) > 1 {
			stream(a, good("b")...)
			return
		}
		a.write(sseHead + chunk(roleEvent))
		hold(a)
	}
	f := open(t, nil, nil, startEngine(t, reply), startEngine(t, reply))
	m, _ := f.srv.deps.Router.Table().Lookup("m")
	m.FirstTokenMs = 2000
	if a := f.do("/v1/chat/completions", chatStream); a.err != nil || a.body != body(good("b")) {
		t.Fatalf("%+v", a)
	}
	if s := f.outcome(); s.Outcome != slo.OK || s.TTFTMs < 2000 || f.failedTries(slo.Timeout) != 1 {
		t.Fatalf("%+v", s)
	}
}

func TestModelsRequestTimeout(t *testing.T) {
	e := startEngine(t, func(a *asked) { a.write(sseHead + chunk(delta("a"))); hold(a) })
	f := open(t, nil, nil, e)
	m, _ := f.srv.deps.Router.Table().Lookup("m")
	m.RequestTimeoutMs = 300
	a := f.do("/v1/chat/completions", chatStream)
	rest, ok := strings.CutPrefix(a.body, delta("a")+"data: ")
	if ok && (answer{body: rest}).code() != "upstream_timeout" || !ok && a.code() != "upstream_timeout" {
		t.Fatalf("%+v", a)
	}
	if s := f.outcome(); s.Outcome != slo.Timeout {
		t.Fatalf("%+v", s)
	}
}

// message is the message of an error body.
func (a answer) message() string {
	_, rest, _ := strings.Cut(a.body, `"message":`)
	var s string
	if _, err := fmt.Sscanf(rest, "%q", &s); err != nil {
		s = strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0000`, "\x00").Replace(rest)
		fmt.Sscanf(s, "%q", &s)
	}
	return s
}

func TestCase_GW_13_clients_that_never_read(t *testing.T) {
	const most, each = 200 << 20, 32 << 20 // the kernel's buffers on the way hold some megabytes
	clients := 20
	if testing.Short() {
		clients = 6
	}
	event := []byte(chunk(delta(strings.Repeat("x", 64<<10))))
	sent := make([]atomic.Int64, clients)
	var n atomic.Int64
	e := startEngine(t, func(a *asked) {
		i := n.Add(1) - 1
		for err := a.write(sseHead); err == nil && sent[i].Load() < most; _, err = a.conn.Write(event) {
			sent[i].Add(int64(len(event)))
		}
	})
	f := open(t, nil, func(c *Config) { c.ClientWriteMs = 1500 }, e)
	before := heap()
	for range clients {
		c := f.raw("")
		c.(*net.TCPConn).SetReadBuffer(4 << 10)
		io.WriteString(c, post("/v1/chat/completions", chatStream, interactive))
	}
	until(t, "all stream", func() bool { return int(n.Load()) == clients })
	grown := heap() - before
	for range 2 {
		grown = min(grown, heap()-before) // garbage of the moment aside
	}
	// Held without bound they would take most each. The scripted engine and the garbage of the moment are in it too.
	if grown > int64(clients)*2<<20+24<<20 && !raceOn {
		t.Errorf("%d MiB for %d clients", grown>>20, clients)
	}
	for _, s := range f.settled(clients) { // each is cut after the write timeout
		if s.Outcome != slo.ClientGone {
			t.Fatalf("%+v", s)
		}
	}
	until(t, "the engine was told", func() bool { return e.running.Load() == 0 })
	for i := range sent {
		if got := sent[i].Load(); got > each {
			t.Errorf("the engine could send %d MiB", got>>20)
		}
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// marker is a stream whose every event names its request.
func marker(id string) []string {
	events := []string{roleEvent}
	for range 6 {
		events = append(events, delta(id))
	}
	return append(events, finishEvent, doneEvent)
}

func TestCase_GW_20_cancelled_streams_share_nothing(t *testing.T) {
	engines := make([]*engine, 2)
	for i := range engines {
		engines[i] = startEngine(t, func(a *asked) {
			_, id, _ := strings.Cut(a.body, "marker-")
			stream(a, marker("marker-"+id[:8])...)
		})
	}
	f := open(t, nil, nil, engines...)
	requests, workers := 10_000, 50
	if testing.Short() {
		requests, workers = 1000, 20
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 20))
			for i := range requests / workers {
				id := fmt.Sprintf("marker-%02d%06d", w, i)
				c, err := net.Dial("tcp", f.addr)
				if err != nil {
					t.Error(err)
					return
				}
				request := post("/v1/chat/completions", strings.Replace(chatStream, "hello", id, 1), "Connection: close")
				c.SetDeadline(time.Now().Add(30 * time.Second))
				io.WriteString(c, request)
				if r.IntN(2) == 0 {
					c.Read(make([]byte, 1+r.IntN(900)))
					leaveBy(c, r.IntN(2) == 0)
					continue
				}
				if a := readAnswer(bufio.NewReader(c)); a.err != nil || a.body != body(marker(id)) {
					t.Errorf("%s: %+v", id, a)
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	until(t, "nothing is in flight", func() bool { return f.srv.InFlight() == 0 })
	f.idle(t)
	if n := f.srv.books.panics.Get(); n != 0 {
		t.Errorf("%d panics", n)
	}
}

// The engine closes each connection right after an answer that said it would be kept: the worst moment for the next.
func TestCase_GW_21_connection_closed_as_it_is_used(t *testing.T) {
	var mu sync.Mutex
	taken := map[string]int{}
	e := startEngine(t, func(a *asked) {
		_, id, _ := strings.Cut(a.body, "marker-")
		mu.Lock()
		taken[id[:8]]++
		mu.Unlock()
		replyJSON(a, 200, jsonAnswer)
		a.conn.Close()
	})
	f := open(t, nil, nil, e)
	c := f.raw("")
	br := bufio.NewReader(c)
	const requests = 300
	for i := range requests {
		io.WriteString(c, post("/v1/chat/completions", strings.Replace(chat, "hello", fmt.Sprintf("marker-%08d", i), 1)))
		if a := readAnswer(br); a.status != 200 || a.body != jsonAnswer {
			t.Fatalf("%d: %+v", i, a)
		}
	}
	f.settled(requests)
	twice := 0
	for id, n := range taken {
		if twice += n - 1; n > 2 {
			t.Errorf("%s was taken %d times", id, n)
		}
	}
	if st := f.srv.client.Stats(); len(taken) != requests || uint64(twice) > st.Retries || f.srv.books.retries.Get() != 0 {
		t.Errorf("%d ids, %d taken twice, %+v", len(taken), twice, st)
	}
}

// Tokens of an engine that frames nothing and closes at the end go on one by one: each is sent when the client has the
// one before.
func TestTokensOfAClosingEngineAreNotHeld(t *testing.T) {
	seen := make(chan struct{})
	e := startEngine(t, func(a *asked) {
		a.write("HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
		for i := range 20 {
			a.write(delta(fmt.Sprint("token-", i, ".")))
			select {
			case <-seen:
			case <-a.gone:
			}
		}
		a.write(finishEvent + doneEvent)
		a.conn.Close()
	})
	f := open(t, nil, nil, e)
	c := f.raw(post("/v1/chat/completions", chatStream, "Connection: close"))
	br := bufio.NewReader(c)
	for i := range 20 {
		want := fmt.Sprint("token-", i, ".")
		for line := ""; !strings.Contains(line, want); {
			var err error
			if line, err = br.ReadString('\n'); err != nil {
				t.Fatal(want, err)
			}
		}
		seen <- struct{}{}
	}
	if rest, err := io.ReadAll(br); err != nil || !strings.Contains(string(rest), "[DONE]") {
		t.Fatalf("%q %v", rest, err)
	}
	if s := f.outcome(); s.Outcome != slo.OK {
		t.Fatalf("%+v", s)
	}
}
