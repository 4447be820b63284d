package storm

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if exe, err := program(); err == nil {
			os.RemoveAll(filepath.Dir(exe))
		}
		os.Exit(code)
	}))
}

// settleLimit is for a process to do what it must, on a machine that does much else.
const settleLimit = time.Minute

// program builds the program once, into a directory that outlives the tests that use it.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "storm-")
	if err != nil {
		return "", err
	}
	exe := filepath.Join(dir, "sluice")
	build := exec.Command("go", "build", "-o", exe, "sluice/cmd/sluice")
	build.Env = append(os.Environ(), "CGO_CFLAGS=-Wno-deprecated-declarations")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return exe, nil
})

// site is a server process with one model, chat, behind it.
type site struct {
	t       testing.TB
	exe     string
	dir     string
	role    []string
	output  *os.File // of the process; nil: a file that is shown after a failure
	files   int      // limit on open files; 0: as it is
	addr    string   // of the data port
	process *exec.Cmd
	ended   chan error // gets how the process ended
}

// newSite starts a server whose model is served at url. Without one it has no model, and runs its engines itself.
func newSite(t testing.TB, url string, flags ...string) *site {
	t.Helper()
	exe, err := program()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "slc-") // short: there will be a socket in it
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, exe: exe, dir: dir, addr: ln.Addr().String(), role: []string{"serve"}}
	if url == "" {
		s.role = []string{"up", "--gpus", "sim:8"}
	}
	ln.Close()
	t.Cleanup(s.end)
	s.start(flags...)
	if url == "" {
		return s
	}
	s.sluice("kind: Model\nname: chat\nurl: "+url+"\nengineModel: chat\nspeaks: [messages, responses]\n", "model", "apply", "-f", "-")
	s.serves("chat")
	return s
}

// start starts the server on the same port and data as before.
func (s *site) start(flags ...string) {
	s.t.Helper()
	logs, err := os.OpenFile(filepath.Join(s.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer logs.Close()
	args := slices.Concat(s.role, []string{"--data", filepath.Join(s.dir, "data"), "--node", "server", "--listen", s.addr}, flags)
	s.process, s.ended = exec.Command(s.exe, args...), make(chan error, 1)
	if s.files > 0 {
		s.process = exec.Command("sh", slices.Concat([]string{"-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, s.files), s.exe}, args)...)
	}
	s.process.Stdout, s.process.Stderr = logs, logs
	if s.output != nil {
		s.process.Stdout, s.process.Stderr = s.output, s.output
	}
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func(p *exec.Cmd, ended chan error) { ended <- p.Wait() }(s.process, s.ended)
	s.until("the server is ready", func() bool {
		status, _ := s.get("/readyz")
		return status == http.StatusOK
	})
}

// serves waits until a model is in the table.
func (s *site) serves(model string) {
	s.t.Helper()
	s.until("the model is known", func() bool {
		status, _ := s.get("/v1/models/" + model)
		return status == http.StatusOK
	})
}

// get asks on a connection of its own; status 0: there was no answer.
func (s *site) get(path string) (status int, body string) {
	c, err := net.DialTimeout("tcp", s.addr, settleLimit)
	if err != nil {
		return 0, ""
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(settleLimit))
	io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, ""
	}
	raw, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(raw)
}

// until waits for a condition.
func (s *site) until(what string, ok func() bool) {
	s.t.Helper()
	limit, tick := time.NewTimer(settleLimit), time.NewTicker(10*time.Millisecond)
	defer limit.Stop()
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			s.t.Fatalf("%s: not within %v", what, settleLimit)
		}
	}
}

// exit waits for the process and returns its state.
func (s *site) exit() *os.ProcessState {
	s.t.Helper()
	select {
	case err := <-s.ended:
		var failed *exec.ExitError
		if err != nil && !errors.As(err, &failed) {
			s.t.Fatal(err)
		}
	case <-time.After(settleLimit):
		s.t.Fatal("the process did not end")
	}
	return s.process.ProcessState
}

func (s *site) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.process.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// sluice runs a client verb and returns what it prints.
func (s *site) sluice(stdin string, args ...string) string {
	s.t.Helper()
	out, err := s.verb(stdin, args...)
	if err != nil {
		s.t.Fatalf("sluice %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (s *site) verb(stdin string, args ...string) (string, error) {
	c := exec.Command(s.exe, args...)
	c.Env = append(os.Environ(), "SLUICE_SERVER=unix:"+s.socket())
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	return string(out), err
}

func (s *site) socket() string { return filepath.Join(s.dir, "data", "control.sock") }

// key makes a key and returns its id and its secret.
func (s *site) key(limits ...string) (id, secret string) {
	s.t.Helper()
	var made struct{ ID, Secret string }
	if err := json.Unmarshal([]byte(s.sluice("", append([]string{"key", "create", "-o", "json"}, limits...)...)), &made); err != nil {
		s.t.Fatal(err)
	}
	return made.ID, made.Secret
}

func (s *site) end() {
	if s.process != nil && s.process.ProcessState == nil {
		s.process.Process.Kill()
		select {
		case <-s.ended:
		case <-time.After(settleLimit):
		}
	}
	if raw, err := os.ReadFile(filepath.Join(s.dir, "server.log")); s.t.Failed() && err == nil {
		s.t.Logf("the server wrote, at its end:\n%s", raw[max(0, len(raw)-4<<10):])
	}
	os.RemoveAll(s.dir)
}

// gatedEngine says one token of a stream, then the rest when its gate opens.
type gatedEngine struct {
	*httptest.Server
	gate    chan struct{}
	waiting chan struct{} // gets one for each stream that waits
}

const (
	firstToken = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"one\"}}]}\n\n"
	lastToken  = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"two\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
)

func newGatedEngine(t testing.TB) *gatedEngine {
	e := &gatedEngine{gate: make(chan struct{}), waiting: make(chan struct{}, 1000)}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, firstToken)
		w.(http.Flusher).Flush()
		e.waiting <- struct{}{}
		select {
		case <-e.gate:
			io.WriteString(w, lastToken)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() {
		e.CloseClientConnections()
		e.Close()
	})
	return e
}

const chatBody = `{"model":"chat","stream":true,"messages":[{"role":"user","content":"hello"}]}`

func post(body string, headers ...string) string {
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", strings.Join(append(headers, ""), "\r\n"), len(body), body)
}

// dial opens a connection and sends text.
func (s *site) dial(text string) net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(settleLimit))
	if _, err := io.WriteString(c, text); err != nil {
		s.t.Fatal(err)
	}
	return c
}
