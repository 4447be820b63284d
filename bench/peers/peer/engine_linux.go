package peer

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sluice/bench/peers/proc"
	"sluice/bench/peers/rig"
)

// engineWord begins the arguments of a child that is an engine of its own, to be killed.
const engineWord = "simulated-engine"

// engineDelay is how long such an engine takes over an answer, so that some are always under way.
const engineDelay = 5 * time.Millisecond

// EnterEngine becomes the engine that this process was started as, if it was. Its last argument is only to be found by.
func EnterEngine() {
	if len(os.Args) != 4 || os.Args[1] != engineWord {
		return
	}
	port, err := strconv.Atoi(os.Args[2])
	if err == nil {
		err = serveEngine(port)
	}
	fmt.Fprintln(os.Stderr, "the engine has ended:", err)
	os.Exit(1)
}

func serveEngine(port int) error {
	r, err := rig.New()
	if err != nil {
		return err
	}
	e, err := r.Listen(port)
	if err != nil {
		return err
	}
	e.Answer = rig.Answer{Body: rig.PlainAnswer(1 << 10), Delay: engineDelay}
	return r.Run(time.Hour)
}

// Pair is a peer before two engines, each a process of its own.
type Pair struct {
	*Running
	tag     string
	engines []*proc.Process // none: sluice has started them itself
}

// StartPair starts a peer with two engines on a core of their own.
func (p *Peer) StartPair(s Setup, engineCore int) (*Pair, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("peer: find this program: %w", err)
	}
	pair := &Pair{tag: filepath.Join(s.Dir, "engines-of-"+strings.ReplaceAll(p.Name, " ", "-"))}
	if p.Name == Sluice {
		own := *p
		own.start, own.after = sluiceUpCommand, sluiceEngines(self, pair.tag)
		pair.Running, err = own.Start(s)
		return pair, err
	}
	s.Engines = nil
	for i := range 2 {
		port, err := freePort()
		if err != nil {
			pair.Stop()
			return nil, err
		}
		e, err := proc.Start(proc.Command{Name: self, Args: []string{engineWord, strconv.Itoa(port), pair.tag}, Core: engineCore,
			Log: filepath.Join(s.Dir, fmt.Sprint("engine-", i, ".log"))})
		if err != nil {
			pair.Stop()
			return nil, err
		}
		pair.engines = append(pair.engines, e)
		s.Engines = append(s.Engines, fmt.Sprint("127.0.0.1:", port))
	}
	if pair.Running, err = p.Start(s); err != nil {
		pair.Stop()
		return nil, err
	}
	return pair, nil
}

// KillOne kills an engine with SIGKILL.
func (p *Pair) KillOne() error {
	if len(p.engines) > 0 {
		return syscall.Kill(p.engines[0].PID(), syscall.SIGKILL)
	}
	pids := p.tagged()
	if len(pids) == 0 {
		return fmt.Errorf("peer: no engine of %s is found", p.Name)
	}
	return syscall.Kill(pids[0], syscall.SIGKILL)
}

// tagged are the engines that carry this pair's tag, whoever started them.
func (p *Pair) tagged() []int {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil
	}
	var out []int
	for _, name := range all {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		args := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		if len(args) != 4 || args[1] != engineWord || args[3] != p.tag {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// Stop ends the peer and the engines.
func (p *Pair) Stop() {
	if p.Running != nil {
		p.Running.Stop()
	}
	for _, e := range p.engines {
		e.Kill()
	}
	for _, pid := range p.tagged() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
