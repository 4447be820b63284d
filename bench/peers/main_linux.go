package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice/bench/peers/peer"
	"sluice/bench/peers/proc"
	"sluice/bench/peers/rig"
)

// options are the flags.
type options struct {
	only     string
	peers    string
	rounds   int
	secondsS float64
	out      string
	sluice   string
	core     int
	rigCore  int
	streams  int
	print    string
}

func main() {
	proc.Enter()
	peer.EnterReference()
	peer.EnterEngine()
	var o options
	flag.StringVar(&o.only, "only", "", "measures, with commas between: "+strings.Join(measureNames(), ", ")+" (default all)")
	flag.StringVar(&o.peers, "peers", "", "peers whose names begin so, with commas between (default all that are found)")
	flag.IntVar(&o.rounds, "rounds", 5, "alternations of all peers")
	flag.Float64Var(&o.secondsS, "seconds", 0.5, "length of each timed part")
	flag.StringVar(&o.out, "o", "", "write everything as JSON to this file")
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "the sluice program")
	flag.IntVar(&o.core, "core", 0, "core of the gateways")
	flag.IntVar(&o.rigCore, "rig-core", 1, "core of engine and clients")
	flag.IntVar(&o.streams, "streams", 20_000, "streams of the large memory run, as far as files allow")
	flag.StringVar(&o.print, "print", "", "measure nothing: print the tables of a file that -o wrote")
	flag.Parse()
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	if flag.NArg() > 0 || o.rounds < 1 || o.secondsS <= 0 {
		return fmt.Errorf("-rounds is 1 or more, -seconds above 0, and nothing follows the flags; see -h")
	}
	if o.print != "" {
		return printFile(o.print)
	}
	if runtime.NumCPU() < 2 {
		return fmt.Errorf("two cores are needed, one of them for the gateway alone; this process may use %d", runtime.NumCPU())
	}
	todo, err := choose(o.only)
	if err != nil {
		return err
	}
	unlock, err := oneAtATime()
	if err != nil {
		return err
	}
	defer unlock()
	runtime.LockOSThread() // see proc.Start
	preferred := proc.Prefer()
	if err := proc.Pin(o.rigCore); err != nil {
		return err
	}
	debug.SetGCPercent(800) // the rig's samples are its only garbage
	b := &bench{o: o, window: time.Duration(o.secondsS * float64(time.Second)), got: results{}}
	if b.dir, err = os.MkdirTemp("", "sluice-peers-"); err != nil {
		return fmt.Errorf("make a folder for the peers: %w", err)
	}
	defer os.RemoveAll(b.dir)
	if b.rig, err = rig.New(); err != nil {
		return err
	}
	if b.engine, err = b.rig.Listen(0); err != nil {
		return err
	}
	defer b.stopAll()
	defer b.untilSignal()()
	if !preferred {
		b.note("not run with priority over other programs, which root may ask for")
	}
	b.choosePeers()
	if err := b.measure(todo); err != nil {
		return err
	}
	return b.report()
}

// oneAtATime waits until no other run measures on this machine: two would measure each other.
func oneAtATime() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "sluice-peers.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of runs: %w", err)
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		fmt.Println("another run is under way on this machine; waiting for its end")
		for err = unix.EINTR; err == unix.EINTR; { // ends with the other run
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("wait for another run: %w", err)
		}
	}
	return func() { f.Close() }, nil
}

// choosePeers keeps those that were asked for and are there.
func (b *bench) choosePeers() {
	var want []string
	if b.o.peers != "" {
		want = strings.Split(b.o.peers, ",")
	}
	for _, p := range peer.All() {
		if want != nil && !slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(p.Name, strings.TrimSpace(w)) }) {
			continue
		}
		if m := p.Missing(); m != "" {
			b.say("%s is left out: %s is not on PATH", p.Name, m)
			continue
		}
		b.peers = append(b.peers, p)
	}
}

// choose returns the measures that were asked for, in their own order.
func choose(only string) ([]measure, error) {
	if only == "" {
		return measures, nil
	}
	var out []measure
	want := strings.Split(only, ",")
	for i := range want {
		want[i] = strings.TrimSpace(want[i])
		if !slices.Contains(measureNames(), want[i]) {
			return nil, fmt.Errorf("-only: there is no measure %q; there are %s", want[i], strings.Join(measureNames(), ", "))
		}
	}
	for _, m := range measures {
		if slices.Contains(want, m.name) {
			out = append(out, m)
		}
	}
	return out, nil
}

// untilSignal stops the run at an interrupt, so that what was started ends too.
func (b *bench) untilSignal() (end func()) {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, b.rig.Stop)
	return cancel
}
