package peer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice/bench/peers/proc"
	"sluice/bench/peers/ref"
)

// Setup is what a peer is started with.
type Setup struct {
	Dir     string   // for its files
	Core    int      // the one core that it may use
	Engines []string // host:port
	Sluice  string   // the program
}

// Peer is a gateway that can be started.
type Peer struct {
	Name string
	// Program is what must be on PATH; empty: nothing.
	Program string
	// One engine at most is used.
	OneEngine bool

	start func(s *Setup, port int) (proc.Command, error)
	after func(s *Setup, r *Running) error
}

// Running is a started peer.
type Running struct {
	*Peer
	*proc.Process
	Addr string // host:port of its data port
	Key  string // to be shown with each request, if not empty
}

// Sluice is the name of what all this is for.
const Sluice = "sluice"

// All returns every peer, in the order of the table.
func All() []*Peer {
	peers := []*Peer{
		{Name: Sluice, start: sluiceCommand, after: sluiceSetUp},
		{Name: "nginx tuned", Program: "nginx", start: nginxTuned},
		{Name: "nginx default", Program: "nginx", start: nginxDefault},
		{Name: "haproxy", Program: "haproxy", start: haproxyDefault},
		{Name: "haproxy no-delay", Program: "haproxy", start: haproxyNoDelay},
		{Name: "caddy", Program: "caddy", start: caddy},
	}
	for _, kind := range ref.Kinds {
		peers = append(peers, &Peer{Name: "ref " + kind, OneEngine: kind == "tcp" || kind == "raw", start: reference(kind)})
	}
	return peers
}

// Missing is the program that the peer needs and that is not there.
func (p *Peer) Missing() string {
	if p.Program == "" {
		return ""
	}
	if _, err := exec.LookPath(p.Program); err != nil {
		return p.Program
	}
	return ""
}

// How long a peer may take to listen, and how often it is tried.
const (
	startWait = 20 * time.Second
	startTry  = 20 * time.Millisecond
)

// Start starts the peer and waits until it takes connections.
func (p *Peer) Start(s Setup) (*Running, error) {
	s.Dir = filepath.Join(s.Dir, strings.ReplaceAll(p.Name, " ", "-"))
	if err := os.RemoveAll(s.Dir); err != nil {
		return nil, fmt.Errorf("peer: clear the folder of %s: %w", p.Name, err)
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("peer: make the folder of %s: %w", p.Name, err)
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	cmd, err := p.start(&s, port)
	if err != nil {
		return nil, err
	}
	cmd.Core, cmd.Log = s.Core, filepath.Join(s.Dir, "log")
	r := &Running{Peer: p, Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	if r.Process, err = proc.Start(cmd); err != nil {
		return nil, err
	}
	if err := r.await(); err != nil {
		r.Stop()
		return nil, err
	}
	if p.after != nil {
		if err := p.after(&s, r); err != nil {
			r.Stop()
			return nil, err
		}
	}
	return r, nil
}

func (r *Running) await() error {
	for end := time.Now().Add(startWait); time.Now().Before(end); time.Sleep(startTry) {
		if err := r.Ended(); err != nil {
			return err
		}
		if c, err := net.Dial("tcp", r.Addr); err == nil {
			return c.Close()
		}
	}
	return fmt.Errorf("peer: %s does not listen on %s", r.Name, r.Addr)
}

func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("peer: find a free port: %w", err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// Files is how many files a process may open here, sockets included.
func Files() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	return int(min(l.Cur, 1<<20))
}

// Streams is how many streams a gateway can have open at once here: two files each, and some for itself.
func Streams() int { return (Files() - 500) / 2 }

func write(s *Setup, name, text string) (string, error) {
	path := filepath.Join(s.Dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("peer: write a configuration: %w", err)
	}
	return path, nil
}

func reference(kind string) func(*Setup, int) (proc.Command, error) {
	return func(s *Setup, port int) (proc.Command, error) {
		self, err := os.Executable()
		if err != nil {
			return proc.Command{}, fmt.Errorf("peer: find this program: %w", err)
		}
		return proc.Command{Name: self, Args: []string{refWord, kind, strconv.Itoa(port), strings.Join(s.Engines, ",")}}, nil
	}
}

// refWord begins the arguments of a child that is a reference.
const refWord = "reference"

// EnterReference becomes the reference that this process was started as, if it was.
func EnterReference() {
	if len(os.Args) != 5 || os.Args[1] != refWord {
		return
	}
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", os.Args[3]))
	if err == nil {
		err = ref.Serve(os.Args[2], ln, strings.Split(os.Args[4], ","))
	}
	fmt.Fprintln(os.Stderr, errors.Join(errors.New("the reference has ended"), err))
	os.Exit(1)
}
