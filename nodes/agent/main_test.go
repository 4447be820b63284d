package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sluice/nodes/agent/hold"
	"sluice/nodes/rank"
	"sluice/nodes/simgpu"
)

// The test binary is also the shim, the agent and every kind of holder.
func TestMain(m *testing.M) {
	roles := map[string]func() int{
		"hold":     func() int { return hold.Main(os.Args[3]) },
		"agent":    agentRole,
		"sleeper":  sleeperRole,
		"stubborn": stubbornRole,
		"chatty":   chattyRole,
		"engine":   engineRole,
		"rank":     rankRole,
	}
	if len(os.Args) > 1 {
		if role := roles[os.Args[1]]; role != nil {
			os.Exit(role())
		}
	}
	// net/http lingers half a second on a connection that it ends.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// sleeperRole takes its GPUs and waits for a signal; the exit code says which.
func sleeperRole() int {
	sig := make(chan os.Signal, 1)
	signal.Notify(sig, syscall.SIGTERM, syscall.SIGUSR1)
	gpus, err := simgpu.FromEnv()
	for _, g := range gpus {
		err = errors.Join(err, g.SetAllocated(1<<20), g.Activate())
	}
	if err != nil {
		fmt.Println(err)
		return 3
	}
	fmt.Println("sleeper runs", os.Getenv("SLUICE_HOLDER"), "in", os.Getenv("SLUICE_GENERATION"))
	if <-sig == syscall.SIGUSR1 {
		return 10
	}
	return 0
}

// stubbornRole ignores SIGTERM and has a grandchild in a session of its own,
// without its environment, that holds the GPU.
func stubbornRole() int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
	if len(os.Args) > 2 && os.Args[2] == "once" {
		gpus, _ := simgpu.FromEnv()
		for _, g := range gpus {
			_ = g.SetAllocated(1 << 20)
			_ = g.Activate()
		}
		fmt.Println("grandchild", os.Getpid())
		select {}
	}
	c := exec.Command(os.Args[0], "stubborn", "once")
	c.Stdout, c.SysProcAttr = os.Stdout, &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		return 3
	}
	if len(os.Args) > 2 && os.Args[2] == "leave" {
		return 7
	}
	select {}
}

// chattyRole writes much and exits.
func chattyRole() int {
	line := strings.Repeat("x", 1023)
	for i := range 200 {
		fmt.Println(line[:1000], i)
	}
	fmt.Println("last line")
	return 5
}

// engineRole is an engine with vLLM's sleep interface on simulated GPUs.
func engineRole() int {
	gpus, err := simgpu.FromEnv()
	if err != nil {
		fmt.Println(err)
		return 3
	}
	set := func(bytes int64, active bool) error {
		for _, g := range gpus {
			err := g.SetAllocated(bytes)
			if err == nil && active {
				err = g.Activate()
			} else if err == nil {
				err = g.Deactivate()
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := set(engineActive, true); err != nil {
		fmt.Println(err)
		return 4
	}
	var mu sync.Mutex
	asleep := false
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if asleep {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("POST /sleep", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if os.Getenv("ENGINE_NO_SLEEP") != "" {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		_ = set(engineResident, os.Getenv("ENGINE_LOUD_SLEEP") != "")
		asleep = true
	})
	mux.HandleFunc("POST /wake_up", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if os.Getenv("ENGINE_NO_WAKE") != "" {
			http.Error(w, "out of memory", http.StatusInternalServerError)
			return
		}
		if err := set(engineActive, true); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		asleep = false
	})
	mux.HandleFunc("GET /is_sleeping", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(w, `{"is_sleeping": %v}`, asleep)
	})
	fmt.Println("engine on", os.Args[2])
	fmt.Println(http.ListenAndServe(net.JoinHostPort("127.0.0.1", os.Args[2]), mux))
	return 1
}

const (
	engineActive   = 600 << 20
	engineResident = 100 << 20
	rankActive     = 500 << 20
	rankResident   = 300 << 20
	gpuBytes       = 1000 << 20
)

// rankRole trains nothing, step by step, and speaks the protocol.
func rankRole() int {
	env, err := rank.EnvFrom(os.Getenv)
	if err != nil {
		fmt.Println(err)
		return 3
	}
	gpus, err := simgpu.FromEnv()
	set := func(bytes int64, active bool) error {
		for _, g := range gpus {
			err := g.SetAllocated(bytes)
			if err == nil && active {
				err = g.Activate()
			} else if err == nil {
				err = g.Deactivate()
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := errors.Join(err, set(rankActive, true)); err != nil {
		fmt.Println(err)
		return 4
	}
	c, err := rank.DialWith(context.Background(), env, rank.Options{
		OnYield:  func() error { return set(rankResident, false) },
		OnResume: func() error { return set(rankActive, true) },
	})
	if err != nil {
		fmt.Println(err)
		return 5
	}
	for step := int64(1); ; step++ {
		v, err := c.BeginStep(step)
		if err != nil {
			fmt.Println(err)
			return 6
		}
		if v.Kind == rank.SaveAndStop {
			file := fmt.Sprintf("%s/s%d.bin", env.CheckpointDir, v.Step)
			data := []byte(strconv.FormatInt(v.Step, 10))
			if err := rank.WriteFileSync(file, data); err != nil {
				fmt.Println(err)
				return 7
			}
			_ = c.Shard(rank.Message{Step: v.Step, File: file, Bytes: int64(len(data)), Digest: rank.Digest(data), Scope: rank.ScopeShared, Samples: 8 * v.Step})
			c.Stopped(v.Step)
			return 0
		}
		wait(context.Background(), 5)
		_ = c.EndStep(step, 1/float64(step), step*8)
	}
}

// agentRole runs an agent until it is killed. Its configuration is in argv.
func agentRole() int {
	var a agentArgs
	if err := json.Unmarshal([]byte(os.Args[2]), &a); err != nil {
		fmt.Println(err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg := a.config()
	cfg.Log = slog.New(slog.NewTextHandler(os.Stdout, nil))
	if err := Run(ctx, cfg); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// agentArgs describes a test agent.
type agentArgs struct {
	Data, Sim, Socket string
	NoCgroup          bool
	LogMaxBytes       int64
	LeaderlessMs      int64
}

func (a agentArgs) config() Config {
	cfg := Default()
	cfg.NodeID, cfg.DataDir, cfg.NoCgroup = "n1", a.Data, a.NoCgroup
	cfg.Devices = NewSimDevices(a.Sim)
	cfg.Dial = &HTTPDialer{Addrs: func() []string { return []string{"unix:" + a.Socket} }, Bearer: "t0ken"}
	cfg.HoldCommand = []string{os.Args[0], "hold"}
	if a.LogMaxBytes > 0 {
		cfg.LogMaxBytes = a.LogMaxBytes
	}
	if a.LeaderlessMs > 0 {
		cfg.LeaderlessMs = a.LeaderlessMs
	}
	return cfg
}

// eventually polls until f is true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("did not happen in time: %s", what)
		}
	}
}
