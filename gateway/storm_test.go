package gateway

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"
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
