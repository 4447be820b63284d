package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"sluice/gateway/record"
	"sluice/slo"
)

func TestMain(m *testing.M) {
	// net/http lingers half a second on a connection that it ends.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

func mustOpen(t *testing.T, cfg Config) *Sink {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// put gives the sink n records that ended in outcome.
func put(s *Sink, n int, outcome slo.Outcome) {
	for i := range n {
		r := s.Take()
		r.SetID(fmt.Appendf(nil, "r%d", i))
		r.Outcome, r.Status = outcome, 200
		r.Trace = record.Context{TraceID: [16]byte{1}, SpanID: [8]byte{byte(i), 1}, Flags: record.Sampled}
		s.Put(r)
	}
}

// lines reads a log; every line must be a JSON object.
func lines(t *testing.T, text string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for line := range strings.Lines(text) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, m)
	}
	return out
}

func TestLogIsWrittenInOrderAndFlushedAtTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	s := mustOpen(t, Config{LogFile: path})
	put(s, 3, slo.OK)
	s.Close(t.Context())
	s.Close(t.Context())
	put(s, 2, slo.OK) // too late
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := lines(t, string(text))
	if len(got) != 3 || got[0]["requestId"] != "r0" || got[2]["requestId"] != "r2" {
		t.Fatalf("%v", got)
	}
	if st := s.Stats(); st.Lines != 3 || st.LinesDropped != 2 {
		t.Fatalf("%+v", st)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != logMode {
		t.Fatal(info.Mode())
	}
}

func TestSampleKeepsEveryFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	s := mustOpen(t, Config{LogFile: path, LogSample: 1e-9})
	put(s, 200, slo.OK)
	put(s, 5, slo.UpstreamError)
	s.Close(t.Context())
	if st := s.Stats(); st.Lines != 5 || st.LinesDropped != 0 {
		t.Fatalf("%+v", st)
	}
}

func TestReopenFollowsARotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	s := mustOpen(t, Config{LogFile: path})
	put(s, 2, slo.OK)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Reopen(); err != nil {
		t.Fatal(err)
	}
	put(s, 1, slo.OK)
	s.Close(t.Context())
	if err := s.Reopen(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{path + ".1": 2, path: 1} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(lines(t, string(text))); n != want {
			t.Errorf("%s: %d lines, want %d", filepath.Base(name), n, want)
		}
	}
}

// stuckFile is a file whose writes wait until they are let go, and may fail in the middle.
type stuckFile struct {
	mu    sync.Mutex
	text  bytes.Buffer
	wait  chan struct{}
	fails int // writes that fail half way
}

func (f *stuckFile) Write(p []byte) (int, error) {
	if f.wait != nil {
		<-f.wait
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails > 0 {
		f.fails--
		n, _ := f.text.Write(p[:len(p)/2])
		return n, errors.New("no space left")
	}
	return f.text.Write(p)
}

func (f *stuckFile) Close() error { return nil }

// withFile is a sink that writes to f.
func withFile(f *stuckFile, cfg Config) *Sink {
	cfg.LogSample = 1
	if cfg.Fail == nil {
		cfg.Fail = func(string, error) {}
	}
	s := &Sink{cfg: cfg, wake: make(chan struct{}, 1), half: make(chan struct{}, 1), reopen: make(chan chan error),
		stop: make(chan struct{}), done: make(chan struct{})}
	s.pool.New = func() any { return new(record.Record) }
	s.log = &logFile{out: f, fail: cfg.Fail}
	go s.run()
	return s
}

func TestFullQueueDropsAndNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &stuckFile{wait: make(chan struct{})}
		s := withFile(f, Config{})
		put(s, 1, slo.OK)
		time.Sleep(2 * gatherFor)
		synctest.Wait() // the writer stands in its write
		put(s, maxQueued+10, slo.OK)
		if st := s.Stats(); st.LinesDropped != 10 {
			t.Fatalf("%+v", st)
		}
		close(f.wait)
		s.Close(t.Context())
		if st := s.Stats(); st.Lines != maxQueued+1 || len(lines(t, f.text.String())) != maxQueued+1 {
			t.Fatalf("%+v", st)
		}
	})
}

func TestFileThatStandsStillHoldsUpNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &stuckFile{wait: make(chan struct{})}
		s := withFile(f, Config{})
		put(s, 1, slo.OK)
		time.Sleep(2 * gatherFor)
		reopened := make(chan error, 1)
		go func() { reopened <- s.Reopen() }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		from := time.Now()
		s.Close(ctx)
		if d := time.Since(from); d != time.Second+closeGrace {
			t.Fatal(d)
		}
		if err := <-reopened; err != nil {
			t.Fatal(err)
		}
		close(f.wait) // so that the goroutine ends with the test
		<-s.done
	})
}

func TestQueueIsLookedAtAFewTimesASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &stuckFile{}
		s := withFile(f, Config{})
		size := func() int { f.mu.Lock(); defer f.mu.Unlock(); return f.text.Len() }
		put(s, 1, slo.OK)
		time.Sleep(gatherFor / 2)
		synctest.Wait()
		if size() != 0 {
			t.Fatal("written at once")
		}
		time.Sleep(gatherFor)
		synctest.Wait()
		if size() == 0 {
			t.Fatal("not written")
		}
		put(s, maxQueued/2, slo.OK) // half full: not a moment is waited
		synctest.Wait()
		if n := s.Stats().Lines; n != 1+maxQueued/2 {
			t.Fatal(n)
		}
		s.Close(t.Context())
	})
}

func TestTornLineDoesNotSpoilTheNext(t *testing.T) {
	f := &stuckFile{fails: 1}
	var told []string
	l := &logFile{out: f, fail: func(what string, _ error) { told = append(told, what) }}
	var r record.Record
	l.add(&r)
	if written, lost := l.flush(); written != 0 || lost != 1 {
		t.Fatal(written, lost)
	}
	l.add(&r)
	l.add(&r)
	if written, lost := l.flush(); written != 2 || lost != 0 {
		t.Fatal(written, lost)
	}
	_, rest, _ := strings.Cut(f.text.String(), "\n")
	if n := len(lines(t, rest)); n != 2 {
		t.Fatalf("%q", f.text.String())
	}
	if len(told) != 2 || !strings.Contains(told[1], "again") {
		t.Fatal(told)
	}
}

// collector is an OTLP receiver.
type collector struct {
	*httptest.Server
	mu     sync.Mutex
	bodies [][]byte
	header http.Header
	answer func(n int, w http.ResponseWriter) // n counts posts from 1
}

func startCollector(t *testing.T, answer func(n int, w http.ResponseWriter)) *collector {
	c := &collector{answer: answer}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		c.mu.Lock()
		c.bodies, c.header = append(c.bodies, body), r.Header
		n := len(c.bodies)
		c.mu.Unlock()
		if c.answer != nil {
			c.answer(n, w)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// spans decodes what came, as a receiver would.
func (c *collector) spans(t *testing.T) (n int, resource string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, body := range c.bodies {
		var doc struct {
			ResourceSpans []struct {
				Resource   struct{ Attributes []json.RawMessage }
				ScopeSpans []struct {
					Scope struct{ Name string }
					Spans []struct{ TraceID, SpanID, Name string }
				}
			}
		}
		if err := json.Unmarshal(body, &doc); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		scopes := doc.ResourceSpans[0].ScopeSpans
		if scopes[0].Scope.Name != scope || len(scopes[0].Spans[0].TraceID) != 32 {
			t.Fatalf("%s", body)
		}
		n += len(scopes[0].Spans)
		resource = fmt.Sprintf("%s", doc.ResourceSpans[0].Resource.Attributes)
	}
	return n, resource
}

func TestSpansAreSentInBatches(t *testing.T) {
	c := startCollector(t, nil)
	s := mustOpen(t, Config{TracesURL: c.URL + "/v1/traces", TracesHeader: http.Header{"x-token": {"secret"}},
		Resource: []Attribute{{"service.name", "edge \"1\""}}})
	if !s.Traces() {
		t.Fatal("no traces")
	}
	put(s, maxSpans+5, slo.OK)
	r := s.Take() // its trace is not sampled
	r.Trace = record.Context{TraceID: [16]byte{1}, SpanID: [8]byte{1}}
	s.Put(r)
	s.Close(t.Context())
	n, resource := c.spans(t)
	if n != maxSpans+5 || resource != `[{"key":"service.name","value":{"stringValue":"edge \"1\""}}]` {
		t.Fatal(n, resource)
	}
	if c.header.Get("X-Token") != "secret" || c.header.Get("Content-Type") != "application/json" {
		t.Fatal(c.header)
	}
	if st := s.Stats(); st.Spans != maxSpans+5 || st.SpansDropped != 0 {
		t.Fatalf("%+v", st)
	}
}

func TestRejectedSpansAreCounted(t *testing.T) {
	c := startCollector(t, func(_ int, w http.ResponseWriter) { io.WriteString(w, `{"partialSuccess":{"rejectedSpans":"2"}}`) })
	s := mustOpen(t, Config{TracesURL: c.URL})
	put(s, 5, slo.OK)
	s.Close(t.Context())
	if st := s.Stats(); st.Spans != 3 || st.SpansDropped != 2 {
		t.Fatalf("%+v", st)
	}
}

// scripted is a transport that answers from a list of statuses, without sockets.
type scripted struct {
	mu       sync.Mutex
	statuses []int
	at       []time.Time
}

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.statuses[min(len(s.at), len(s.statuses)-1)]
	s.at = append(s.at, time.Now())
	if status == 0 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {"5"}, "Location": {"http://elsewhere/"}}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

func TestSendingIsTriedAgain(t *testing.T) {
	for _, c := range []struct {
		statuses []int
		posts    int
		waits    time.Duration
		sent     uint64
		told     string
	}{
		{[]int{200}, 1, 0, 1, ""},
		{[]int{503, 200}, 2, 5 * time.Second, 1, ""},
		{[]int{0, 0, 200}, 3, 3 * time.Second, 1, ""},
		{[]int{503}, maxPosts, 10 * time.Second, 0, "the collector answered 503"},
		{[]int{400}, 1, 0, 0, "answered 400"},
		{[]int{307}, 1, 0, 0, "answered 307"}, // never followed
	} {
		synctest.Test(t, func(t *testing.T) {
			told := ""
			cfg := Config{TracesURL: "http://collector/?", Fail: func(_ string, err error) { told += fmt.Sprint(err) }}
			var n counts
			snd := newSender(&cfg, &n)
			script := &scripted{statuses: c.statuses}
			snd.client.Transport = script
			snd.add(&record.Record{})
			snd.close(t.Context())
			if got := len(script.at); got != c.posts || script.at[got-1].Sub(script.at[0]) != c.waits || n.spans.Load() != c.sent {
				t.Errorf("%v: %d posts within %v, %d sent", c.statuses, got, script.at[got-1].Sub(script.at[0]), n.spans.Load())
			}
			if !strings.Contains(told, c.told) || strings.Contains(told, "http://") {
				t.Errorf("%v: told %q", c.statuses, told)
			}
		})
	}
}

func TestSpansLeftOverAreSentWithoutFurtherTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{TracesURL: "http://collector/", LogSample: 1, Fail: func(string, error) {}}
		s := &Sink{cfg: cfg, wake: make(chan struct{}, 1), half: make(chan struct{}, 1), reopen: make(chan chan error),
			stop: make(chan struct{}), done: make(chan struct{})}
		s.pool.New = func() any { return new(record.Record) }
		s.traces = newSender(&s.cfg, &s.counts)
		s.traces.client.Transport = &scripted{statuses: []int{503, 200}}
		go s.run()
		for range 4 { // the first is being tried again, the second waits, the others are gathered
			put(s, 1, slo.OK)
			time.Sleep(2 * gatherFor)
		}
		time.Sleep(time.Minute)
		if st := s.Stats(); st.Spans != 4 {
			t.Fatalf("%+v", st)
		}
		s.Close(t.Context())
	})
}

func TestCloseEndsAWaitForTheCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n counts
		snd := newSender(&Config{TracesURL: "http://collector/", Fail: func(string, error) {}}, &n)
		snd.client.Transport = &scripted{statuses: []int{503}}
		snd.add(&record.Record{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		from := time.Now()
		snd.close(ctx)
		if d := time.Since(from); d != time.Second || n.spansDropped.Load() != 1 {
			t.Fatal(d, n.spansDropped.Load())
		}
	})
}

func TestSettingsAreRefusedWithARemedy(t *testing.T) {
	const secret = "planted"
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{LogSample: 1.5}, "write a number above 0"},
		{Config{LogSample: -1}, "write a number above 0"},
		{Config{TracesURL: "collector:4318/" + secret}, "write http://host:4318"},
		{Config{TracesURL: "ftp://" + secret}, "write http://host:4318"},
		{Config{TracesURL: "http://u:" + secret + "@h/"}, "OTEL_EXPORTER_OTLP_HEADERS"},
		{Config{TracesURL: "http://h/?key=" + secret}, "OTEL_EXPORTER_OTLP_HEADERS"},
		{Config{TracesHeader: http.Header{"a": {secret + "\r\nX-User: admin"}}}, "HTTP does not allow"},
		{Config{TracesHeader: http.Header{"a b": {secret}}}, "HTTP does not allow"},
		{Config{LogFile: filepath.Join(t.TempDir(), "none", "x")}, "open the access log"},
	} {
		s, err := Open(c.cfg)
		if err == nil {
			s.Close(t.Context())
			t.Errorf("%+v was taken", c.cfg)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%v", err)
		}
	}
}

// A record that is not told goes straight back: a sampled log costs the other requests nothing but the filling.
func TestPuttingAllocatesNothing(t *testing.T) {
	if raceOn {
		t.Skip("the race detector allocates")
	}
	s := mustOpen(t, Config{LogFile: os.DevNull, LogSample: 1e-12})
	defer s.Close(t.Context())
	if n := testing.AllocsPerRun(1000, func() { r := s.Take(); r.Status = 200; s.Put(r) }); n > 0 {
		t.Fatalf("%v allocations", n)
	}
}
