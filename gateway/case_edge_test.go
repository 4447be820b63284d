package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"sluice/router"
	"sluice/router/own"
)

// failing is a router that panics for one model, with a text that must not reach a client.
type failing struct{ Router }

func (f failing) Acquire(t *own.Ticket, req *router.Request, gone <-chan struct{}) error {
	if req.Model == "empty" {
		panic("planted: /srv/state/raft.db of tenant blue")
	}
	return f.Router.Acquire(t, req, gone)
}

func TestCase_SEC_11_answers_tell_little(t *testing.T) {
	var logs bytes.Buffer
	var mu sync.Mutex
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	down := &engine{addr: ln.Addr().String()}
	ln.Close()
	f := open(t, keyring{hashOf("sk-1"): {ID: "k", Tenant: "green"}, hashOf("sk-2"): {ID: "k2", Tenant: "blue"}}, nil, down)
	f.srv.deps.Router = failing{f.srv.deps.Router}
	f.srv.deps.Log = slog.New(slog.NewTextHandler(&lockedWriter{&mu, &logs}, nil))
	auth := "X-Api-Key: sk-1"
	for _, c := range []struct {
		text   string
		status int
	}{
		{post("/v1/chat/completions", chat, auth), 502},                                     // the engine is down
		{post("/v1/chat/completions", `{"model":"empty","messages":[]}`, auth), 500},        // a handler panics
		{post("/v1/chat/completions", `{"model":`, auth), 400},                              // malformed
		{post("/v1/chat/completions", chat, "X-Api-Key: wrong"), 401},                       // no key
		{post("/v1/chat/completions", `{"model":"other"}`, auth), 404},                      // no model
		{"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400}, // not HTTP
		{"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 404},                          // nothing there
		{"GET /v1/models/..%2f..%2fetc HTTP/1.1\r\nHost: x\r\n" + auth + "\r\n\r\n", 404},   // nor there
	} {
		a := f.ask(c.text)
		if a.status != c.status {
			t.Errorf("%.60q: %d, want %d", c.text, a.status, c.status)
		}
		told := fmt.Sprint(a.header, a.body)
		for _, bad := range []string{down.addr, "127.0.0.1", "goroutine", "planted", "/srv", "blue", "green", ".go:", "etc", "dial tcp", "r0"} {
			if strings.Contains(told, bad) {
				t.Errorf("%.60q tells %q: %s", c.text, bad, told)
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if !strings.Contains(logs.String(), "planted") || !strings.Contains(logs.String(), "requestId=") {
		t.Errorf("the log does not tell of the panic: %s", &logs)
	}
}

// lastAnswer reads an answer; last says that the connection ends with it.
func lastAnswer(br *bufio.Reader) (status int, last bool, err error) {
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		return 0, false, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, res.Close, err
}

// While the server drains, each answer ends its connection: no later request meets a closing one.
func TestCase_OPS_03_nothing_is_reset_while_draining(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, func(c *Config) { c.ReadinessLagMs = 20_000 }, e)
	const clients = 20
	var all sync.WaitGroup
	busy := make(chan struct{}, clients) // each client that has had an answer
	for range clients {
		c := f.raw("")
		all.Go(func() {
			br := bufio.NewReader(c)
			for n := 0; ; n++ { // ends with the drain, or with the connection's own deadline
				if _, err := io.WriteString(c, post("/v1/chat/completions", chat)); err != nil {
					t.Errorf("request %d: %v", n, err)
					return
				}
				status, last, err := lastAnswer(br)
				if err != nil || status != 200 {
					t.Errorf("request %d: %d %v", n, status, err)
					return
				}
				if n == 0 {
					busy <- struct{}{}
				}
				if last {
					return
				}
			}
		})
	}
	for range clients {
		<-busy
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.srv.Shutdown(ctx) }()
	all.Wait() // every client was told to go, long before the lag is over
	until(t, "nothing is in flight", func() bool { return f.srv.InFlight() == 0 })
	if status, last, err := lastAnswer(bufio.NewReader(f.raw(post("/v1/chat/completions", chat)))); status != 200 || !last {
		t.Errorf("within the lag: %d %v %v", status, last, err) // new ones are still taken
	}
	if a := f.ask("GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"); a.status != 503 {
		t.Errorf("%+v", a)
	}
	cancel() // cuts the lag short: there is nothing left to wait for
	<-ended
}

func TestCase_OPS_05_series_of_removed_models_go(t *testing.T) {
	f := open(t, nil, nil)
	b := f.srv.books
	names := func(round int) []router.Model {
		var out []router.Model
		for i := range 20 {
			out = append(out, router.Model{Name: fmt.Sprintf("model-%d-%d", round, i)})
		}
		return out
	}
	reload := func(round int) {
		table, err := router.NewTable(names(round))
		if err != nil {
			t.Fatal(err)
		}
		b.prune(table)
		for _, m := range table.Models() {
			b.of(m.Name).first.Update(1)
		}
	}
	scrape := func() string {
		var text bytes.Buffer
		f.srv.Metrics().WritePrometheus(&text)
		return text.String()
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	rounds := 100
	if testing.Short() {
		rounds = 20
	}
	reload(0)
	size, before := len(scrape()), heap()
	for round := range rounds {
		reload(round + 10)
	}
	text, after := scrape(), heap()
	if strings.Contains(text, `"model-0-`) || !strings.Contains(text, fmt.Sprintf(`model="model-%d-19"`, rounds+9)) || len(text) > size+size/10 {
		t.Fatalf("%d bytes before, %d after", size, len(text))
	}
	if after > before+before/10+1<<20 {
		t.Fatalf("heap %d before, %d after", before, after)
	}
}

// Without traffic the series of a removed model go too: with the scrape after the one that finds out.
func TestSeriesGoWithoutTraffic(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, nil, e)
	if a := f.do("/v1/chat/completions", chat); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	f.settled(1)
	table, err := router.NewTable([]router.Model{{Name: "next"}})
	if err != nil {
		t.Fatal(err)
	}
	f.srv.deps.Router = FromOwn(f.router, func() *router.Table { return table })
	f.srv.Metrics().WritePrometheus(io.Discard)
	var text bytes.Buffer
	f.srv.Metrics().WritePrometheus(&text)
	if strings.Contains(text.String(), `model="m"`) {
		t.Fatal(text.String())
	}
}
