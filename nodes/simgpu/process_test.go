package simgpu

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test binary is also the program of the holders: with this set it obeys
// one command a line on stdin and answers with one line each.
const envChild = "SIMGPU_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(envChild) {
	case "obey":
		obey()
	case "churn":
		churn()
	default:
		os.Exit(m.Run())
	}
}

func obey() {
	cs, err := FromEnv()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	c := cs[0]
	fmt.Println("ok")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var err error
		var bytes int64
		verb, rest, _ := strings.Cut(in.Text(), " ")
		_, _ = fmt.Sscan(rest, &bytes)
		switch verb {
		case "set":
			err = c.SetAllocated(bytes)
		case "activate":
			err = c.Activate()
		case "deactivate":
			err = c.Deactivate()
		case "close":
			err = c.Close()
		}
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("ok")
	}
}

// churn changes the state as fast as it can until it is killed.
func churn() {
	cs, err := FromEnv()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ok")
	for n := int64(1); ; n++ {
		_ = cs[0].SetAllocated(n % gib)
		if cs[0].Activate() == nil {
			_ = cs[0].Deactivate()
		}
	}
}

type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startChild(t *testing.T, mode, dir, uuid, holder string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envChild+"="+mode, EnvDir+"="+dir, EnvDevices+"="+uuid, EnvHolder+"="+holder)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	c := &child{t: t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	t.Cleanup(func() { c.kill(); _ = cmd.Wait() })
	if got := c.answer(); got != "ok" {
		t.Fatalf("child of %s: %s", holder, got)
	}
	return c
}

func (c *child) answer() string {
	if !c.out.Scan() {
		return "no answer"
	}
	return c.out.Text()
}

func (c *child) do(line string) string {
	c.t.Helper()
	_, err := fmt.Fprintln(c.in, line)
	must(c.t, err)
	return c.answer()
}

func (c *child) want(line, part string) {
	c.t.Helper()
	if got := c.do(line); !strings.Contains(got, part) {
		c.t.Fatalf("%s: %q, want %q", line, got, part)
	}
}

// kill ends the process without waiting for it: it stays as a zombie.
func (c *child) kill() { _ = c.cmd.Process.Signal(syscall.SIGKILL) }

// eventually polls until ok or 10 s.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("did not happen in 10 s: %s", what)
		}
	}
}

func TestProcessesShareOneTruth(t *testing.T) {
	dir := newDir(t, "GPU-0")
	a, b := startChild(t, "obey", dir, "GPU-0", "a"), startChild(t, "obey", dir, "GPU-0", "b")
	a.want(fmt.Sprint("set ", 60*gib), "ok")
	b.want(fmt.Sprint("set ", 30*gib), "out of memory")
	b.want(fmt.Sprint("set ", 20*gib), "ok")
	a.want("activate", "ok")
	b.want("activate", "another active holder")
	r := readOne(t, dir)
	if r.UsedBytes != 80*gib || len(r.Procs) != 2 || r.Procs[0].PID != a.cmd.Process.Pid || !r.Procs[0].Active || r.Procs[1].Active {
		t.Fatalf("reading %+v", r)
	}
	vs, err := Violations(dir)
	must(t, err)
	if len(vs) != 1 || vs[0].PID != b.cmd.Process.Pid || vs[0].ActivePID != a.cmd.Process.Pid {
		t.Fatalf("violations %+v", vs)
	}
}

// A killed holder is a zombie until it is reaped; its memory and its right to
// compute are free before that.
func TestKilledHolderFreesTheGPU(t *testing.T) {
	dir := newDir(t, "GPU-0")
	a, b := startChild(t, "obey", dir, "GPU-0", "a"), startChild(t, "obey", dir, "GPU-0", "b")
	a.want(fmt.Sprint("set ", 80*gib), "ok")
	a.want("activate", "ok")
	a.kill()
	eventually(t, "reading without the dead", func() bool { return readOne(t, dir).UsedBytes == 0 })
	b.want(fmt.Sprint("set ", 80*gib), "ok")
	b.want("activate", "ok")
	if vs, err := Violations(dir); err != nil || len(vs) != 0 {
		t.Fatalf("violations %v, %v", vs, err)
	}
}

// A stopped holder computes nothing but has not yielded: it keeps its GPU.
func TestStoppedHolderKeepsTheGPU(t *testing.T) {
	dir := newDir(t, "GPU-0")
	a, b := startChild(t, "obey", dir, "GPU-0", "a"), startChild(t, "obey", dir, "GPU-0", "b")
	a.want("activate", "ok")
	must(t, a.cmd.Process.Signal(syscall.SIGSTOP))
	eventually(t, "stopped in the reading", func() bool { return readOne(t, dir).Procs[0].Stopped })
	b.want("activate", "another active holder")
	must(t, a.cmd.Process.Signal(syscall.SIGCONT))
	a.want("deactivate", "ok")
	b.want("activate", "ok")
}

// Processes are killed at random instructions of their calls; whatever they
// left, the next one works and the readers never see a torn state.
func TestKilledInMidCallLeavesAGoodState(t *testing.T) {
	dir := newDir(t, "GPU-0")
	for i := range 12 {
		victim := startChild(t, "churn", dir, "GPU-0", fmt.Sprint("victim-", i))
		reads := 0
		eventually(t, "reads while it churns", func() bool {
			r := readOne(t, dir)
			if r.UsedBytes > r.MemoryBytes {
				t.Fatalf("overcommitted: %+v", r)
			}
			reads++
			return reads > 3+i
		})
		victim.kill()
		_ = victim.cmd.Wait()
	}
	c := attachTo(t, dir, "GPU-0", "after")
	must(t, c.SetAllocated(80*gib))
	must(t, c.Activate())
	if r := readOne(t, dir); len(r.Procs) != 1 {
		t.Fatalf("reading %+v", r)
	}
}

func TestReusedPidIsNotTheHolder(t *testing.T) {
	dir := newDir(t, "GPU-0")
	file, err := openState(dir, "GPU-0")
	must(t, err)
	defer file.close()
	st, err := file.read()
	must(t, err)
	// Our own pid with another start time: the pid was used before us.
	st.Contexts = []slot{{ID: 1, PID: os.Getpid(), StartTicks: 1, Holder: "old", Bytes: 80 * gib, Active: true}}
	st.NextID = 2
	must(t, file.write(st))
	if r := readOne(t, dir); r.UsedBytes != 0 || len(r.Procs) != 0 {
		t.Fatalf("reading %+v", r)
	}
	c := attachTo(t, dir, "GPU-0", "new")
	must(t, c.SetAllocated(80*gib))
	must(t, c.Activate())
}
