package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice/nodes"
)

func TestJournal(t *testing.T) {
	dir := t.TempDir()
	j, _, err := openJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	rec := func(id string) *record {
		return &record{Spec: nodes.HolderSpec{ID: id}, State: nodes.StatePrepared}
	}
	for _, e := range []entry{
		{Term: 3}, {Holder: rec("a")}, {Holder: rec("b")}, {Term: 9}, {Forget: "a"},
		{Answer: &nodes.Answer{ID: "o1", Holder: "b", Port: 5}}, {Note: &nodes.RankNote{Holder: "b", Kind: "stopped"}},
		{Baseline: map[string]int64{"G0": 7}},
	} {
		if err := j.append(e, e.Term != 0); err != nil {
			t.Fatal(err)
		}
	}
	j.close()
	// What a crash in the middle of a write leaves.
	f, _ := os.OpenFile(filepath.Join(dir, "journal"), os.O_APPEND|os.O_WRONLY, 0)
	fmt.Fprint(f, `{"term":44,"hol`)
	f.Close()
	for range 2 {
		j, p, err := openJournal(dir)
		if err != nil {
			t.Fatal(err)
		}
		if p.term != 9 || len(p.holders) != 1 || p.holders["b"] == nil || len(p.answers) != 1 ||
			len(p.notes["b"]) != 1 || p.baseline["G0"] != 7 {
			t.Errorf("%+v", p)
		}
		if err := j.append(entry{Term: 9}, true); err != nil {
			t.Fatal(err)
		}
		if err := j.compact([]entry{{Term: 9}, {Holder: p.holders["b"]}, {Answer: &p.answers[0]}, {Note: &p.notes["b"][0]}, {Baseline: p.baseline}}); err != nil {
			t.Fatal(err)
		}
		j.close()
	}
	if err := os.WriteFile(filepath.Join(dir, "journal"), []byte("{\"term\":1}\nnot json\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openJournal(dir); !errors.Is(err, ErrJournal) || !strings.Contains(err.Error(), "journal:2") {
		t.Errorf("a damaged journal: %v", err)
	}
}

func TestAnswerLogIsBounded(t *testing.T) {
	var a answerLog
	for i := range MaxAnswers + 10 {
		a.put(nodes.Answer{ID: fmt.Sprint(i)})
		a.put(nodes.Answer{ID: fmt.Sprint(i), Port: i})
	}
	if _, ok := a.get("9"); ok || len(a.all()) != MaxAnswers {
		t.Errorf("%d kept", len(a.all()))
	}
	if ans, ok := a.get("10"); !ok || ans.Port != 10 {
		t.Errorf("%+v", ans)
	}
}

func TestEnvironmentAndCommand(t *testing.T) {
	p := place{
		dir: "/d", port: 21001, memoryBytes: 300, socket: "/d/rank.sock", resume: "/d/resume.json",
		device: map[string]string{"CUDA_VISIBLE_DEVICES": "G0,G1"}, marks: []string{"SLUICE_MARK=m", "SLUICE_HOLDER=a"},
		base: func(k string) (string, bool) { return "base-" + k, k == "PATH" || k == "SECRET" },
	}
	s := &nodes.HolderSpec{
		ID: "a", Generation: 3, ActiveBytes: 100, ResidentBytes: 10, Command: []string{"serve", "--port={{port}}"},
		Env: map[string]string{"URL": "http://x:{{port}}", "FRACTION": "{{memoryFraction}}", "SLUICE_HOLDER": "forged"},
		Rank: &nodes.RankSpec{Job: "j", Launcher: nodes.LaunchRanks, Rank: 5, LocalRank: 1, WorldSize: 8, LocalWorldSize: 4,
			MasterAddr: "h", MasterPort: 99, NodeRank: 1, NodeCount: 2, CheckpointDir: "/c"},
	}
	want := []string{
		"CUDA_VISIBLE_DEVICES=G0,G1", "FRACTION=0.333", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=h", "MASTER_PORT=99", "PATH=base-PATH",
		"RANK=5", "SLUICE_ACTIVE_BYTES=100", "SLUICE_CHECKPOINT_DIR=/c", "SLUICE_GENERATION=3", "SLUICE_HOLDER=a", "SLUICE_JOB=j", "SLUICE_MARK=m",
		"SLUICE_RESIDENT_BYTES=10", "SLUICE_RESUME=/d/resume.json", "SLUICE_SOCKET=/d/rank.sock", "URL=http://x:21001", "WORLD_SIZE=8",
	}
	if got := environment(s, p); !slices.Equal(got, want) {
		t.Errorf("environment\n got %q\nwant %q", got, want)
	}
	if got := command(s, p); !slices.Equal(got, []string{"serve", "--port=21001"}) {
		t.Errorf("%q", got)
	}
	s.Rank.Launcher = nodes.LaunchTorchrun
	const options = "--nnodes 2 --node_rank 1 --nproc_per_node 4 --master_addr h --master_port 99 -r 1 -t 1 --log_dir /d/torchrun "
	for given, want := range map[string]string{
		"python3 train.py":              "torchrun " + options + "--no_python python3 train.py",
		"/usr/bin/torchrun train.py -v": "/usr/bin/torchrun " + options + "train.py -v",
	} {
		s.Command = strings.Fields(given)
		if got := strings.Join(command(s, p), " "); got != want {
			t.Errorf("%s\n got %s\nwant %s", given, got, want)
		}
	}
	for _, kv := range environment(s, p) {
		if strings.HasPrefix(kv, "RANK=") || strings.HasPrefix(kv, "MASTER_") {
			t.Errorf("torchrun is told %s", kv)
		}
	}
}

func TestConfigRules(t *testing.T) {
	good := func() Config {
		c := Default()
		c.NodeID, c.DataDir, c.Devices, c.Dial, c.HoldCommand = "n", "/d", NoDevices{}, &HTTPDialer{}, []string{"x"}
		return c
	}
	c := good()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"node":   func(c *Config) { c.NodeID = "../x" },
		"data":   func(c *Config) { c.DataDir = "" },
		"dial":   func(c *Config) { c.Dial = nil },
		"ports":  func(c *Config) { c.PortMin = 0 },
		"listen": func(c *Config) { c.Listen = "nowhere" },
	} {
		c := good()
		change(&c)
		if err := c.Validate(); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, listen := range []string{"0.0.0.0:0", ":0", "10.0.0.1:7", "example.org:1"} {
		c := good()
		c.Listen = listen
		if err := c.Validate(); !errors.Is(err, ErrInsecure) {
			t.Errorf("%s: %v", listen, err)
		}
		c.TLS, c.CheckBearer = &tls.Config{}, func(string) bool { return false }
		if err := c.Validate(); err != nil {
			t.Errorf("%s with TLS and bearer: %v", listen, err)
		}
	}
}

func TestLeaseTable(t *testing.T) {
	var l leaseTable
	if a := l.renew("g", false, false, 0); a.ttlMs != 0 || a.why != "not ready" {
		t.Errorf("%+v", a)
	}
	if a := l.renew("g", true, false, 0); a.ttlMs != LeaseTTLMs {
		t.Errorf("%+v", a)
	}
	if n, first := l.left(LeaseTTLMs - 1); n != 1 || first != LeaseTTLMs {
		t.Errorf("%d left until %d", n, first)
	}
	if n, _ := l.left(LeaseTTLMs); n != 0 {
		t.Errorf("%d left after its time", n)
	}
	for i := range MaxLeases {
		l.renew(fmt.Sprint(i), true, false, 0)
	}
	if a := l.renew("one more", true, false, 0); a.why != "full" {
		t.Errorf("%+v", a)
	}
	if a := l.renew("7", true, true, 0); a.why != "draining" {
		t.Errorf("%+v", a)
	}
}

func TestPortsAreFresh(t *testing.T) {
	p := portPicker{min: 21000, max: 21999}
	seen := map[int]bool{}
	for range 100 {
		port, err := p.pick(func(int) bool { return false })
		if err != nil || seen[port] {
			t.Fatalf("port %d again, %v", port, err)
		}
		seen[port] = true
	}
	if _, err := p.pick(func(int) bool { return true }); !errors.Is(err, ErrNoPort) {
		t.Errorf("%v", err)
	}
}

// The dialer tells of every address that it tried, and keeps the reason.
func TestDialerErrors(t *testing.T) {
	l := newLeader(t)
	d := &HTTPDialer{Addrs: func() []string { return []string{"unix:/no/such/socket", "unix:" + l.path} }, Bearer: "wrong"}
	_, err := d.Dial(context.Background())
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "/no/such/socket") || strings.Contains(err.Error(), "wrong") {
		t.Errorf("%v", err)
	}
	d.Bearer = "t0ken"
	rwc, err := d.Dial(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 11)
	if _, err := rwc.Read(line); err != nil || !bytes.HasPrefix(line, []byte(`{"welcome"`)) {
		t.Errorf("%q %v", line, err)
	}
	rwc.Close()
}

// A line beyond the limit ends the connection, and the agent comes again.
func TestLongLine(t *testing.T) {
	s := newSite(t, 1)
	s.start()
	before := s.helloCount()
	s.send(nodes.Order{ID: "long", Kind: nodes.OrderKill, Holder: "a", Reason: strings.Repeat("x", MaxLineBytes)})
	eventually(t, "agent comes again", func() bool { return s.helloCount() > before })
	s.must(nodes.Order{Kind: nodes.OrderKill, Holder: "nobody"})
}

// A holder that runs as another user reaches its socket and its directories.
func TestAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can switch users")
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		t.Skip("there is no user nobody here")
	}
	s := newSite(t, 1)
	if err := os.Chmod(s.args.Data, 0o711); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(s.args.Data, "holder.test")
	raw, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, raw, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"", "/G0.lock", "/G0.json"} {
		_ = os.Chmod(s.args.Sim+f, 0o777)
	}
	s.start()
	gang := s.trainer("a", "G0")
	gang.User, gang.Command[0] = "nobody", binary
	gang.Rank.CheckpointDir = filepath.Join(s.args.Data, "ckpt")
	s.begin(nodes.OrderStart, gang)
	st := s.await("a", nodes.StateRunning)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", st.Pid))
	if err != nil || !strings.Contains(string(status), "Uid:\t"+u.Uid+"\t") {
		t.Errorf("runs as\n%s", status)
	}
	s.stopAt("a", "s1", nodes.StopSave)
	s.note("a", "stopped", "s1")
	if st := s.await("a", nodes.StateGone); st.ExitCode != 0 {
		t.Errorf("%+v", st)
	}
}
