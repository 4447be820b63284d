package clients

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// net/http lingers half a second on a connection that it ends.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

const (
	settleLimit = time.Minute // for a process to answer, on a machine that does much else
	pollEvery   = 20 * time.Millisecond
	// engineSpeed makes a token of a single request about 1.5 ms.
	engineSpeed = "20"
)

// site is a gateway with two engines behind it: chat speaks the OpenAI API
// alone, native the Messages API too.
type site struct {
	t       *testing.T
	dir     string
	exe     string
	gateway string // http://host:port
	engine  string // of chat
	native  string // engine of native
	http    *http.Client
	keys    map[string]string // secrets by name
	procs   []*exec.Cmd
	ended   []chan struct{}
}

// newSite starts all of it, until the end of the test.
func newSite(t *testing.T) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "slc-") // short: there will be a socket in it
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, dir: dir, exe: filepath.Join(dir, "sluice"), keys: map[string]string{},
		http: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{}}}
	t.Cleanup(s.end)
	build := exec.Command("go", "build", "-o", s.exe, "sluice/cmd/sluice")
	build.Env = append(os.Environ(), "CGO_CFLAGS=-Wno-deprecated-declarations")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	ports := freePorts(t, 3)
	s.gateway, s.engine, s.native = "http://"+ports[0], "http://"+ports[1], "http://"+ports[2]
	s.spawn("engine", "engine", "--listen", ports[1], "--served-model", "chat", "--speed", engineSpeed, "--load-ms", "0", "--faults")
	s.spawn("native", "engine", "--listen", ports[2], "--served-model", "native", "--speed", engineSpeed, "--load-ms", "0", "--faults", "--messages")
	s.spawn("server", "serve", "--data", filepath.Join(dir, "data"), "--node", "server", "--listen", ports[0])
	for _, url := range []string{s.engine, s.native, s.gateway} {
		s.answers(url+"/health", "")
	}
	s.apply("kind: Model\nname: chat\nurl: " + s.engine + "\nengineModel: chat\nspeaks: [responses]\n")
	s.apply("kind: Model\nname: native\nurl: " + s.native + "\nengineModel: native\nspeaks: [messages, responses]\n")
	s.key("main")
	s.key("chatOnly", "--model", "chat")
	s.key("perMinute", "--rpm", "3")
	s.key("crowd", "--concurrent", "3")
	for _, secret := range s.keys {
		s.answers(s.gateway+"/v1/models", secret)
	}
	return s
}

// freePorts are addresses on loopback that nobody has taken.
func freePorts(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// spawn runs the program; what it writes goes to a file of its name.
func (s *site) spawn(name string, args ...string) {
	s.t.Helper()
	logs, err := os.Create(filepath.Join(s.dir, name+".log"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer logs.Close()
	p, ended := exec.Command(s.exe, args...), make(chan struct{})
	p.Stdout, p.Stderr = logs, logs
	if err := p.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = p.Wait() // how it ended is no news: we end it
		close(ended)
	}()
	s.procs, s.ended = append(s.procs, p), append(s.ended, ended)
}

// answers waits until url answers 200 to a request with key.
func (s *site) answers(url, key string) {
	s.t.Helper()
	limit, tick := time.NewTimer(settleLimit), time.NewTicker(pollEvery)
	defer limit.Stop()
	defer tick.Stop()
	for {
		err := s.get(url, key)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-limit.C:
			s.t.Fatalf("%s: not within %v: %v", url, settleLimit, err)
		}
	}
}

func (s *site) get(url, key string) error {
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		return err
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %d", resp.StatusCode)
	}
	return nil
}

// sluice runs a client verb and returns what it prints.
func (s *site) sluice(stdin string, args ...string) []byte {
	s.t.Helper()
	c := exec.Command(s.exe, args...)
	c.Env = append(os.Environ(), "SLUICE_SERVER=unix:"+filepath.Join(s.dir, "data", "control.sock"))
	c.Stdin = strings.NewReader(stdin)
	var errors bytes.Buffer
	c.Stderr = &errors
	out, err := c.Output()
	if err != nil {
		s.t.Fatalf("sluice %s: %v\n%s", strings.Join(args, " "), err, errors.Bytes())
	}
	return out
}

func (s *site) apply(spec string) { s.t.Helper(); s.sluice(spec, "model", "apply", "-f", "-") }

// key makes a key with limits.
func (s *site) key(name string, limits ...string) {
	s.t.Helper()
	var made struct {
		Secret string `json:"secret"`
	}
	if err := json.Unmarshal(s.sluice("", append([]string{"key", "create", "-o", "json"}, limits...)...), &made); err != nil {
		s.t.Fatal(err)
	}
	s.keys[name] = made.Secret
}

// env tells a suite where all of it is.
func (s *site) env() []string {
	keys, err := json.Marshal(s.keys)
	if err != nil {
		s.t.Fatal(err)
	}
	return append(os.Environ(), "SLUICE_URL="+s.gateway, "SLUICE_ENGINE_URL="+s.engine, "SLUICE_NATIVE_URL="+s.native,
		"SLUICE_KEYS="+string(keys), "SLUICE_API_KEY="+s.keys["main"], "NO_COLOR=1")
}

func (s *site) end() {
	s.http.CloseIdleConnections()
	for i := len(s.procs) - 1; i >= 0; i-- {
		_ = s.procs[i].Process.Signal(syscall.SIGTERM)
		limit := time.NewTimer(settleLimit)
		select {
		case <-s.ended[i]:
		case <-limit.C:
			_ = s.procs[i].Process.Kill()
			<-s.ended[i]
		}
		limit.Stop()
	}
	if s.t.Failed() {
		for _, name := range []string{"server", "engine", "native"} {
			s.showLog(name)
		}
	}
	_ = os.RemoveAll(s.dir)
}

// showLogBytes is how much of a log is shown after a failure: its end.
const showLogBytes = 4 << 10

func (s *site) showLog(name string) {
	raw, err := os.ReadFile(filepath.Join(s.dir, name+".log"))
	if err != nil {
		s.t.Log(err)
		return
	}
	s.t.Logf("%s wrote, at its end (of %s bytes):\n%s", name, strconv.Itoa(len(raw)), raw[max(0, len(raw)-showLogBytes):])
}
