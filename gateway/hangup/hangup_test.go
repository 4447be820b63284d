package hangup

import (
	"io"
	"net"
	"runtime"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type peer chan struct{}

func (p peer) Left() { p <- struct{}{} }

func TestLeft(t *testing.T) {
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, reset := range []bool{false, true} {
		there, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		here, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		p := make(peer, 4)
		id, ok := w.Add(here, p)
		if !ok {
			t.Skip("connections cannot be watched on " + runtime.GOOS)
		}
		io.WriteString(there, "bytes are not reported, and need not be read")
		if reset {
			there.(*net.TCPConn).SetLinger(0)
		}
		there.Close()
		<-p
		w.Remove(id)
		here.Close()
	}
	if _, ok := w.Add(nil, nil); ok {
		t.Error("nothing is watched")
	}
}
