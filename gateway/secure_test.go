package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"sluice/slo"
)

func TestCase_SEC_02_credentials_and_hop_headers(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, keyring{hashOf("tenant-key"): {ID: "k", Tenant: "t"}}, nil, e)
	f.srv.deps.UpstreamAuth = func(id string) string { return "Bearer engine-" + id }
	a := f.do("/v1/chat/completions", chat, "Authorization: Bearer tenant-key", "X-Api-Key: tenant-key", "Cookie: c=secret1",
		"Proxy-Authorization: Basic secret2", "Connection: keep-alive, X-Secret", "X-Secret: secret3", "TE: trailers", "Upgrade: h2c",
		"Forwarded: for=1.2.3.4", "X-Forwarded-For: 1.2.3.4", "X-Sluice-Tenant: admin", "X-Sluice-Class: batch",
		"Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if a.status != 200 {
		t.Fatalf("%+v", a)
	}
	head, _ := e.last()
	low := strings.ToLower(head)
	for _, bad := range []string{"tenant-key", "secret", "cookie", "proxy-", "te:", "upgrade", "forwarded: for", "1.2.3.4", "sluice-", "connection"} {
		if strings.Contains(low, bad) {
			t.Errorf("%q reached the engine:\n%s", bad, head)
		}
	}
	for _, good := range []string{"authorization: bearer engine-r0\r\n", "x-forwarded-for: 127.0.0.1\r\n", "traceparent: 00-0af7651916cd43dd"} {
		if !strings.Contains(low, good) {
			t.Errorf("%q is missing:\n%s", good, head)
		}
	}
	if s := f.outcome(); s.Class != slo.Batch || s.Tenant != "t" {
		t.Fatalf("%+v", s)
	}
}

func TestCase_SEC_03_no_key_in_any_output(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 500, `oops`) })
	f := open(t, keyring{hashOf("sk-planted"): {ID: "k", Models: []string{"m"}}}, nil, e)
	for _, c := range []struct {
		key    string
		body   string
		status int
		code   string
	}{
		{"sk-planted", chat, 500, "upstream_error"}, {"sk-planted-wrong", chat, 401, "invalid_api_key"},
		{"sk-planted", `{"model":"sk-planted"}`, 403, "model_not_allowed"}, {"sk-planted", `{"model":"empty"}`, 403, "model_not_allowed"},
	} {
		a := f.do("/v1/chat/completions", c.body, "Authorization: Bearer "+c.key)
		if a.status != c.status || a.code() != c.code || strings.Contains(fmt.Sprint(a), "sk-planted") {
			t.Errorf("%+v", a)
		}
	}
	var b bytes.Buffer
	f.srv.Metrics().WritePrometheus(&b)
	if strings.Contains(b.String(), "sk-planted") {
		t.Error("a key is in the metrics")
	}
}

// Without a good key nobody makes the gateway hold a large body: the head is enough for the refusal.
func TestLargeBodiesNeedAKey(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, keyring{hashOf("sk-good"): {ID: "k"}}, nil, e)
	for _, c := range []struct {
		key, framing string
		body         string
		status       int
	}{
		{"sk-bad", "Content-Length: 1000000", "", 401},
		{"sk-bad", "Transfer-Encoding: chunked", "100000\r\n", 401},
		{"sk-bad", "Content-Length: 60000", strings.Repeat(" ", 60000), 401},
		{"sk-bad", "Content-Length: 1000000\r\nExpect: 100-continue", "", 401},
		{"sk-good", "Content-Length: 999999999", "", 413},
		{"sk-good", "Content-Length: 1000000", chat + strings.Repeat(" ", 1000000-len(chat)), 200},
	} {
		head := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + c.key + "\r\n" + c.framing + "\r\n\r\n"
		conn := f.raw(head + c.body)
		a := readAnswer(bufio.NewReader(conn))
		if a.status != c.status {
			t.Errorf("%s, %s: %d %s", c.key, c.framing, a.status, a.body)
		}
		conn.Close()
	}
}

// An engine that wants another credential is the operator's fault, not the client's.
func TestEngineRefusesTheGateway(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 401, `{"error":{"message":"Unauthorized"}}`, "Www-Authenticate: Basic") })
	f := open(t, nil, nil, e)
	if a := f.do("/v1/chat/completions", chat); a.status != 502 || a.code() != "upstream_auth" || a.header.Get("Www-Authenticate") != "" {
		t.Fatalf("%+v", a)
	}
	if s := f.outcome(); s.Outcome != slo.UpstreamError || e.served.Load() != 1 {
		t.Fatalf("%+v, asked %d times", s, e.served.Load())
	}
}

func TestCase_SEC_06_redirects_are_not_followed(t *testing.T) {
	target := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	e := startEngine(t, func(a *asked) {
		a.write("HTTP/1.1 307 X\r\nLocation: http://" + target.addr + "/\r\nContent-Length: 0\r\n\r\n")
	})
	f := open(t, nil, nil, e)
	if a := f.do("/v1/chat/completions", chat); a.status != 502 || a.code() != "upstream_redirect" || a.header.Get("Location") != "" {
		t.Fatalf("%+v", a)
	}
	if target.served.Load() != 0 {
		t.Fatal("followed")
	}
}

func TestCase_SEC_08_engine_never_serves_another_model(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, keyring{hashOf("sk-1"): {ID: "k", Models: []string{"m"}}}, nil, e)
	for _, body := range []string{
		`{"model":"m","messages":[],"model":"empty"}`, `{"model":"empty","messages":[],"model":"m"}`, `{"model":"m","mo\u0064el":"empty"}`,
		`{"mo\u0064el":"empty","messages":[]}`, `{"model":"m","stream":true,"stream":false}`,
	} {
		if a := f.do("/v1/chat/completions", body, "Authorization: Bearer sk-1"); a.status != 400 && a.status != 403 {
			t.Errorf("%s: %+v", body, a)
		}
	}
	if e.served.Load() != 0 {
		t.Fatal("an engine was asked")
	}
	if a := f.do("/v1/chat/completions", `{"Model":"empty","model":"\u006d"}`, "Authorization: Bearer sk-1"); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	if _, body := e.last(); body != `{"Model":"empty","model":"real"}` {
		t.Fatal(body)
	}
}

func TestCase_SEC_09_deep_json(t *testing.T) {
	deep := strings.Repeat("[", 1_000_000)
	e := startEngine(t, func(a *asked) {
		if strings.Contains(a.body, "stream") {
			stream(a, delta("a"), "data: "+deep+"\n\n", finishEvent, doneEvent)
			return
		}
		replyJSON(a, 200, deep)
	})
	f := open(t, nil, nil, e)
	if a := f.do("/v1/chat/completions", `{"model":"m","messages":`+deep); a.status != 400 {
		t.Fatal(a.status)
	}
	if a := f.do("/v1/chat/completions", chat); a.status != 200 || a.body != deep {
		t.Fatal(a.status)
	}
	if a := f.do("/v1/chat/completions", chatStream); a.status != 200 || !strings.HasSuffix(a.body, doneEvent) {
		t.Fatal(a.status)
	}
}

func TestCase_OPS_01_shutdown(t *testing.T) {
	step := make(chan struct{})
	e := startEngine(t, func(a *asked) {
		a.write(sseHead + chunk(delta("a")))
		select {
		case <-step:
			a.write(chunk(finishEvent) + chunk(doneEvent) + "0\r\n\r\n")
		case <-a.gone:
		}
	})
	for _, grace := range []time.Duration{5 * time.Second, 50 * time.Millisecond} {
		f := open(t, nil, nil, e)
		idle := f.raw("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
		readAnswer(bufio.NewReader(idle))
		f.raw("POST /v1/chat/completions HT") // half a request
		c := f.raw(post("/v1/chat/completions", chatStream))
		br := bufio.NewReader(c)
		for line := ""; !strings.Contains(line, `"a"`); line, _ = br.ReadString('\n') {
		}
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- f.srv.Shutdown(ctx) }()
		if _, err := idle.Read(make([]byte, 1)); err != io.EOF {
			t.Fatal(err)
		}
		if grace > time.Second {
			step <- struct{}{}
		}
		rest, err := io.ReadAll(br)
		if err != nil {
			t.Fatal(err)
		}
		if grace > time.Second {
			if err := <-ended; err != nil || !strings.Contains(string(rest), "[DONE]") {
				t.Fatalf("%v %q", err, rest)
			}
		} else if err := <-ended; err == nil || !strings.Contains(string(rest), "shutting_down") {
			t.Fatalf("%v %q", err, rest)
		}
		if _, err := net.Dial("tcp", f.addr); err == nil {
			t.Fatal("still accepting")
		}
	}
}

func TestCase_OPS_04_labels_from_clients(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, nil, e)
	size := func() int {
		var b bytes.Buffer
		f.srv.Metrics().WritePrometheus(&b)
		return b.Len()
	}
	f.do("/v1/chat/completions", chat)
	f.do("/v1/chat/completions", `{"model":"x"}`)
	before := size()
	c := f.raw("")
	br := bufio.NewReader(c)
	for i := range 500 {
		io.WriteString(c, post("/v1/chat/completions", fmt.Sprintf(`{"model":"junk-%d"}`, i), fmt.Sprintf("X-Request-Id: id-%d", i)))
		readAnswer(br)
	}
	if grown := size() - before; grown > 1000 {
		t.Fatalf("%d bytes more", grown)
	}
}

func TestOpenWithoutKeysIsRefused(t *testing.T) {
	f := open(t, nil, nil)
	srv, err := New(Default(), f.srv.deps.fresh())
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown(context.Background())
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Serve(ln); err == nil || !strings.Contains(err.Error(), "create a key") {
		t.Fatal(err)
	}
}

// fresh is the same surroundings for another server.
func (d Deps) fresh() Deps { d.Metrics = nil; return d }
