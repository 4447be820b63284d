package replog

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("REPLOG_TEST_CHILD"); dir != "" {
		child(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// tally is the machine of these tests: how often each command came.
type tally struct {
	mu   sync.Mutex
	seen map[string]int // guarded by mu
}

func newTally() *tally { return &tally{seen: map[string]int{}} }

func (c *tally) Apply(data []byte) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[string(data)]++
	return len(c.seen)
}

func (c *tally) Snapshot() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return json.Marshal(c.seen)
}

func (c *tally) Restore(b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = map[string]int{}
	return json.Unmarshal(b, &c.seen)
}

func (c *tally) count(s string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[s]
}

func (c *tally) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.seen)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func open(t testing.TB, cfg Config, m Machine) *Log {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet()
	}
	l, err := Open(cfg, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// until polls, since raft's progress has no channel to wait on.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func TestSingleVoterLeadsAtOnceAndReplays(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	ctx := context.Background()
	m := newTally()
	l := open(t, Config{Dir: dir, ID: "s1"}, m)
	if !l.Leader() {
		t.Fatal("not leader after Open")
	}
	if lead := <-l.LeaderCh(); !lead {
		t.Fatal("LeaderCh said false")
	}
	for i := range 10 {
		got, err := l.Apply(ctx, fmt.Append(nil, i))
		if err != nil || got != i+1 {
			t.Fatalf("Apply %d: %v, %v", i, got, err)
		}
	}
	term := l.Term()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Apply(ctx, nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("after Close: %v", err)
	}

	begin := time.Now()
	m = newTally()
	l = open(t, Config{Dir: dir, ID: "s1"}, m)
	took := time.Since(begin)
	if m.size() != 10 {
		t.Fatalf("replayed %d of 10", m.size())
	}
	if l.Term() <= term {
		t.Fatalf("term %d did not grow over %d", l.Term(), term)
	}
	t.Logf("restart to leadership with all replayed: %v", took)
	if took > 2*time.Second {
		t.Fatalf("restart took %v", took)
	}
}

func TestFilesAreTheOwnersOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l := open(t, Config{Dir: dir, ID: "s1"}, newTally())
	if _, err := l.Apply(context.Background(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := l.Snapshot(); err != nil {
		t.Fatal(err)
	}
	files := 0
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := os.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), want)
		}
		files++
		return nil
	})
	if err != nil || files < 6 {
		t.Fatalf("%d entries, %v", files, err)
	}
}

func TestSnapshotsBoundTheReplay(t *testing.T) {
	dir := t.TempDir()
	m := newTally()
	l := open(t, Config{Dir: dir, ID: "s1"}, m)
	fill := func(from, to int) {
		var wg sync.WaitGroup
		for i := from; i < to; i++ {
			wg.Go(func() {
				if _, err := l.Apply(context.Background(), fmt.Append(nil, i)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	fill(0, 2*trailingLogs)
	for range 2 { // twice: the older of two must be kept readable too
		if err := l.Snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	fill(2*trailingLogs, 2*trailingLogs+5)
	l.Close()

	m = newTally()
	calls := &counting{Machine: m}
	open(t, Config{Dir: dir, ID: "s1"}, calls)
	if want := 2*trailingLogs + 5; m.size() != want {
		t.Fatalf("%d commands after a restart, want %d", m.size(), want)
	}
	if calls.applies.Load() != 5 || calls.restores.Load() != 1 {
		t.Fatalf("%d applies and %d restores, want 5 and 1", calls.applies.Load(), calls.restores.Load())
	}
}

type counting struct {
	Machine
	applies, restores atomic.Int64
}

func (c *counting) Apply(d []byte) any     { c.applies.Add(1); return c.Machine.Apply(d) }
func (c *counting) Restore(b []byte) error { c.restores.Add(1); return c.Machine.Restore(b) }

func TestLimitsAndContexts(t *testing.T) {
	gate := make(chan struct{})
	stuck := &blocking{tally: newTally(), gate: gate}
	l := open(t, Config{Dir: t.TempDir(), ID: "s1"}, stuck)
	if _, err := l.Apply(context.Background(), make([]byte, MaxCommandBytes+1)); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("oversized: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, err := l.Apply(ctx, []byte("slow"))
		done <- err
	}()
	<-stuck.entered()
	cancel()
	if err := <-done; !errors.Is(err, ErrUncertain) || !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	close(gate)
	until(t, "the cancelled command is applied all the same", func() bool { return stuck.count("slow") == 1 })
}

// blocking waits at a gate inside Apply.
type blocking struct {
	*tally
	gate chan struct{}
	once sync.Once
	in   chan struct{}
}

func (b *blocking) entered() chan struct{} {
	b.once.Do(func() { b.in = make(chan struct{}, 8) })
	return b.in
}

func (b *blocking) Apply(d []byte) any {
	b.entered() <- struct{}{}
	<-b.gate
	return b.tally.Apply(d)
}

// diskFull fails writes as a full disk does, while full is set.
type diskFull struct {
	durable
	full *atomic.Bool
}

func (d diskFull) StoreLogs(e []*raft.Log) error {
	if d.full.Load() {
		return &os.PathError{Op: "write", Path: "log.db", Err: syscall.ENOSPC}
	}
	return d.durable.StoreLogs(e)
}

func (d diskFull) SetUint64(k []byte, v uint64) error {
	if d.full.Load() {
		return &os.PathError{Op: "write", Path: "log.db", Err: syscall.ENOSPC}
	}
	return d.durable.SetUint64(k, v)
}

func TestDiskFullIsSaidAndPasses(t *testing.T) {
	var full atomic.Bool
	m := newTally()
	l := open(t, Config{
		Dir: t.TempDir(), ID: "s1",
		store: func(d durable) durable { return diskFull{d, &full} },
	}, m)
	ctx := context.Background()
	full.Store(true)
	if _, err := l.Apply(ctx, []byte("a")); !errors.Is(err, ErrDiskFull) {
		t.Fatalf("on a full disk: %v", err)
	}
	until(t, "the fault is known", func() bool { return errors.Is(l.Barrier(ctx), ErrDiskFull) })
	full.Store(false)
	until(t, "the log goes on by itself", func() bool {
		_, err := l.Apply(ctx, []byte("b"))
		return err == nil
	})
	if m.count("b") == 0 || m.count("a") != 0 {
		t.Fatalf("a=%d b=%d", m.count("a"), m.count("b"))
	}
	full.Store(true)
	l.Apply(ctx, []byte("c"))
	if err := l.Close(); err != nil {
		t.Fatalf("Close on a full disk: %v", err)
	}
}

func TestRealFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Skipf("needs root and tmpfs: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	m := newTally()
	l := open(t, Config{Dir: filepath.Join(dir, "log"), ID: "s1"}, m)
	ctx := context.Background()
	acked := 0
	var err error
	for i := 0; i < 1000 && err == nil; i++ {
		if _, err = l.Apply(ctx, fmt.Appendf(nil, "%d %s", i, bytes.Repeat([]byte("x"), 4096))); err == nil {
			acked++
		}
	}
	if !errors.Is(err, ErrDiskFull) || acked == 0 {
		t.Fatalf("after %d commands: %v", acked, err)
	}
	l.Close()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=16m"); err != nil {
		t.Fatal(err)
	}
	m = newTally()
	l = open(t, Config{Dir: filepath.Join(dir, "log"), ID: "s1"}, m)
	if m.size() < acked {
		t.Fatalf("%d of %d acknowledged commands are left", m.size(), acked)
	}
	if _, err := l.Apply(ctx, []byte("more")); err != nil {
		t.Fatal(err)
	}
}

func TestDamageIsSaid(t *testing.T) {
	write := func(t *testing.T) string {
		dir := t.TempDir()
		l := open(t, Config{Dir: dir, ID: "s1"}, newTally())
		for range 50 {
			if _, err := l.Apply(context.Background(), bytes.Repeat([]byte("needle"), 20)); err != nil {
				t.Fatal(err)
			}
		}
		l.Close()
		return dir
	}
	cases := map[string]func(b []byte) []byte{
		"flipped bit in a command": func(b []byte) []byte {
			b[bytes.LastIndex(b, []byte("needle"))] ^= 1
			return b
		},
		"cut short": func(b []byte) []byte { return b[:len(b)/2] },
		"zeroes":    func(b []byte) []byte { return make([]byte, len(b)) },
		"emptied":   func([]byte) []byte { return nil },
		"other file": func([]byte) []byte {
			return bytes.Repeat([]byte("not a log "), 1000)
		},
	}
	for name, harm := range cases {
		t.Run(name, func(t *testing.T) {
			dir := write(t)
			path := filepath.Join(dir, "log.db")
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if name == "flipped bit in a command" {
				b = flipAll(b)
			} else {
				b = harm(b)
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			l, err := Open(Config{Dir: dir, ID: "s1", Logger: quiet()}, newTally())
			if err == nil {
				l.Close()
				t.Fatal("opened")
			}
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v", err)
			}
		})
	}
}

// flipAll flips a bit in every copy of the command, since bolt leaves old
// pages behind and only live ones are read.
func flipAll(b []byte) []byte {
	return bytes.ReplaceAll(b, []byte("needleneedle"), []byte("needleneedlf"))
}

func TestOneOwnerOfADirectory(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{Dir: dir, ID: "s1"}, newTally())
	if _, err := Open(Config{Dir: dir, ID: "s1", Logger: quiet()}, newTally()); !errors.Is(err, ErrLocked) {
		t.Fatalf("second opening: %v", err)
	}
	l.Close()
	if _, err := Open(Config{Dir: dir, ID: "s2", Logger: quiet()}, newTally()); !errors.Is(err, ErrWrongID) {
		t.Fatalf("another id: %v", err)
	}
}

func TestConfigRules(t *testing.T) {
	two := []Peer{{"s1", "127.0.0.1:1"}, {"s2", "127.0.0.1:2"}}
	bad := map[string]Config{
		"no dir":            {ID: "s1"},
		"no id":             {Dir: "d"},
		"peers, no bind":    {Dir: "d", ID: "s1", Peers: two},
		"open without tls":  {Dir: "d", ID: "s1", Bind: "0.0.0.0:7000", Peers: two},
		"not among peers":   {Dir: "d", ID: "s3", Bind: "127.0.0.1:3", Peers: two},
		"twice the same":    {Dir: "d", ID: "s1", Bind: "127.0.0.1:3", Peers: []Peer{{"s1", "a"}, {"s1", "b"}}},
		"join, no bind":     {Dir: "d", ID: "s1", Join: true},
		"negative interval": {Dir: "d", ID: "s1", SnapshotThreshold: -1},
	}
	for name, c := range bad {
		if c.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	good := Config{Dir: "d", ID: "s1", Bind: "127.0.0.1:1", Peers: two}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}

func TestSealing(t *testing.T) {
	for n := range 40 {
		data := bytes.Repeat([]byte{byte(n)}, n)
		sealed := seal(data)
		if got, ok := unseal(sealed); !ok || !bytes.Equal(got, data) {
			t.Fatalf("length %d came back as %v %v", n, got, ok)
		}
		for bit := range len(sealed) * 8 {
			sealed[bit/8] ^= 1 << (bit % 8)
			if _, ok := unseal(sealed); ok {
				t.Fatalf("length %d: bit %d flipped and nobody saw", n, bit)
			}
			sealed[bit/8] ^= 1 << (bit % 8)
		}
	}
	if _, ok := unseal(nil); ok {
		t.Fatal("nothing passed")
	}
}

func BenchmarkApply(b *testing.B) {
	for _, callers := range []int{1, 64, 512} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			l := open(b, Config{Dir: b.TempDir(), ID: "s1"}, discard{})
			data := binary.LittleEndian.AppendUint64(make([]byte, 200), 7)
			work := make(chan struct{})
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for range work {
						if _, err := l.Apply(context.Background(), data); err != nil {
							b.Error(err)
						}
					}
				})
			}
			b.ResetTimer()
			for range b.N {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "applies/s")
			b.StopTimer()
			l.Close()
		})
	}
}

type discard struct{}

func (discard) Apply([]byte) any          { return nil }
func (discard) Snapshot() ([]byte, error) { return nil, nil }
func (discard) Restore([]byte) error      { return nil }

var _ io.Writer = lines{}
