package sock

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is a connection of ours and the far end of it.
func pair(t *testing.T) (*Conn, *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	far, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := Wrap(near)
	t.Cleanup(func() { c.Close(); far.Close() })
	return c, far.(*net.TCPConn)
}

func TestReadAndWriteOfAnySize(t *testing.T) {
	c, far := pair(t)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // more than both kernels' buffers
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(far, far) // an echo
		far.CloseWrite()
		done <- err
	}()
	wrote := make(chan error, 1)
	go func() {
		n, err := c.Write(sent[:len(sent)/2])
		if err == nil && n != len(sent)/2 {
			err = io.ErrShortWrite
		}
		v := net.Buffers{sent[len(sent)/2 : len(sent)-5], nil, sent[len(sent)-5:]}
		if err == nil {
			_, err = c.WriteBuffers(&v)
		}
		wrote <- errors.Join(err, c.Conn.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d of %d bytes came back: %v", len(got), len(sent), err)
	}
	if err := errors.Join(<-wrote, <-done); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Fatalf("after the end: %d, %v", n, err)
	}
	if n, err := c.Read(nil); n != 0 || err != nil {
		t.Fatalf("into nothing: %d, %v", n, err)
	}
}

// A deadline that moved on is kept to the letter, though the poller was told the first one only.
func TestDeadlineThatMovesOn(t *testing.T) {
	c, _ := pair(t)
	start := time.Now()
	for _, after := range []time.Duration{20, 60, 100} {
		if err := c.SetReadDeadline(start.Add(after * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) < 100*time.Millisecond {
		t.Fatalf("%v after %v", err, time.Since(start))
	}
	// Brought forward, it counts at once; in the past too.
	if err := c.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
}

// Without a deadline a read waits, though the poller still has an old one.
func TestDeadlineTakenBack(t *testing.T) {
	c, far := pair(t)
	fired := make(chan struct{})
	if err := c.SetReadDeadline(time.Now().Add(30 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(90*time.Millisecond, func() { far.Write([]byte("x")); close(fired) })
	defer timer.Stop()
	if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	<-fired
}

func TestWriteDeadline(t *testing.T) {
	c, _ := pair(t)
	start := time.Now()
	for _, after := range []time.Duration{20, 80} {
		if err := c.SetWriteDeadline(start.Add(after * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
	}
	n, err := c.Write(make([]byte, 64<<20)) // nobody reads
	if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || time.Since(start) < 80*time.Millisecond {
		t.Fatalf("%d bytes, %v after %v", n, err, time.Since(start))
	}
}

func TestCloseWakesAReader(t *testing.T) {
	c, _ := pair(t)
	done := make(chan error, 1)
	go func() { _, err := c.Read(make([]byte, 1)); done <- err }()
	c.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
}

// What has no descriptor works the plain way.
func TestPipe(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	c := Wrap(a)
	defer c.Close()
	go b.Write([]byte("hi"))
	p := make([]byte, 2)
	if _, err := io.ReadFull(c, p); err != nil || string(p) != "hi" || c.Direct() {
		t.Fatal(string(p), err)
	}
	if _, err := c.SyscallConn(); err == nil {
		t.Fatal("a pipe has no descriptor")
	}
	if err := c.SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(p); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestAllocations(t *testing.T) {
	c, far := pair(t)
	p, q := make([]byte, 64), make([]byte, 64)
	n := testing.AllocsPerRun(200, func() {
		c.SetReadDeadline(time.Now().Add(time.Minute))
		c.SetWriteDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write(p); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(far, q); err != nil {
			t.Fatal(err)
		}
		if _, err := far.Write(q); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, p); err != nil {
			t.Fatal(err)
		}
	})
	if n > 0 {
		t.Errorf("%v allocations an exchange", n)
	}
}
