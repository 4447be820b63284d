package gateway

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

func TestBodiesHaveALimitTogether(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, func(c *Config) { c.MaxBodyBytes, c.MaxBodiesBytes = 200<<10, 320<<10 }, e)
	large := post("/v1/chat/completions", strings.Replace(chat, "hello", strings.Repeat("x", 150<<10), 1))
	began := len(large) - 100<<10
	holds := func(n int64) {
		t.Helper()
		until(t, "room is taken", func() bool { return f.srv.bodies.used.Load() == n })
	}
	each := int64(150<<10 + len(chat) - len("hello"))
	first := f.raw(large[:began])
	holds(each)
	left := f.raw(large[:began])
	holds(2 * each)
	refused := func(text string) {
		t.Helper()
		a := readAnswer(bufio.NewReader(f.raw(text)))
		if a.status != 503 || a.header.Get("Retry-After") != "1" || a.code() != "bodies_too_large" {
			t.Fatalf("%+v", a)
		}
	}
	refused(large[:began])
	c := f.raw(strings.Replace(large[:began], "Host: x", "Host: x\r\nExpect: 100-continue", 1))
	if a := readAnswer(bufio.NewReader(c)); a.status != 503 || a.header.Get("Retry-After") != "1" || a.code() != "bodies_too_large" {
		t.Fatalf("%+v", a)
	}
	if a := f.do("/v1/chat/completions", chat); a.status != 200 { // small ones pass
		t.Fatalf("%+v", a)
	}
	leaveBy(left, true)
	holds(each)
	if a := readAnswer(bufio.NewReader(f.raw(large))); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	io.WriteString(first, large[began:])
	if a := readAnswer(bufio.NewReader(first)); a.status != 200 {
		t.Fatalf("%+v", a)
	}
	holds(0)
	f.settled(3)
	f.srv.bodies.mu.Lock()
	defer f.srv.bodies.mu.Unlock()
	if n := len(f.srv.bodies.held); n != 0 {
		t.Errorf("%d are held", n)
	}
}

func TestRoomOfABodyThatNobodyReleased(t *testing.T) {
	b := bodies{limit: 100, held: map[*fasthttp.RequestHeader]int64{}}
	var one, two, large fasthttp.RequestHeader
	large.SetContentLength(strangerBodyBytes + 1)
	if !b.reserve(&one, 60) || b.reserve(&two, 60) || !b.reserve(&one, 90) || b.used.Load() != 90 {
		t.Error(b.used.Load())
	}
	if b.reserve(&one, 101) || b.used.Load() != 0 || b.holds(&large) || !b.holds(&one) {
		t.Error(b.used.Load())
	}
}
