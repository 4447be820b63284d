package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sluice/nodes"
	"sluice/nodes/registry"
)

func (d *door) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

const upgrade = "POST /v1/agents/stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: sluice-agent/1\r\nContent-Length: 0\r\n\r\n"

func TestAgentStream(t *testing.T) {
	d := open(t, nil)
	peers := make(chan string, 1)
	d.f.agent = func(_ context.Context, conn io.ReadWriteCloser, peer string) error {
		defer conn.Close()
		peers <- peer
		var fr nodes.Frame
		if err := json.NewDecoder(conn).Decode(&fr); err != nil {
			return err
		}
		return json.NewEncoder(conn).Encode(nodes.Down{Welcome: &nodes.Welcome{Term: 3, NowMs: int64(len(fr.Hello.Node.ID))}})
	}
	c := d.dial(t)
	defer c.Close()
	// The hello goes out with the request: what was read ahead must arrive.
	if _, err := io.WriteString(c, upgrade+`{"hello":{"node":{"id":"n1"}}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != 101 || resp.Header.Get("Upgrade") != AgentProtocol {
		t.Fatalf("%v %v", resp, err)
	}
	var down nodes.Down
	if err := json.NewDecoder(br).Decode(&down); err != nil || down.Welcome == nil || down.Welcome.Term != 3 || down.Welcome.NowMs != 2 {
		t.Fatalf("%+v %v", down, err)
	}
	if p := <-peers; !strings.Contains(p, "uid:") {
		t.Errorf("peer %q", p)
	}
}

func TestAgentStreamEndsWithServer(t *testing.T) {
	d := open(t, nil)
	in := make(chan struct{})
	d.f.agent = func(ctx context.Context, conn io.ReadWriteCloser, _ string) error {
		close(in)
		_, err := conn.Read(make([]byte, 1)) // ends when Shutdown closes the connection
		return err
	}
	c := d.dial(t)
	defer c.Close()
	if _, err := io.WriteString(c, upgrade); err != nil {
		t.Fatal(err)
	}
	<-in
	if err := d.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Fatalf("the connection should be closed: %v", err)
	}
}

func TestStreamsAreCounted(t *testing.T) {
	d := open(t, nil)
	for range maxStreams {
		if err := d.enter(); err != nil {
			t.Fatal(err)
		}
	}
	d.refused(t, "GET", "/v1/events?follow=true", nil, 503, "busy", "")
	for range maxStreams {
		d.leave()
	}
}

func TestEvents(t *testing.T) {
	d := open(t, nil)
	for i := range 150 {
		d.f.record(registry.Event{Kind: "job", Object: fmt.Sprint("j", i)})
	}
	count := func(query string) (n int, first int64) {
		_, raw := d.do(t, "GET", "/v1/events"+query, nil)
		for line := range strings.Lines(raw) {
			var e Recorded
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			if n++; n == 1 {
				first = e.Seq
			}
		}
		return n, first
	}
	for query, want := range map[string][2]int64{"": {100, 51}, "?since=140": {10, 141}, "?since=0&max=7": {7, 1}, "?since=150": {0, 0}, "?since=9999": {150, 1}} {
		if n, first := count(query); int64(n) != want[0] || first != want[1] {
			t.Errorf("%s: %d from %d, want %v", query, n, first, want)
		}
	}
	d.refused(t, "GET", "/v1/events?since=-4", nil, 400, "bad_request", "since")
	d.refused(t, "GET", "/v1/events?max=0", nil, 400, "bad_request", "max")
}

func TestEventsFollow(t *testing.T) {
	d := open(t, nil)
	d.f.record(registry.Event{Kind: "job", Object: "old"})
	resp, err := d.client.Get("http://x/v1/events?since=0&follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	next := func() string {
		for lines.Scan() {
			if lines.Text() != "" {
				return lines.Text()
			}
		}
		return "end"
	}
	if got := next(); !strings.Contains(got, `"old"`) {
		t.Fatal(got)
	}
	d.f.record(registry.Event{Kind: "job", Object: "new"})
	if got := next(); !strings.Contains(got, `"new"`) || !strings.Contains(got, `"seq":2`) {
		t.Fatal(got)
	}
	go d.Shutdown(context.Background())
	if got := next(); got != "end" {
		t.Fatal(got)
	}
}

func TestJobLog(t *testing.T) {
	var asked []string
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String())
		switch r.URL.Path {
		case "/v1/holders/bert.g1.r0/log":
			io.WriteString(w, "one\ntwo")
		default:
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusTemporaryRedirect)
		}
	}))
	defer agent.Close()
	d := open(t, nil)
	d.f.floor(t, strings.TrimPrefix(agent.URL, "http://"))
	status, raw := d.do(t, "GET", "/v1/jobs/bert/log?tailBytes=10", nil)
	if status != 200 || raw != "one\ntwo\n" || len(asked) != 1 || !strings.Contains(asked[0], "tailBytes=10") {
		t.Fatalf("%d %q %v", status, raw, asked)
	}
	d.refused(t, "GET", "/v1/jobs/bert/log?rank=5", nil, 404, "no_log", "")
	d.refused(t, "GET", "/v1/jobs/bert/log?rank=x", nil, 400, "bad_request", "rank")
	d.refused(t, "GET", "/v1/jobs/none/log", nil, 404, "not_found", "")
	// Two ranks: lines say whose they are; a redirect (SEC-06) is not followed.
	j := d.f.state.Jobs["bert"]
	j.Ranks = append(j.Ranks, registry.RankPlace{Rank: 1, Node: "n1"})
	_, raw = d.do(t, "GET", "/v1/jobs/bert/log", nil)
	if !strings.Contains(raw, "[r0] two\n") || !strings.Contains(raw, "[r1] (sluice: the log cannot be read from its agent)") {
		t.Fatalf("%q", raw)
	}
}

// The logs of the last generation are read when there is none, and when asked
// for beside a present one.
func TestJobLogOfTheLastGeneration(t *testing.T) {
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path+"\n") }))
	defer agent.Close()
	d := open(t, nil)
	d.f.floor(t, strings.TrimPrefix(agent.URL, "http://"))
	d.refused(t, "GET", "/v1/jobs/bert/log?previous=true", nil, 404, "no_log", "")
	read := func(query, want string) {
		t.Helper()
		if status, raw := d.do(t, "GET", "/v1/jobs/bert/log"+query, nil); status != 200 || raw != want {
			t.Errorf("%s: %d %q, want %q", query, status, raw, want)
		}
	}
	j := d.f.state.Jobs["bert"]
	j.Last = &registry.EndedRanks{Generation: 7, Nodes: []string{"n1", "n1", "n1"}}
	read("", "/v1/holders/bert.g1.r0/log\n")
	read("?previous=true&rank=2", "/v1/holders/bert.g7.r2/log\n")
	j.Ranks = nil
	read("?rank=1", "/v1/holders/bert.g7.r1/log\n")
	j.Spec.Launcher = nodes.LaunchTorchrun // one log for all ranks of a node
	read("", "/v1/holders/bert.g7.r0/log\n")
	read("?rank=2", "/v1/holders/bert.g7.r0/log\n")
	d.refused(t, "GET", "/v1/jobs/bert/log?rank=3", nil, 404, "no_log", "")
}

func TestJobLogFollowEndsWithClient(t *testing.T) {
	gone := make(chan struct{})
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "begin\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(gone)
	}))
	defer agent.Close()
	d := open(t, nil)
	d.f.floor(t, strings.TrimPrefix(agent.URL, "http://"))
	resp, err := d.client.Get("http://x/v1/jobs/bert/log?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if line != "begin\n" || err != nil {
		t.Fatal(line, err)
	}
	resp.Body.Close()
	select {
	case <-gone:
	case <-time.After(5 * time.Second):
		t.Fatal("the agent's side goes on after the client left")
	}
}

// Made-up names make no series; registered ones have theirs, and lose them.
func TestCase_OPS_04_MetricLabels(t *testing.T) {
	d := open(t, nil)
	d.f.floor(t, "127.0.0.1:1")
	_, before := d.do(t, "GET", "/metrics", nil)
	for i := range 200 {
		d.do(t, "GET", fmt.Sprintf("/v1/models/made-up-%d", i), nil)
		d.do(t, "GET", fmt.Sprintf("/made/up/%d", i), nil)
	}
	_, after := d.do(t, "GET", "/metrics", nil)
	if n := strings.Count(after, "\n") - strings.Count(before, "\n"); n != 0 || strings.Contains(after, "made-up") {
		t.Fatalf("%d new series", n)
	}
	for _, want := range []string{`sluice_books_gpu_seconds{state="idle"}`, `sluice_gpus{state="idle"} 1`, `sluice_model_headroom_requests_per_second{model="chat"} 1`,
		`sluice_model_observed_seconds{model="chat",metric="ttft",quantile="0.9"} 0.3`, `sluice_job_step{job="bert"} 7`, `sluice_nodes{state="ready"} 1`, "sluice_books_balance_gpu_seconds 0"} {
		if !strings.Contains(after, want) {
			t.Errorf("no line %s in\n%s", want, after)
		}
	}
	d.must(t, "DELETE", "/v1/models/chat", nil, nil)
	if _, raw := d.do(t, "GET", "/metrics", nil); strings.Contains(raw, `model="chat"`) {
		t.Error("a deleted model keeps its series")
	}
}

func TestDashboard(t *testing.T) {
	d := open(t, nil)
	w := d.remote("GET", "/", "")
	page := w.Body.String()
	if !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") || !strings.Contains(page, "v1/status") {
		t.Fatalf("%v", w.Header())
	}
	for _, outside := range []string{"http://", "https://", "innerHTML", "eval("} {
		if strings.Contains(page, outside) {
			t.Errorf("the page has %q", outside)
		}
	}
}
