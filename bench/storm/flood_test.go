package storm

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestConnectionFlood opens more connections than the server may have descriptors: it refuses some, serves those that it
// has, and all again when the flood is over.
func TestConnectionFlood(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}`)
	}))
	t.Cleanup(engine.Close)
	s := newSite(t, engine.URL)
	s.signal(syscall.SIGTERM)
	s.exit()
	s.files = 320 // 32 clients
	s.start()
	s.serves("chat")
	asks := func(c net.Conn) int {
		io.WriteString(c, post(strings.Replace(chatBody, "true", "false", 1)))
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return 0
		}
		io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	first := s.dial("")
	if got := asks(first); got != 200 {
		t.Fatalf("before the flood: %d", got)
	}
	var flood []net.Conn
	refused := 0
	for range 500 {
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		flood = append(flood, c)
	}
	for _, c := range flood[400:] { // those behind the limit are told
		c.SetReadDeadline(time.Now().Add(settleLimit))
		if res, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil && res.StatusCode == 503 {
			refused++
		}
	}
	if got := asks(first); refused != 100 || got != 200 {
		t.Errorf("in the flood: %d of 100 refused; a client that was there before: %d", refused, got)
	}
	for _, c := range flood {
		c.Close()
	}
	s.until("all is well again", func() bool { status, _ := s.get("/readyz"); return status == 200 })
	if got := asks(s.dial("")); got != 200 {
		t.Errorf("after the flood: %d", got)
	}
}
