package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/gateway/admin"
	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/nodes/trust"
	"sluice/router"
)

// TestMain lets the test binary be the program: its tests never get an argument
// that begins without a dash, and every verb is one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		main()
	}
	os.Exit(m.Run())
}

// shortDir is a temporary directory whose socket's path fits the kernel.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// until polls do, a thing of other processes, for at most half a minute.
func until(t *testing.T, what string, do func() error) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for {
		err := do()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: %v", what, err)
		}
	}
}

func control(t *testing.T, dataDir string) *client {
	t.Helper()
	c, err := newClient(clientSettings{Server: "unix:" + socketPath(dataDir)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func joinToken(t *testing.T, c *client) string {
	t.Helper()
	var made admin.NewToken
	until(t, "make a token", func() error {
		return c.call(t.Context(), "POST", "/v1/tokens", admin.TokenRequest{Role: admin.RoleAgent}, &made)
	})
	return made.Token
}

// work puts one model and one job on the floor whose only node is reached at
// host, and proves that leases and logs come through: chat calls the model.
func work(t *testing.T, c *client, host string, chat func() error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := registry.ModelSpec{Name: "chat", MinReplicas: 1, MaxReplicas: 1, GPUsPerReplica: 1, ActiveBytes: 20 << 30, MaxInFlight: 8, Command: []string{
		exe, "engine", "--listen", host + ":{{port}}", "--served-model", "chat", "--speed", "20", "--load-ms", "100", "--active-memory", "20GiB"}}
	m.Default()
	j := registry.JobSpec{Name: "talk", MinWorld: 1, MaxWorld: 1, ActiveBytes: 1 << 30, Protocol: "none", StopSignal: "SIGTERM", GraceMs: 1000,
		Command: []string{"sh", "-c", "echo said on the node; exec sleep 600"}}
	j.Default()
	t.Cleanup(func() { endWork(t, c) })
	until(t, "put the model", func() error { return c.call(t.Context(), "PUT", "/v1/models/chat", m, nil) })
	until(t, "submit the job", func() error { return c.call(t.Context(), "POST", "/v1/jobs", j, nil) })
	until(t, "chat", chat)
	until(t, "read the log", func() error {
		body, err := c.stream(t.Context(), "/v1/jobs/talk/log")
		if err != nil {
			return err
		}
		defer body.Close()
		text, err := io.ReadAll(body)
		if err == nil && !strings.Contains(string(text), "said on the node") {
			err = fmt.Errorf("the log is %q", text)
		}
		return err
	})
}

func endWork(t *testing.T, c *client) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c.call(ctx, "POST", "/v1/jobs/talk/cancel", nil, nil) // never submitted: nothing to end
	c.call(ctx, "DELETE", "/v1/models/chat", nil, nil)
	until(t, "end what runs", func() error {
		var st admin.Status
		if err := c.call(ctx, "GET", "/v1/status", nil, &st); err != nil {
			return err
		}
		if len(st.Models) > 0 || !allEnded(st.Jobs) {
			return errNotYet
		}
		return nil
	})
}

func chatOver(c *http.Client, addr string) func() error {
	return func() error {
		body := strings.NewReader(`{"model":"chat","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`)
		resp, err := c.Post("http://"+addr+"/v1/chat/completions", "application/json", body)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK || !bytes.Contains(text, []byte("choices")) {
			return fmt.Errorf("%s: %s", resp.Status, text)
		}
		return nil
	}
}

// Server and agent in this process, TLS between them although on loopback.
func TestAgentBehindTLSOnLoopback(t *testing.T) {
	everywhere := func(string) bool { return true }
	dir := shortDir(t)
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := startServer(serverOptions{DataDir: dir, Node: "server", Listen: "127.0.0.1:0", Control: "127.0.0.1:0", Strict: true, UsesTLS: everywhere, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	c := control(t, dir)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	o := agentOptions{DataDir: agentDir(dir), Node: "n1", Host: "127.0.0.1", GPUs: "sim:2", Join: []string{s.opts.Control},
		Token: joinToken(t, c), UsesTLS: everywhere, Log: log}
	go func() { ended <- runAgent(ctx, o) }()
	defer func() {
		cancel()
		if err := ignoreCanceled(ctx, <-ended); err != nil {
			t.Error(err)
		}
	}()
	var agentAddr string
	until(t, "agent comes", func() error {
		s.ctl.Read(func(st *registry.State, _ *nodes.Fleet, _ int64) {
			if n := st.Nodes["n1"]; n != nil {
				agentAddr = n.AgentAddr
			}
		})
		if agentAddr == "" {
			return errNotYet
		}
		return nil
	})
	t.Run("work", func(t *testing.T) { work(t, c, "127.0.0.1", chatOver(http.DefaultClient, s.opts.Listen)) })
	client, err := s.agents()
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	leases := agentLeases{gateway: "gw", scheme: trust.AgentScheme, client: client}
	if _, err := leases.Renew(t.Context(), router.Replica{ID: "none", AgentAddr: agentAddr}); !errors.Is(err, router.ErrLeaseRefused) {
		t.Errorf("a lease of what is not there: %v", err)
	}
	strangersAreRefused(t, http.DefaultTransport.(*http.Transport).DialContext, agentAddr)
}

// strangersAreRefused tries what whoever reaches the agent's port can try.
func strangersAreRefused(t *testing.T, dial func(context.Context, string, string) (net.Conn, error), addr string) {
	t.Helper()
	tr := &http.Transport{DialContext: dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	for _, scheme := range []string{"http", "https"} {
		for _, path := range []string{"/v1/state", "/v1/holders/talk.g1.r0/log"} {
			resp, err := (&http.Client{Transport: tr}).Get(scheme + "://" + addr + path)
			if err != nil {
				continue
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusBadRequest { // what net/http tells who speaks no TLS
				t.Errorf("%s %s: answered %s", scheme, path, resp.Status)
			}
		}
	}
}

func TestAgentListening(t *testing.T) {
	for _, c := range []struct {
		listen, host string
		want         string // listen, advertised, hosts; "" is an error
	}{
		{"", "127.0.0.1", "127.0.0.1:0 127.0.0.1:0 [127.0.0.1]"},
		{"", "10.0.0.2", "10.0.0.2:0 10.0.0.2:0 [10.0.0.2]"},
		{"", "::1", "[::1]:0 [::1]:0 [::1]"},
		{"10.0.0.2:7071", "10.0.0.2", "10.0.0.2:7071 10.0.0.2:7071 [10.0.0.2]"},
		{"10.0.0.2:7071", "gpu-01", "10.0.0.2:7071 10.0.0.2:7071 [gpu-01 10.0.0.2]"},
		{"0.0.0.0:7071", "gpu-01", "0.0.0.0:7071 gpu-01:7071 [gpu-01]"},
		{":7071", "10.0.0.2", ":7071 10.0.0.2:7071 [10.0.0.2]"},
		{"127.0.0.1:7071", "10.0.0.2", "127.0.0.1:7071 127.0.0.1:7071 [10.0.0.2 127.0.0.1]"},
		{"localhost:7071", "127.0.0.1", "127.0.0.1:7071 127.0.0.1:7071 [127.0.0.1]"},
		{"0.0.0.0:7071", "127.0.0.1", ""}, // open to all, reached by none
		{":7071", "localhost", ""},
		{"10.0.0.2", "10.0.0.2", ""},
	} {
		l, err := agentListening(c.listen, c.host)
		got := ""
		if err == nil {
			got = fmt.Sprint(l.listen, " ", l.advertised, " ", l.hosts)
		}
		if got != c.want {
			t.Errorf("--listen %q --host %q: %q, %v", c.listen, c.host, got, err)
		}
	}
}

// Two machines: a server and an agent in network namespaces of their own.
func TestAgentOnAnotherMachine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs the program ip, for network namespaces")
	}
	machines := twoMachines(t)
	dir := shortDir(t)
	server := filepath.Join(dir, "server")
	spawn(t, machines[0], nil, "serve", "--data", server, "--node", "server", "--listen", "127.0.0.1:8080", "--control", "10.77.0.1:7070",
		"--gossip", "10.77.0.1:7946", "--strict")
	c := control(t, server)
	token := joinToken(t, c)
	node := filepath.Join(dir, "node")
	spawn(t, machines[1], []string{tokenEnv + "=" + token}, "agent", "--data", node, "--node", "n1", "--gpus", "sim:2",
		"--join", "10.77.0.1:7070", "--listen", "10.77.0.2:7071", "--host", "10.77.0.2", "--gossip", "10.77.0.2:7946")
	transport := &http.Transport{DialContext: dialFrom(machines[0]), DisableKeepAlives: true}
	work(t, c, "10.77.0.2", chatOver(&http.Client{Transport: transport}, "127.0.0.1:8080"))
	strangersAreRefused(t, dialFrom(machines[0]), "10.77.0.2:7071")
	if info, err := os.Stat(filepath.Join(node, "tls", "agent.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the agent's key: %v, %v", info, err)
	}
}

// twoMachines makes two network namespaces, 10.77.0.1 and 10.77.0.2, with a
// wire between them. Nothing outside them is touched.
func twoMachines(t *testing.T) [2]string {
	t.Helper()
	names := [2]string{fmt.Sprintf("sluice%da", os.Getpid()), fmt.Sprintf("sluice%db", os.Getpid())}
	ip := func(args ...string) error {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	for _, name := range names {
		if err := ip("netns", "add", name); err != nil {
			t.Skipf("needs network namespaces: %v", err)
		}
		t.Cleanup(func() { ip("netns", "del", name) })
	}
	err := ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
	for i, name := range names {
		err = errors.Join(err, ip("-n", name, "addr", "add", fmt.Sprintf("10.77.0.%d/24", i+1), "dev", "eth0"),
			ip("-n", name, "link", "set", "eth0", "up"), ip("-n", name, "link", "set", "lo", "up"))
	}
	if err != nil {
		t.Skipf("needs virtual Ethernet: %v", err)
	}
	return names
}

// spawn runs the program on a machine until the test ends.
func spawn(t *testing.T, machine string, env []string, args ...string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ip", append([]string{"netns", "exec", machine, exe}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM) // ip became the program
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			cmd.Process.Kill()
			<-done
			t.Errorf("the %s had to be killed", args[0])
		}
		if t.Failed() {
			t.Logf("%s:\n%s", args[0], out.String())
		}
	})
}

// dialFrom dials as a program on that machine.
func dialFrom(machine string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		type dialled struct {
			conn net.Conn
			err  error
		}
		out := make(chan dialled, 1)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			ns, err := os.Open("/run/netns/" + machine)
			if err != nil {
				out <- dialled{nil, err}
				return
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				out <- dialled{nil, err}
				return
			}
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			out <- dialled{conn, err}
		}()
		d := <-out
		return d.conn, d.err
	}
}
