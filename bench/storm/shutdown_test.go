package storm

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// load is what a server has to do when it is told to stop.
type load struct {
	*site
	engine  *gatedEngine
	streams []*bufio.Reader // in the middle of their answer
	idle    []net.Conn      // kept alive, and those that have sent half a head
}

// underLoad starts a server with running streams, idle and half-sent connections.
func underLoad(t *testing.T, flags ...string) *load {
	l := &load{engine: newGatedEngine(t)}
	l.site = newSite(t, l.engine.URL, flags...)
	for range 10 {
		br := bufio.NewReader(l.dial(post(chatBody)))
		l.streams = append(l.streams, br)
		<-l.engine.waiting
	}
	for range 20 {
		c := l.dial("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || res.StatusCode != 200 {
			t.Fatal(res, err)
		}
		l.idle = append(l.idle, c)
	}
	for range 5 {
		l.idle = append(l.idle, l.dial("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Le"))
	}
	return l
}

// stop sends a signal and waits until nothing new is taken.
func (l *load) stop() {
	l.t.Helper()
	l.signal(syscall.SIGTERM)
	l.until("new connections are refused", func() bool {
		c, err := net.Dial("tcp", l.addr)
		if err == nil {
			c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

// gone checks that connections without a request have been closed.
func (l *load) gone() {
	l.t.Helper()
	for i, c := range l.idle {
		if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			l.t.Errorf("idle connection %d: %v", i, err)
		}
	}
}

// bodies reads the streams to their ends.
func (l *load) bodies() (out []string, failed int) {
	for _, br := range l.streams {
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			failed++
			continue
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			failed++
		}
		out = append(out, string(body))
	}
	return out, failed
}

func TestCase_OPS_01_ProgramStopsUnderLoad(t *testing.T) {
	l := underLoad(t, "--grace", "50s")
	l.stop()
	l.gone()
	close(l.engine.gate) // only now: streams outlive everything else
	bodies, failed := l.bodies()
	for _, body := range bodies {
		if body != firstToken+lastToken {
			t.Errorf("%q", body)
		}
	}
	if state := l.exit(); failed != 0 || state.ExitCode() != 0 {
		t.Errorf("%d streams broke; %v", failed, state)
	}
}

func TestCase_OPS_01_ProgramCutsAfterItsGrace(t *testing.T) {
	log := filepath.Join(t.TempDir(), "access.log")
	l := underLoad(t, "--grace", "700ms", "--access-log", log)
	l.stop()
	l.gone()
	bodies, failed := l.bodies()
	for _, body := range bodies {
		if rest, ok := strings.CutPrefix(body, firstToken); !ok || !strings.Contains(rest, `"shutting_down"`) {
			t.Errorf("%q", body)
		}
	}
	if state := l.exit(); failed != 0 || len(bodies) != len(l.streams) || state.ExitCode() != 0 {
		t.Errorf("%d of %d streams ended without a word; %v", failed, len(l.streams), state)
	}
	raw, err := os.ReadFile(log)
	if n := strings.Count(string(raw), `"code":"shutting_down"`); err != nil || n != len(l.streams) {
		t.Errorf("%d of %d cut requests are in the access log: %v", n, len(l.streams), err)
	}
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	l := underLoad(t, "--grace", "10m")
	l.stop()
	l.signal(syscall.SIGTERM)
	if status, ok := l.exit().Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGTERM {
		t.Errorf("%v", l.process.ProcessState)
	}
}
