package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"go.uber.org/goleak"

	"sluice/router"
	"sluice/router/own"
	"sluice/slo"
)

func TestMain(m *testing.M) {
	// fasthttp keeps a goroutine for the date header, and one a server that ends up to 10 s after it.
	// net/http lingers half a second on a connection that it ends.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"), goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// engine is a mock that speaks bytes: serve gets each request and writes what it likes.
type engine struct {
	addr    string
	running atomic.Int64 // requests whose serve has not returned
	peak    atomic.Int64
	served  atomic.Int64
	open    atomic.Int64 // connections
	mu      sync.Mutex
	heads   []string
	bodies  []string
}

// asked is one request as the engine got it.
type asked struct {
	head, body string
	conn       net.Conn
	gone       chan struct{} // closed when the gateway has closed the connection
}

func (a *asked) write(s string) error { _, err := io.WriteString(a.conn, s); return err }

func startEngine(t *testing.T, serve func(a *asked)) *engine {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{addr: ln.Addr().String()}
	var all sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = true
			mu.Unlock()
			all.Go(func() { e.serve(c, serve) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for c := range conns {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return e
}

// serve answers the requests of one connection. A reader goroutine notices when the gateway closes it.
func (e *engine) serve(c net.Conn, serve func(a *asked)) {
	e.open.Add(1)
	defer e.open.Add(-1)
	defer c.Close()
	gone := make(chan struct{})
	requests := make(chan *asked)
	go func() {
		defer close(requests)
		br := bufio.NewReader(c)
		for {
			a, err := readAsked(br)
			if err != nil {
				close(gone)
				return
			}
			a.conn, a.gone = c, gone
			select {
			case requests <- a:
			case <-gone:
			}
		}
	}()
	defer func() {
		c.Close()
		for range requests {
		}
	}()
	for a := range requests {
		e.mu.Lock()
		e.heads, e.bodies = append(e.heads, a.head), append(e.bodies, a.body)
		e.mu.Unlock()
		e.served.Add(1)
		n := e.running.Add(1)
		for p := e.peak.Load(); n > p && !e.peak.CompareAndSwap(p, n); p = e.peak.Load() {
		}
		serve(a)
		e.running.Add(-1)
	}
}

func readAsked(br *bufio.Reader) (*asked, error) {
	a := &asked{}
	n := 0
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			return nil, err
		}
		a.head += line
		fmt.Sscanf(line, "Content-Length: %d", &n)
		if line == "\r\n" {
			break
		}
	}
	body := make([]byte, n)
	_, err := io.ReadFull(br, body)
	a.body = string(body)
	return a, err
}

func (e *engine) last() (head, body string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heads[len(e.heads)-1], e.bodies[len(e.bodies)-1]
}

const jsonAnswer = `{"id":"x","choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":7,"completion_tokens":3}}`

// replyJSON answers with a length.
func replyJSON(a *asked, status int, body string, headers ...string) {
	a.write(fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s",
		status, strings.Join(append(headers, ""), "\r\n"), len(body), body))
}

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

const sseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

func delta(text string) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", text)
}

const (
	finishEvent = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	usageEvent  = "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":50,\"total_tokens\":60}}\n\n"
	doneEvent   = "data: [DONE]\n\n"
)

// stream answers with events, each in a chunk.
func stream(a *asked, events ...string) {
	a.write(sseHead)
	for _, e := range events {
		a.write(chunk(e))
	}
	a.write("0\r\n\r\n")
}

// floor is a gateway with what a test needs around it.
type floor struct {
	t      testing.TB
	srv    *Server
	router *own.Router
	table  atomic.Pointer[router.Table]
	addr   string
	mu     sync.Mutex
	ended  []slo.Sample
	begun  int
	done   chan error
}

func (f *floor) Arrived(string, slo.Class, int64) { f.mu.Lock(); f.begun++; f.mu.Unlock() }

func (f *floor) Finished(s slo.Sample) { f.mu.Lock(); f.ended = append(f.ended, s); f.mu.Unlock() }

func (f *floor) samples() []slo.Sample {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]slo.Sample(nil), f.ended...)
}

type keyring map[string]Key

func (k keyring) Empty() bool { return len(k) == 0 }

func (k keyring) Lookup(hash []byte) (Key, bool) { key, ok := k[string(hash)]; return key, ok }

// open starts a gateway in front of the engines, all replicas of model "m", known upstream as "real".
func open(t *testing.T, keys Keys, change func(*Config), engines ...*engine) *floor {
	t.Helper()
	return openFor(t, keys, change, engines...)
}

func openFor(t testing.TB, keys Keys, change func(*Config), engines ...*engine) *floor {
	t.Helper()
	model := router.Model{Name: "m", Aliases: []string{"alias"}, Speaks: []string{speaksResponses}}
	for i, e := range engines {
		model.Replicas = append(model.Replicas, router.Replica{ID: fmt.Sprintf("r%d", i), Addr: e.addr, MaxInFlight: 64, UpstreamModel: "real"})
	}
	return openModels(t, keys, change, model, router.Model{Name: "empty"})
}

// openModels starts a gateway with these models.
func openModels(t testing.TB, keys Keys, change func(*Config), models ...router.Model) *floor {
	t.Helper()
	f := &floor{t: t, done: make(chan error, 1)}
	table, err := router.NewTable(models)
	if err != nil {
		t.Fatal(err)
	}
	rc := own.Default()
	rc.EmptyWaitMs = 0
	f.router = own.New(rc)
	f.table.Store(table)
	f.router.SetTable(table)
	cfg := Default()
	if change != nil {
		change(&cfg)
	}
	f.srv, err = New(cfg, Deps{Router: FromOwn(f.router, f.table.Load), Keys: keys, Observer: f, Metrics: metrics.NewSet()})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = ln.Addr().String()
	go func() { f.done <- f.srv.Serve(seen{ln, f}) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		f.srv.Shutdown(ctx)
		<-f.done
		f.router.Close()
	})
	return f
}

// seen is a listener whose connections see what the test changed in the server before it let them be opened.
type seen struct {
	net.Listener
	f *floor
}

func (s seen) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	s.f.show()
	return c, err
}

// show makes what was changed seen by connections that are opened from now on. raw does.
func (f *floor) show() {
	f.mu.Lock()
	defer f.mu.Unlock()
}

// raw opens a connection and sends a request as text.
func (f *floor) raw(text string) net.Conn {
	f.t.Helper()
	f.show()
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, text); err != nil {
		f.t.Fatal(err)
	}
	return c
}

func post(path, body string, headers ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", path, strings.Join(append(headers, ""), "\r\n"), len(body), body)
}

const (
	chat       = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	chatStream = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`
)

// answer is a whole answer.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

func (f *floor) do(path, body string, headers ...string) answer {
	f.t.Helper()
	c := f.raw(post(path, body, append(headers, "Connection: close")...))
	defer c.Close()
	return readAnswer(bufio.NewReader(c))
}

func readAnswer(br *bufio.Reader) answer {
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		return answer{err: err}
	}
	body, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(body), err}
}

// code is the code of an error body.
func (a answer) code() string {
	var e struct {
		Error struct{ Message, Type, Code string }
	}
	if json.Unmarshal([]byte(a.body), &e) != nil || e.Error.Message == "" || e.Error.Type == "" {
		return "not an error: " + a.body
	}
	return e.Error.Code
}

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

// deserted waits until the gateway has seen every connection that was opened before, and its end. Clients must have left:
// what they sent last may not have been looked at yet.
func (f *floor) deserted() {
	f.t.Helper()
	readAnswer(bufio.NewReader(f.raw("GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))) // behind all others
	until(f.t, "all connections ended", func() bool { return f.srv.http.GetOpenConnectionsCount() == 0 && f.srv.InFlight() == 0 })
}

// settled waits until nothing is in flight and checks that every counter is back at 0.
func (f *floor) settled(requests int) []slo.Sample {
	f.t.Helper()
	until(f.t, "all requests ended", func() bool { return len(f.samples()) == requests && f.srv.InFlight() == 0 })
	if n, tokens := f.srv.ledgers.held(); n != 0 || tokens != 0 {
		f.t.Fatalf("%d requests still count as running, %d tokens are still reserved", n, tokens)
	}
	var b bytes.Buffer
	f.srv.Metrics().WritePrometheus(&b)
	if !strings.Contains(b.String(), "sluice_gateway_requests_in_flight 0\n") {
		f.t.Fatal("the in-flight gauge is not 0")
	}
	f.srv.books.models.Range(func(_, v any) bool {
		if n := v.(*modelBooks).inFlight.Load(); n != 0 {
			f.t.Fatalf("%d in flight for a model", n)
		}
		return true
	})
	return f.samples()
}

// outcome waits for one request and returns its sample.
func (f *floor) outcome() slo.Sample { return f.settled(1)[0] }
