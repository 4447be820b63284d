package gateway

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"testing"

	"sluice/gateway/sink"
)

// steadyEngine answers every request with the same bytes and allocates nothing.
func steadyEngine(t testing.TB, answer string) *engine {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf, out := make([]byte, 64<<10), []byte(answer)
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
					if _, err := c.Write(out); err != nil {
						return
					}
				}
			}()
		}
	}()
	return &engine{addr: ln.Addr().String()}
}

// exchanger sends the same request over one connection again and again.
type exchanger struct {
	t    testing.TB
	conn net.Conn
	req  []byte
	end  []byte
	buf  []byte
}

func (x *exchanger) run() {
	if _, err := x.conn.Write(x.req); err != nil {
		x.t.Fatal(err)
	}
	for n := 0; ; {
		m, err := x.conn.Read(x.buf[n:])
		if n += m; bytes.HasSuffix(x.buf[:n], x.end) {
			return
		}
		if err != nil {
			x.t.Fatal(err)
		}
	}
}

func steady(t *testing.T, answer, request, end string, records *sink.Sink) *exchanger {
	f := open(t, keyring{hashOf("sk-1"): {ID: "k", Tenant: "t", Limits: manyLimits, TenantLimits: manyLimits}}, nil, steadyEngine(t, answer))
	f.srv.deps.Observer, f.srv.deps.Records = noObserver{}, records
	return &exchanger{t, f.raw(""), []byte(request), []byte(end), make([]byte, 64<<10)}
}

var plainReply = fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(jsonAnswer), jsonAnswer)

// TestAllocations holds what one request allocates in steady state, client, engine and gateway together: nothing.
func TestAllocations(t *testing.T) {
	if raceOn {
		t.Skip("the race detector allocates")
	}
	events := delta("a") + delta("b") + finishEvent + usageEvent + doneEvent
	told := openSink(t, sink.Config{LogFile: os.DevNull, LogSample: 1e-12}) // a record is filled and goes back to its pool
	for _, c := range []struct {
		name, answer, body, end string
		records                 *sink.Sink
		most                    float64
	}{
		{"plain", plainReply, chat, jsonAnswer[len(jsonAnswer)-20:], nil, 0},
		{"stream", sseHead + chunk(events) + "0\r\n\r\n", chatStream, "0\r\n\r\n", nil, 0},
		{"plain, with access log", plainReply, chat, jsonAnswer[len(jsonAnswer)-20:], told, 0},
	} {
		x := steady(t, c.answer, post("/v1/chat/completions", c.body, "Authorization: Bearer sk-1"), c.end, c.records)
		for range 50 {
			x.run()
		}
		if n := testing.AllocsPerRun(300, x.run); n > c.most {
			t.Errorf("%s: %v allocations, at most %v", c.name, n, c.most)
		} else {
			t.Logf("%s: %v allocations", c.name, n)
		}
	}
}

func BenchmarkPlain(b *testing.B) {
	benchRequest(b, nil, plainReply, chat, jsonAnswer[len(jsonAnswer)-20:])
}

func BenchmarkStream20Events(b *testing.B) {
	events := ""
	for range 20 {
		events += delta("token")
	}
	benchRequest(b, nil, sseHead+chunk(events+finishEvent+usageEvent+doneEvent)+"0\r\n\r\n", chatStream, "0\r\n\r\n")
}

func BenchmarkPlainWithAccessLog(b *testing.B) {
	benchRequest(b, openSink(b, sink.Config{LogFile: os.DevNull}), plainReply, chat, jsonAnswer[len(jsonAnswer)-20:])
}

func benchRequest(b *testing.B, records *sink.Sink, answer, body, end string) {
	f := openFor(b, keyring{hashOf("sk-1"): {ID: "k", Tenant: "t", Limits: manyLimits, TenantLimits: manyLimits}}, nil, steadyEngine(b, answer))
	f.srv.deps.Observer, f.srv.deps.Records = noObserver{}, records
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	x := &exchanger{b, c, []byte(post("/v1/chat/completions", body, "Authorization: Bearer sk-1")), []byte(end), make([]byte, 64<<10)}
	b.ReportAllocs()
	for b.Loop() {
		x.run()
	}
}

// manyLimits has every kind, and never refuses.
var manyLimits = Limits{Concurrent: 1 << 20, RequestsPerMin: 1 << 29, TokensPerMin: 1 << 29, TokensPerDay: 1 << 40, TokensPerMonth: 1 << 45}
