package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sluice/router"
)

// exchange sends a request and reads its answer, or leaves after a few bytes of it.
func (f *floor) exchange(c net.Conn, request string, leave bool) *answer {
	c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		return nil
	}
	if leave {
		c.Read(make([]byte, 40))
		return nil
	}
	a := readAnswer(bufio.NewReader(c))
	return &a
}

// oneAnswer checks that a stream is one engine's: its role once, then its content, then its end or an error.
func oneAnswer(t *testing.T, a *answer) {
	t.Helper()
	if a.status != 200 {
		if strings.HasPrefix(a.code(), "not an error") {
			t.Errorf("%+v", a)
		}
		return
	}
	rest, ok := strings.CutPrefix(a.body, roleEvent)
	if !ok {
		t.Errorf("%q", a.body)
		return
	}
	event, rest, _ := strings.Cut(rest, "\n\n")
	i := strings.Index(event, "engine-")
	if i < 0 || event+"\n\n" != delta(event[i:i+len("engine-0")]) {
		t.Errorf("%q", a.body)
		return
	}
	if rest != finishEvent+doneEvent && (answer{body: strings.TrimPrefix(rest, "data: ")}).code() != "upstream_lost" {
		t.Errorf("%q", a.body)
	}
}

// stormSize is how many requests the storm has: SLUICE_STORM says otherwise.
func stormSize(t *testing.T) int {
	if text := os.Getenv("SLUICE_STORM"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("SLUICE_STORM is %q; write how many requests", text)
		}
		return n
	}
	if testing.Short() || raceOn {
		return 300
	}
	return 1000
}

// stormSeed is SLUICE_STORM_SEED, or another each time.
func stormSeed(t *testing.T) uint64 {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SLUICE_STORM_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("SLUICE_STORM_SEED is %q; write a whole number", text)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("SLUICE_STORM_SEED=%d", seed)
		}
	})
	return seed
}

// openFiles counts the process's descriptors; 0 where they cannot be seen.
func openFiles() int {
	entries, _ := os.ReadDir("/proc/self/fd")
	return len(entries)
}

// TestCancelStorm lets clients leave in every phase of requests of every kind, hedged ones too, while engines do whatever
// engines do and replicas come and go: nothing is left of it, no byte of an answer is in another, and each request has
// ended once.
func TestCancelStorm(t *testing.T) {
	files, routines := openFiles(), runtime.NumGoroutine()
	t.Run("storm", storm)
	until(t, "descriptors are closed", func() bool { return openFiles() <= files })
	// fasthttp keeps a goroutine a server for up to 10 s, and one for dates.
	until(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= routines+2 })
}

func storm(t *testing.T) {
	d := newDice(stormSeed(t))
	engines := []*engine{deafEngine(t)}
	for range 5 {
		engines = append(engines, startEngine(t, d.misbehave))
	}
	keys := keyring{
		hashOf("sk-0"): {ID: "k0", Tenant: "free"},
		hashOf("sk-1"): {ID: "k1", Tenant: "tight", Limits: Limits{Concurrent: 4, TokensPerDay: 1 << 40}},
		hashOf("sk-2"): {ID: "k2", Tenant: "tight", Limits: Limits{RequestsPerMin: 4000, TokensPerMin: 200_000}, TenantLimits: Limits{Concurrent: 40}},
	}
	l := openLogged(t, keys, func(c *Config) {
		c.FirstByteMs, c.StreamIdleMs, c.ConnectMs, c.RequestTimeoutMs, c.MaxBodyBytes = 500, 500, 500, 8000, 1<<20
	}, engines...)
	s := &stormClients{logged: l, dice: d}
	s.tables(engines)
	stop := make(chan struct{})
	var changing, clients sync.WaitGroup
	changing.Go(func() { s.change(stop) })
	for range 64 {
		clients.Go(func() { s.client(t, stormSize(t)) })
	}
	clients.Wait()
	s.calm(t)
	close(stop)
	changing.Wait()
	s.verify(t)
}

// stormClients are the clients of a storm, and what they have seen.
type stormClients struct {
	*logged
	*dice
	table   [2]*router.Table
	current atomic.Pointer[router.Table]
	began   atomic.Int64
	whole   sync.Map // id of a request that had an answer: its status
}

// tables are the two between which the storm changes: all replicas; some of them.
func (s *stormClients) tables(engines []*engine) {
	for i := range s.table {
		plain := router.Model{Name: "m", Aliases: []string{"alias"}}
		native := router.Model{Name: "n", Speaks: []string{speaksMessages, "responses"}}
		for n, e := range engines[i:] {
			r := router.Replica{ID: fmt.Sprintf("r%d", n+i), Addr: e.addr, MaxInFlight: 6}
			plain.Replicas = append(plain.Replicas, r)
			r.ID = fmt.Sprintf("n%d", n+i)
			native.Replicas = append(native.Replicas, r)
		}
		table, err := router.NewTable([]router.Model{plain, native})
		if err != nil {
			s.t.Fatal(err)
		}
		s.table[i] = table
	}
	s.current.Store(s.table[0])
	s.router.SetTable(s.table[0])
	s.srv.deps.Router = FromOwn(s.router, s.current.Load)
	s.show()
}

// change changes the table and makes hedges likely, again and again.
func (s *stormClients) change(stop chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-tick.C:
			s.current.Store(s.table[i%2])
			s.router.SetTable(s.table[i%2])
			s.eager()
		}
	}
}

// stormBodies are requests of every kind; %s is a mark.
var stormBodies = []struct{ path, body string }{
	{"/v1/chat/completions", `{"model":"m","stream":true,"messages":[{"role":"user","content":"%s"}]}`},
	{"/v1/chat/completions", `{"model":"alias","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"%s"}]}`},
	{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"%s"}]}`},
	{"/v1/completions", `{"model":"m","stream":true,"prompt":"%s"}`},
	{"/v1/embeddings", `{"model":"m","input":"%s"}`},
	{messagesPath, `{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"%s"}]}`},
	{messagesPath, `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"%s"}]}`},
	{messagesPath, `{"model":"n","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"%s"}]}`},
	{countTokensPath, `{"model":"m","messages":[{"role":"user","content":"%s"}]}`},
	{"/v1/responses", `{"model":"n","stream":true,"input":"%s"}`},
	{"/v1/audio/transcriptions", "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n%s\r\n" +
		"--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n" +
		"--b\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\ntrue\r\n--b--\r\n"},
}

// client sends requests until all of the storm have begun, on one connection as long as it lasts.
func (s *stormClients) client(t *testing.T, size int) {
	var c net.Conn
	var br *bufio.Reader
	for {
		n := s.began.Add(1)
		if n > int64(size) {
			break
		}
		if c == nil {
			var err error
			if c, err = net.Dial("tcp", s.addr); err != nil {
				t.Error(err)
				return
			}
			br = bufio.NewReader(c)
		}
		c.SetDeadline(time.Now().Add(30 * time.Second))
		if !s.one(t, c, br, n) {
			leaveBy(c, s.n(2) == 0)
			c = nil
		}
	}
	if c != nil {
		c.Close()
	}
}

// calm goes on with few clients until a late answer has had a second try: in the storm itself the load may forbid all.
func (s *stormClients) calm(t *testing.T) {
	for round := 0; s.srv.books.hedges.Get() == 0 && round < 100; round++ {
		most := int(s.began.Load()) + 40
		var clients sync.WaitGroup
		for range 4 {
			clients.Go(func() { s.client(t, most) })
		}
		clients.Wait()
	}
}

// request is the text of request n.
func (s *stormClients) request(n int64, mark string) string {
	kind := stormBodies[s.n(len(stormBodies))]
	headers := []string{fmt.Sprintf("X-Request-Id: storm-%d", n), fmt.Sprintf("Authorization: Bearer sk-%d", s.n(3))}
	if strings.Contains(kind.path, "audio") {
		headers = append(headers, "Content-Type: multipart/form-data; boundary=b")
	}
	if s.n(2) == 0 {
		headers = append(headers, interactive)
	}
	if s.n(12) == 0 {
		headers = append(headers, fmt.Sprintf("X-Request-Timeout-Ms: %d", 1+s.n(60)))
	}
	if s.n(16) == 0 {
		mark += strings.Repeat(" filler", 30_000)
	}
	return post(kind.path, fmt.Sprintf(kind.body, mark), headers...)
}

// one sends request n and reads its answer, or leaves before that. It reports whether the connection can be used again.
func (s *stormClients) one(t *testing.T, c net.Conn, br *bufio.Reader, n int64) bool {
	mark := fmt.Sprintf("mark-%d.", n)
	text := s.request(n, mark)
	leave := s.n(16)
	if leave < 2 { // before the head, or before the body is whole
		io.WriteString(c, text[:s.n(len(text))])
		return false
	}
	if _, err := io.WriteString(c, text); err != nil {
		return false // an idle connection may have ended
	}
	soon := time.Now().Add(time.Duration(s.n(400)) * time.Millisecond)
	switch leave {
	case 2, 3: // in the queue, or in prefill
		<-time.After(time.Duration(s.n(30)) * time.Millisecond)
		return false
	case 4, 5, 6: // somewhere in the answer
		c.SetReadDeadline(soon)
		io.CopyN(io.Discard, br, int64(s.n(1200)))
		return false
	case 7: // another request behind it, and gone
		io.WriteString(c, s.request(n, mark))
		c.SetReadDeadline(soon)
		io.CopyN(io.Discard, br, int64(s.n(300)))
		return false
	case 8: // half-closing counts as leaving
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, br)
		return false
	}
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		return false
	}
	body, err := io.ReadAll(res.Body)
	s.inspect(t, n, res, body, err)
	return err == nil && !res.Close
}

// inspect looks at one answer for what no answer may hold.
func (s *stormClients) inspect(t *testing.T, n int64, res *http.Response, body []byte, err error) {
	own := fmt.Sprintf("mark-%d.", n)
	id := fmt.Sprintf("storm-%d", n)
	for _, mark := range markPattern.FindAllString(string(body), -1) {
		if mark != own {
			t.Errorf("answer %d has %s in it: %q", n, mark, body)
			break
		}
	}
	if bytes.Contains(body, []byte(poison)) {
		t.Errorf("answer %d has what was behind another: %q", n, body)
	}
	if got := res.Header.Values("X-Request-Id"); len(got) != 1 || got[0] != id {
		t.Errorf("answer %d is that of %v", n, got)
	}
	switch res.StatusCode {
	case 200:
	case 429, 503:
		if wait, err := strconv.Atoi(res.Header.Get("Retry-After")); err != nil || wait < 1 {
			t.Errorf("answer %d is %d with Retry-After %q", n, res.StatusCode, res.Header.Get("Retry-After"))
		}
	case 500, 502, 504:
	default:
		t.Errorf("answer %d is %d: %q", n, res.StatusCode, body)
	}
	if err == nil && res.StatusCode != 200 && !bytes.Contains(body, []byte(`"message":`)) {
		t.Errorf("answer %d is %d without an error: %q", n, res.StatusCode, body)
	}
	if err == nil && res.StatusCode == 200 && res.Header.Get("Content-Type") == "text/event-stream" {
		ends := strings.Contains(string(body), doneEvent) || strings.Contains(string(body), `"message_stop"`) ||
			strings.Contains(string(body), `"response.completed"`) || strings.Contains(string(body), "error")
		if !ends {
			t.Errorf("stream %d has no end: %q", n, body)
		}
	}
	s.whole.Store(id, res.StatusCode)
}

// verify looks for what is left when everything has ended.
func (s *stormClients) verify(t *testing.T) {
	s.deserted()
	s.mu.Lock()
	begun, ended := s.begun, len(s.ended)
	s.mu.Unlock()
	s.settled(ended)
	s.idle(t)
	if begun != ended || begun == 0 {
		t.Errorf("the observer heard of %d requests that arrived, %d that ended", begun, ended)
	}
	if n := s.srv.books.panics.Get(); n != 0 {
		t.Errorf("%d panics", n)
	}
	if s.srv.books.hedges.Get() == 0 || s.srv.books.retries.Get() == 0 {
		t.Errorf("%d hedges, %d retries: no storm", s.srv.books.hedges.Get(), s.srv.books.retries.Get())
	}
	for _, m := range []string{"m", "n"} {
		if n := s.router.Depth(m); n != 0 {
			t.Errorf("%d wait for %s", n, m)
		}
	}
	_, lines := s.lines()
	told := map[string]int{}
	for _, line := range lines {
		id, _ := line["requestId"].(string)
		told[id]++
		if outcome, _ := line["outcome"].(string); outcome == "" || outcome == "internal" {
			t.Errorf("%v", line)
		}
	}
	s.whole.Range(func(id, status any) bool {
		if n := told[id.(string)]; n != 1 {
			t.Errorf("%s, answered %d, has %d lines in the log", id, status, n)
		}
		return true
	})
	t.Logf("%d lines, %d reached a model, %d hedges (%d won), %d retries", len(lines), begun, s.srv.books.hedges.Get(), s.srv.books.hedgesWon.Get(), s.srv.books.retries.Get())
}
