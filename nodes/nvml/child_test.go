//go:build cgo && linux

package nvml

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Each library is loaded in a process of its own, as in life; a crash of that
// process is what these tests are after. The child obeys lines on its standard
// input and answers each with one line of JSON.
func TestMain(m *testing.M) {
	if os.Getenv("NVML_TEST_CHILD") != "" {
		obey()
		return
	}
	goleak.VerifyTestMain(m)
}

// answer is what the child says.
type answer struct {
	Err   string     `json:"err,omitempty"`
	Inv   *Inventory `json:"inv,omitempty"`
	Event *XID       `json:"event,omitempty"`
}

var kinds = map[string]error{
	"no library": ErrNoLibrary, "no driver": ErrNoDriver, "mismatch": ErrVersionMismatch,
	"too old": ErrTooOld, "init": ErrInit, "permission": ErrNoPermission,
}

func kindOf(err error) string {
	for name, kind := range kinds {
		if errors.Is(err, kind) {
			return name
		}
	}
	return err.Error()
}

func obey() {
	out := json.NewEncoder(os.Stdout)
	r, err := Open(os.Getenv("NVML_TEST_LIB"))
	if err != nil {
		out.Encode(answer{Err: kindOf(err)})
		io.Copy(io.Discard, os.Stdin) // alive until the test has had its look
		return
	}
	out.Encode(answer{})
	ctx, cancel := context.WithCancel(context.Background())
	var events <-chan XID
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		word, rest, _ := strings.Cut(in.Text(), " ")
		var a answer
		switch word {
		case "read":
			inv, err := r.Read()
			if err != nil {
				a.Err = err.Error()
			}
			a.Inv = &inv
		case "remember":
			r.Remember(strings.Fields(rest)...)
		case "forget":
			r.Forget(rest)
		case "watch":
			events = r.Watch(ctx)
		case "event":
			select {
			case x := <-events:
				a.Event = &x
			case <-time.After(10 * time.Second):
				a.Err = "no event within 10 s"
			}
		}
		out.Encode(a)
	}
	cancel()
	if events != nil {
		for range events {
		}
	}
	if err := r.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// build compiles the fake library.
func build(t *testing.T, defines ...string) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("needs gcc to compile the fake library")
	}
	lib := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	args := []string{"-O1", "-shared", "-fPIC", "-o", lib, "testdata/fake_nvml.c"}
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return lib
}

// machine is a child with its state file.
type machine struct {
	t      *testing.T
	state  string
	in     io.WriteCloser
	out    chan answer
	stderr *bytes.Buffer
	opened string // Open's error, by kind
}

// boot starts a child over lib. state nil: no driver.
func boot(t *testing.T, lib string, state []string, env ...string) *machine {
	t.Helper()
	m := &machine{t: t, state: filepath.Join(t.TempDir(), "state"), out: make(chan answer), stderr: &bytes.Buffer{}}
	if state != nil {
		m.set(state...)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "NVML_TEST_CHILD=1", "NVML_TEST_LIB="+lib, "FAKE_NVML_STATE="+m.state,
		"GORACE=atexit_sleep_ms=0"), env...) // a race build waits a second at its end otherwise
	cmd.Stderr = m.stderr
	var err error
	if m.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(m.out)
		for dec := json.NewDecoder(stdout); ; {
			var a answer
			if dec.Decode(&a) != nil {
				return
			}
			m.out <- a
		}
	}()
	t.Cleanup(func() {
		m.in.Close()
		overdue := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
		defer overdue.Stop()
		for range m.out {
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the process ended with %v\n%s", err, m.stderr)
		}
	})
	m.opened = m.hear().Err
	return m
}

// set replaces the state, whole.
func (m *machine) set(lines ...string) {
	m.t.Helper()
	tmp := m.state + ".new"
	if err := os.WriteFile(tmp, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(tmp, m.state); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) hear() answer {
	m.t.Helper()
	select {
	case a, ok := <-m.out:
		if !ok {
			m.t.Fatalf("the process died\n%s", m.stderr)
		}
		return a
	case <-time.After(20 * time.Second):
		m.t.Fatal("no answer within 20 s")
	}
	panic("unreachable")
}

func (m *machine) do(line string) answer {
	m.t.Helper()
	if _, err := io.WriteString(m.in, line+"\n"); err != nil {
		m.t.Fatalf("%v\n%s", err, m.stderr)
	}
	return m.hear()
}

func (m *machine) read() Inventory {
	m.t.Helper()
	a := m.do("read")
	if a.Err != "" || a.Inv == nil {
		m.t.Fatalf("read: %q", a.Err)
	}
	return *a.Inv
}
