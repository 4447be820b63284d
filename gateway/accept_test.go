package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
)

func TestConnectionsBeyondTheLimit(t *testing.T) {
	f := open(t, nil, func(c *Config) { c.MaxConns = 3 }, startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) }))
	alive := func(c net.Conn) answer {
		io.WriteString(c, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
		return readAnswer(bufio.NewReader(c))
	}
	var conns []net.Conn
	for range 3 {
		conns = append(conns, f.raw(""))
		if a := alive(conns[len(conns)-1]); a.status != 200 {
			t.Fatalf("%+v", a)
		}
	}
	if a := readAnswer(bufio.NewReader(f.raw(""))); a.status != 503 || a.code() != "too_many_connections" || a.header.Get("Retry-After") != "1" {
		t.Fatalf("%+v", a)
	}
	if n := f.srv.books.refused.Get(); n != 1 {
		t.Errorf("%d refused", n)
	}
	for _, c := range conns[1:] { // those that there is room for go on
		if a := alive(c); a.status != 200 {
			t.Fatalf("%+v", a)
		}
	}
	conns[0].Close()
	until(t, "there is room again", func() bool { return len(f.srv.conns.all()) == 2 })
	if a := f.do("/v1/chat/completions", chat); a.status != 200 {
		t.Fatalf("%+v", a)
	}
}

// weakListener is a listener whose Accept fails as it is told.
type weakListener struct {
	net.Listener
	errs chan error
}

func (f *weakListener) Accept() (net.Conn, error) {
	if err := <-f.errs; err != nil {
		return nil, err
	}
	a, b := net.Pipe()
	b.Close()
	return a, nil
}

func (f *weakListener) Close() error { return nil }

// TestListenerOutlivesFailures runs out of descriptors, and of other things: the listener waits, and ends when it is closed.
func TestListenerOutlivesFailures(t *testing.T) {
	f := open(t, nil, nil, startEngine(t, func(*asked) {}))
	f.srv.conns.max = 1 << 20
	synctest.Test(t, func(t *testing.T) {
		under := &weakListener{errs: make(chan error, 64)}
		for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, nil} {
			under.errs <- opError(e)
		}
		l := f.srv.listen(under)
		c, err := l.next()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		odd := errors.New("odd")
		under.errs <- odd
		if _, err := l.next(); !errors.Is(err, odd) {
			t.Errorf("%v", err)
		}
		for range 32 {
			under.errs <- opError(syscall.EMFILE)
		}
		ended := make(chan error)
		go func() {
			_, err := l.next()
			ended <- err
		}()
		synctest.Wait() // it waits for descriptors
		l.Close()
		for range 64 - len(under.errs) { // the true listener says so by itself, again and again
			under.errs <- net.ErrClosed
		}
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v", err)
		}
	})
}

func opError(e error) error {
	if e == nil {
		return nil
	}
	return fmt.Errorf("wrapped: %w", &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", e)})
}
