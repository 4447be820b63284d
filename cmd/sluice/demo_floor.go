package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sluice/gateway/admin"
	"sluice/nodes"
	"sluice/nodes/registry"
)

// The demo's jobs and their sizes.
const (
	demoElastic = "tune"
	demoFixed   = "vision"
	demoSignal  = "legacy"

	demoMicroBatches  = 840 // a multiple of every world size from 2 to 8
	demoEngineActive  = 130 << 30
	demoAsleepBytes   = 2 << 30
	demoRankActive    = 24 << 30
	demoRankResident  = 20 << 30
	demoReadyTimeout  = 60 * time.Second
	demoStopTimeout   = 30 * time.Second
	demoPoll          = 100 * time.Millisecond
	demoLoadMs        = 30_000 // of the trace: a cold start of an engine
	demoWakeMs        = 800    // of the trace: wake from sleep level 1
	demoSleepMs       = 400
	demoSignalGraceMs = 5_000
)

// demoFloor is the running floor: a server and two agents as processes.
type demoFloor struct {
	o        demoOptions
	dir      string
	temp     bool
	exe      string
	server   string // control socket, as --server takes it
	dataAddr string
	procs    []*exec.Cmd
	ended    chan error
	client   *client
}

func startFloor(o demoOptions) (*demoFloor, error) {
	f := &demoFloor{o: o, dir: o.DataDir, ended: make(chan error, 3)}
	if err := f.start(); err != nil {
		f.stop()
		return nil, err
	}
	return f, nil
}

func (f *demoFloor) start() error {
	var err error
	if f.dir == "" {
		f.temp = !f.o.Keep
		if f.dir, err = os.MkdirTemp("", "sluice-demo-"); err != nil {
			return fmt.Errorf("make a directory for the demo: %w", err)
		}
	}
	if f.dir, err = filepath.Abs(f.dir); err != nil {
		return fmt.Errorf("name the demo's directory: %w", err)
	}
	// A copy of the program: `go run` removes its own when it ends.
	if f.exe, err = copyProgram(f.dir); err != nil {
		return err
	}
	ports, err := freePorts(5)
	if err != nil {
		return err
	}
	addr := func(i int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[i])) }
	f.dataAddr = addr(0)
	f.server = "unix:" + socketPath(filepath.Join(f.dir, "server"))
	if f.client, err = newClient(clientSettings{Server: f.server}); err != nil {
		return err
	}
	if err := f.spawn("server", nil, "serve", "--data", filepath.Join(f.dir, "server"), "--node", "server", "--listen", f.dataAddr,
		"--control", addr(1), "--gossip", addr(2), "--speed", fmt.Sprint(f.o.Speed), "--strict"); err != nil {
		return err
	}
	var made admin.NewToken
	if err := f.retry(context.Background(), func(ctx context.Context) error {
		return f.client.call(ctx, "POST", "/v1/tokens", admin.TokenRequest{Role: admin.RoleAgent}, &made)
	}); err != nil {
		return err
	}
	for i, node := range []string{"n1", "n2"} {
		if err := f.spawn(node, []string{tokenEnv + "=" + made.Token}, "agent", "--data", filepath.Join(f.dir, node), "--node", node,
			"--gpus", "sim:4", "--join", addr(1), "--gossip", addr(3+i), "--seeds", addr(2)); err != nil {
			return err
		}
	}
	return nil
}

func copyProgram(dir string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the sluice program: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make a directory for the demo: %w", err)
	}
	to := filepath.Join(dir, "sluice")
	in, err := os.Open(self)
	if err != nil {
		return "", fmt.Errorf("copy the sluice program: %w", err)
	}
	defer in.Close()
	os.Remove(to)
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o700)
	if err != nil {
		return "", fmt.Errorf("copy the sluice program: %w", err)
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return "", fmt.Errorf("copy the sluice program: %w", err)
	}
	if err := out.Close(); err != nil {
		return "", fmt.Errorf("copy the sluice program: %w", err)
	}
	return to, nil
}

// freePorts finds n ports free for TCP and UDP on loopback.
func freePorts(n int) ([]int, error) {
	var ports []int
	var open []net.Listener
	defer func() {
		for _, l := range open {
			l.Close()
		}
	}()
	for len(ports) < n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		open = append(open, l)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// spawn starts one process of the floor, in a session of its own so that a
// Ctrl-C at the terminal reaches only the demo, which ends things in order.
func (f *demoFloor) spawn(name string, env []string, args ...string) error {
	logs, err := os.OpenFile(filepath.Join(f.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open a log: %w", err)
	}
	defer logs.Close()
	cmd := exec.Command(f.exe, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = logs, logs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the %s: %w", name, err)
	}
	f.procs = append(f.procs, cmd)
	go func() {
		err := cmd.Wait()
		f.ended <- fmt.Errorf("the %s ended early (%v); its log is %s", name, err, logs.Name())
	}()
	return nil
}

func (f *demoFloor) pids() string {
	var out []string
	for _, p := range f.procs {
		out = append(out, strconv.Itoa(p.Process.Pid))
	}
	return strings.Join(out, " ")
}

// retry repeats do until it works, a process ends, or demoReadyTimeout.
func (f *demoFloor) retry(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, demoReadyTimeout)
	defer cancel()
	tick := time.NewTicker(demoPoll)
	defer tick.Stop()
	for {
		err := do(ctx)
		if err == nil {
			return nil
		}
		select {
		case early := <-f.ended:
			f.temp = false
			return early
		case <-ctx.Done():
			f.temp = false
			return fmt.Errorf("the floor is not ready: %w; logs are in %s", err, f.dir)
		case <-tick.C:
		}
	}
}

func (f *demoFloor) model(name string, maxReplicas, guarantee int) registry.ModelSpec {
	m := registry.ModelSpec{Name: name, Tenant: "product", MinReplicas: 1, MaxReplicas: maxReplicas, GuaranteeGPUs: guarantee,
		GPUsPerReplica: 1, ActiveBytes: demoEngineActive, ResidentBytes: demoAsleepBytes, Sleep: nodes.SleepVLLM, MaxInFlight: demoInFlight,
		Command: []string{f.exe, "engine", "--listen", "127.0.0.1:{{port}}", "--served-model", name, "--speed", fmt.Sprint(f.o.Speed),
			"--load-ms", strconv.Itoa(demoLoadMs), "--wake-ms", strconv.Itoa(demoWakeMs), "--sleep-ms", strconv.Itoa(demoSleepMs),
			"--active-memory", "130GiB", "--resident-memory", "2GiB", "--stream-interval", "8", "--max-batch", strconv.Itoa(demoInFlight)}}
	for _, o := range demoObjectives {
		o.ThresholdMs /= f.o.Speed // the floor lives in real time
		m.Objectives = append(m.Objectives, o)
	}
	m.Default()
	return m
}

func (f *demoFloor) job(name, tenant string, minWorld, maxWorld, multiple int, extra ...string) registry.JobSpec {
	j := registry.JobSpec{Name: name, Tenant: tenant, MinWorld: minWorld, MaxWorld: maxWorld, WorldMultiple: multiple,
		ActiveBytes: demoRankActive, ResidentBytes: demoRankResident,
		Command: append([]string{f.exe, "trainer", "--micro-batches", strconv.Itoa(demoMicroBatches), "--micro-batch-samples", "1", "--micro-ms", "0.5", "--save-every", "100", "--max-steps", "0", "--scope", "shared",
			"--active-memory", "24GiB", "--resident-memory", "20GiB", "--step-log", f.stepLog(name)}, extra...)}
	return j
}

func (f *demoFloor) stepLog(job string) string { return filepath.Join(f.dir, "steps-"+job) }

// ready registers tenants, models and jobs, and waits until each model answers
// and training has begun.
func (f *demoFloor) ready(ctx context.Context) error {
	elastic := f.job(demoElastic, "research", 2, 8, 1)
	elastic.Priority = 1
	fixed := f.job(demoFixed, "product", 2, 2, 1)
	signal := f.job(demoSignal, "research", 1, 1, 1, "--no-protocol")
	signal.Protocol, signal.StopSignal, signal.GraceMs = "none", "SIGTERM", demoSignalGraceMs
	signal.ResidentBytes = 0
	for _, put := range []struct {
		method, path string
		body         any
	}{
		{"PUT", "/v1/tenants/research", registry.TenantSpec{Name: "research", Weight: 1}},
		{"PUT", "/v1/tenants/product", registry.TenantSpec{Name: "product", Weight: 1}},
		{"PUT", "/v1/models/" + demoLong, f.model(demoLong, 4, 2)},
		{"PUT", "/v1/models/" + demoShort, f.model(demoShort, 3, 1)},
	} {
		if err := f.client.call(ctx, put.method, put.path, put.body, nil); err != nil {
			return fmt.Errorf("%s: %w", put.path, err)
		}
	}
	if err := f.retry(ctx, func(ctx context.Context) error { return f.modelsAnswer(ctx) }); err != nil {
		return err
	}
	for _, j := range []registry.JobSpec{elastic, signal, fixed} {
		j.Default()
		if err := f.client.call(ctx, "POST", "/v1/jobs", j, nil); err != nil {
			return fmt.Errorf("submit %s: %w", j.Name, err)
		}
	}
	return f.retry(ctx, func(ctx context.Context) error { return f.jobsRan(ctx) })
}

var errNotYet = errors.New("not yet")

func (f *demoFloor) modelsAnswer(ctx context.Context) error {
	st, err := f.status(ctx)
	if err != nil {
		return err
	}
	for _, m := range st.Models {
		if m.Ready == 0 {
			return fmt.Errorf("model %s has no ready replica: %w", m.Name, errNotYet)
		}
	}
	return nil
}

// jobsRan waits until training holds every GPU that the models do not.
func (f *demoFloor) jobsRan(ctx context.Context) error {
	st, err := f.status(ctx)
	if err != nil {
		return err
	}
	running := 0
	for _, j := range st.Jobs {
		if j.Phase == string(registry.JobRunning) {
			running += j.World
		}
	}
	if running == 0 {
		return fmt.Errorf("no job runs: %w", errNotYet)
	}
	return nil
}

func (f *demoFloor) status(ctx context.Context) (*admin.Status, error) {
	st := new(admin.Status)
	return st, f.client.call(ctx, "GET", "/v1/status", nil, st)
}

// stop ends jobs and models, waits until everything is proved gone, then ends
// the processes and removes the directory if it is the demo's own.
func (f *demoFloor) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), demoStopTimeout)
	defer cancel()
	if len(f.procs) == 3 && f.client != nil {
		f.endHolders(ctx)
	}
	var err error
	for i := len(f.procs) - 1; i >= 0; i-- {
		f.procs[i].Process.Signal(syscall.SIGTERM)
		select {
		case <-f.ended:
		case <-ctx.Done():
			f.procs[i].Process.Kill()
			err = fmt.Errorf("process %d had to be killed", f.procs[i].Process.Pid)
		}
	}
	if f.temp {
		err = errors.Join(err, os.RemoveAll(f.dir))
	}
	return err
}

func (f *demoFloor) endHolders(ctx context.Context) {
	for _, job := range []string{demoElastic, demoFixed, demoSignal} {
		f.client.call(ctx, "POST", "/v1/jobs/"+job+"/cancel", nil, nil) // ended already, or never submitted: nothing to do
	}
	for _, model := range []string{demoLong, demoShort} {
		f.client.call(ctx, "DELETE", "/v1/models/"+model, nil, nil)
	}
	tick := time.NewTicker(demoPoll)
	defer tick.Stop()
	for ctx.Err() == nil {
		st, err := f.status(ctx)
		if err != nil || (len(st.Models) == 0 && allEnded(st.Jobs)) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func allEnded(jobs []admin.JobStatus) bool {
	for _, j := range jobs {
		if !registry.JobPhase(j.Phase).Ended() {
			return false
		}
	}
	return true
}
