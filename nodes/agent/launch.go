package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sluice/nodes"
	"sluice/nodes/agent/cgroup"
	"sluice/nodes/agent/hold"
	"sluice/nodes/rank"
)

const (
	// childWaitMs bounds the wait for a shim to have started its command.
	childWaitMs = 10_000
	childPollMs = 2
)

// Reasons of an end that no shim could tell.
const (
	reasonShimLost = "shim lost"
	reasonNotBegun = "the agent ended before the holder began"
)

// checkSpec refuses what could not be started whatever the machine.
func checkSpec(ord nodes.Order) error {
	s := ord.Spec
	bad := func(why string) error { return fmt.Errorf("%w: %s", ErrBadOrder, why) }
	switch {
	case s == nil:
		return bad("needs a spec")
	case s.ID != ord.Holder || s.Generation != ord.Generation:
		return bad("holder and generation differ from the spec's")
	case !nameForm.MatchString(s.ID):
		return bad(fmt.Sprintf("holder id %q must be letters, digits, '.', '_' or '-'", s.ID))
	case len(s.Command) == 0:
		return bad("command is empty")
	case s.Kind == nodes.KindReplica && (s.Replica == nil || s.Rank != nil):
		return bad("a replica needs its replica part alone")
	case s.Kind == nodes.KindRank && (s.Rank == nil || s.Replica != nil):
		return bad("a rank needs its rank part alone")
	case s.Kind != nodes.KindReplica && s.Kind != nodes.KindRank:
		return bad(fmt.Sprintf("unknown kind %q", s.Kind))
	case s.ActiveBytes < 0 || s.ResidentBytes < 0 || (s.ActiveBytes > 0 && s.ResidentBytes > s.ActiveBytes):
		return bad("residentBytes must lie between 0 and activeBytes")
	}
	seen := make(map[string]bool)
	for _, g := range s.GPUs {
		if seen[g] {
			return bad("GPU " + g + " is named twice")
		}
		seen[g] = true
	}
	if r := s.Rank; r != nil {
		if r.WorldSize < 1 || r.Rank < 0 || r.Rank >= r.WorldSize {
			return bad(fmt.Sprintf("rank %d of %d", r.Rank, r.WorldSize))
		}
		if r.Launcher == nodes.LaunchTorchrun && (r.LocalWorldSize < 1 || r.Rank+r.LocalWorldSize > r.WorldSize) {
			return bad(fmt.Sprintf("%d ranks from %d on, of %d", r.LocalWorldSize, r.Rank, r.WorldSize))
		}
		if r.StopSignal != "" && unix.SignalNum(r.StopSignal) == 0 {
			return bad(fmt.Sprintf("stopSignal %q must be a signal's name, such as SIGTERM or SIGUSR1", r.StopSignal))
		}
		if r.CheckpointDir != "" && !filepath.IsAbs(r.CheckpointDir) {
			return bad("checkpointDir must be absolute")
		}
	}
	return nil
}

// checkFiles looks for what the spec names on this machine.
func checkFiles(s *nodes.HolderSpec, root string) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrFiles, fmt.Sprintf(format, args...))
	}
	if s.Workdir != "" {
		if st, err := os.Stat(s.Workdir); err != nil || !st.IsDir() {
			return bad("workdir %s is not a directory here", s.Workdir)
		}
	}
	if _, err := account(s.User); err != nil {
		return bad("%v", err)
	}
	if r := s.Rank; r != nil && root != "" && r.CheckpointDir != "" {
		if !strings.HasPrefix(filepath.Clean(r.CheckpointDir), filepath.Clean(root)+string(filepath.Separator)) {
			return bad("checkpointDir %s is not below %s", r.CheckpointDir, root)
		}
	}
	name := command(s, place{})[0]
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(s.Workdir, name)
		}
		if st, err := os.Stat(name); err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
			return bad("command %s is not an executable file here", name)
		}
		return nil
	}
	path, ok := s.Env["PATH"]
	if !ok {
		path = os.Getenv("PATH")
	}
	for _, d := range filepath.SplitList(path) {
		if st, err := os.Stat(filepath.Join(d, name)); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return nil
		}
	}
	return bad("command %s is not in PATH", name)
}

// identity is whom a holder runs as; nil is the agent's own user.
type identity struct {
	uid, gid uint32
	groups   []uint32
	home     string
}

// account looks a user up. Only root can switch.
func account(name string) (*identity, error) {
	if name == "" {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("user %s is not known here", name)
	}
	if u.Uid == strconv.Itoa(os.Geteuid()) {
		return nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("user %s: only an agent that runs as root can switch users", name)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("user %s: %w", name, err)
	}
	id := &identity{uid: uint32(uid), gid: uint32(gid), home: u.HomeDir}
	groups, _ := u.GroupIds()
	for _, g := range groups {
		if n, err := strconv.ParseUint(g, 10, 32); err == nil {
			id.groups = append(id.groups, uint32(n))
		}
	}
	return id, nil
}

// launched is what became of a launch.
type launched struct {
	shim, child cgroup.Process
	server      *rank.Server
	proc        *exec.Cmd // nil when the shim is not our child
	err         error     // nothing was forked
}

// launch forks the shim beside the owner.
func (o *owner) launch(h *holder) {
	h.launching = true
	spec, p := h.rec.Spec, place{dir: h.dir, port: h.rec.Port, memoryBytes: o.smallest(h.rec.Spec.GPUs)}
	o.workers.Go(func() {
		l := o.fork(h, spec, p)
		if l.err == nil {
			l.child = awaitChild(o.ctx, h.dir, l.shim)
		}
		if o.do(o.ctx, func() { o.onLaunched(h, l) }) && l.err == nil {
			o.follow(h, l)
		}
	})
}

// smallest is the memory of the smallest of the GPUs; 0 when not known.
func (o *owner) smallest(uuids []string) int64 {
	least := int64(0)
	for _, u := range uuids {
		if m := o.gpus[u].MemoryBytes; m > 0 && (least == 0 || m < least) {
			least = m
		}
	}
	return least
}

// fork prepares the holder's directory and starts its shim.
func (o *owner) fork(h *holder, spec nodes.HolderSpec, p place) (l launched) {
	fail := func(err error) launched {
		l.err = err
		return l
	}
	id, err := account(spec.User)
	if err != nil {
		return fail(err)
	}
	if hold.Locked(h.dir) {
		return fail(fmt.Errorf("%s has a living shim", h.dir))
	}
	if err := errors.Join(os.RemoveAll(h.dir), os.MkdirAll(h.dir, 0o711)); err != nil {
		return fail(err)
	}
	p.device, p.marks, p.base = o.cfg.Devices.Env(spec.GPUs), h.group.Env(), os.LookupEnv
	if id != nil {
		p.home = id.home
	}
	if spec.Rank != nil {
		if l.server, err = o.prepareRank(h, spec, id, &p); err != nil {
			return fail(err)
		}
	}
	r := hold.Run{
		Holder: spec.ID, Mark: o.tree.Mark(), CgroupDir: h.group.Dir(), Argv: command(&spec, p),
		Env: environment(&spec, p), Dir: spec.Workdir, LogMaxBytes: o.cfg.LogMaxBytes,
	}
	if r.Dir == "" {
		r.Dir = h.dir
	}
	if id != nil {
		r.Switch, r.UID, r.GID, r.Groups = true, id.uid, id.gid, id.groups
	}
	if err := errors.Join(hold.WriteRun(h.dir, r), h.group.Create()); err != nil {
		return fail(err)
	}
	l.proc, err = o.startShim(h.dir)
	if err != nil {
		return fail(err)
	}
	st, _ := cgroup.ReadStat(l.proc.Process.Pid)
	l.shim = cgroup.Process{PID: l.proc.Process.Pid, StartTicks: st.StartTicks}
	return l
}

// prepareRank makes what the rank protocol promises.
func (o *owner) prepareRank(h *holder, spec nodes.HolderSpec, id *identity, p *place) (*rank.Server, error) {
	r := spec.Rank
	if r.CheckpointDir != "" {
		if err := errors.Join(os.MkdirAll(r.CheckpointDir, 0o700), own(r.CheckpointDir, id)); err != nil {
			return nil, err
		}
	}
	if len(r.ResumeManifest) > 0 {
		p.resume = filepath.Join(h.dir, "resume.json")
		if err := errors.Join(hold.WriteFile(p.resume, r.ResumeManifest), own(p.resume, id)); err != nil {
			return nil, err
		}
	}
	if r.Launcher == nodes.LaunchTorchrun {
		logs := filepath.Join(h.dir, "torchrun")
		if err := errors.Join(os.MkdirAll(logs, 0o700), own(logs, id)); err != nil {
			return nil, err
		}
	}
	if !r.Protocol {
		return nil, nil
	}
	path, err := o.socketPath(h.dir, spec.ID)
	if err != nil {
		return nil, err
	}
	srv, err := o.listenRanks(h, spec, path)
	if err != nil {
		return nil, err
	}
	p.socket = path
	return srv, own(path, id)
}

func own(path string, id *identity) error {
	if id == nil {
		return nil
	}
	return os.Chown(path, int(id.uid), int(id.gid))
}

// socketPath is rank.sock in the holder's directory, or, where that is longer
// than a socket's path may be, a place in the temporary directory that nobody
// else can have made.
func (o *owner) socketPath(dir, id string) (string, error) {
	path := filepath.Join(dir, "rank.sock")
	if len(path) <= rank.MaxSocketPathBytes {
		return path, nil
	}
	short := filepath.Join(os.TempDir(), "sluice-"+digest8(o.tree.Mark()))
	if err := os.Mkdir(short, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	st, err := os.Lstat(short)
	if err != nil {
		return "", err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !st.IsDir() || !ok || int(sys.Uid) != os.Geteuid() {
		return "", fmt.Errorf("%s is not ours; remove it, or use a shorter --data", short)
	}
	return filepath.Join(short, digest8(id)+".sock"), nil
}

// startShim forks `sluice hold --dir DIR`, apart from our own session and, where
// there are cgroups, from that of our service, so that it outlives both.
func (o *owner) startShim(dir string) (*exec.Cmd, error) {
	errs, err := os.OpenFile(filepath.Join(dir, "shim.log"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer errs.Close()
	build := func() *exec.Cmd {
		argv := append(append([]string(nil), o.cfg.HoldCommand...), "--dir", dir)
		c := exec.Command(argv[0], argv[1:]...)
		c.Dir, c.Stdout, c.Stderr = "/", errs, errs
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return c
	}
	c := build()
	if fd, err := o.tree.Shims().Open(); err == nil && fd != nil {
		defer fd.Close()
		c.SysProcAttr.UseCgroupFD, c.SysProcAttr.CgroupFD = true, int(fd.Fd())
		if c.Start() == nil {
			return c, nil
		}
		c = build() // before Linux 5.7 there is no start in a cgroup
	}
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("start the shim: %w", err)
	}
	return c, nil
}

// awaitChild waits until the shim has started its command, or ended. The zero
// Process means that there is no command.
func awaitChild(ctx context.Context, dir string, shim cgroup.Process) cgroup.Process {
	for waited := 0; waited < childWaitMs; waited += childPollMs {
		if p, err := hold.ReadProcess(dir, hold.ChildFile); err == nil {
			return p
		}
		if _, err := hold.ReadExit(dir); err == nil || !shim.Alive() {
			break
		}
		if !wait(ctx, childPollMs) {
			break
		}
	}
	return cgroup.Process{}
}

// follow waits for the end of the shim and reports how the command ended.
func (o *owner) follow(h *holder, l launched) {
	if !waitExit(o.ctx, l.shim) {
		return
	}
	if l.proc != nil {
		_ = l.proc.Wait()
	}
	exit := lastWord(h.dir)
	o.do(o.ctx, func() { o.onExit(h, exit) })
}

// lastWord is how the command of an ended shim ended. Without exit.json nobody
// knows, and Cancel leaves one, so that a shim that comes late runs nothing.
func lastWord(dir string) hold.Exit {
	exit, err := hold.ReadExit(dir)
	if err == nil {
		return exit
	}
	reason := reasonShimLost
	if _, err := hold.ReadProcess(dir, hold.ShimFile); hold.Missing(err) {
		reason = reasonNotBegun
	}
	if err := hold.Cancel(dir, reason); err != nil && !errors.Is(err, os.ErrNotExist) {
		reason += ": " + err.Error()
	}
	return hold.Exit{Code: hold.LostCode, Reason: reason}
}

func (o *owner) onLaunched(h *holder, l launched) {
	h.launching = false
	h.server = l.server
	if r := h.rec.Spec.Rank; r != nil && len(r.ResumeManifest) > 0 {
		// It lies in resume.json now; the journal need not carry it on.
		lean := *r
		lean.ResumeManifest = nil
		h.rec.Spec.Rank = &lean
	}
	if l.err != nil {
		o.onExit(h, hold.Exit{Code: hold.LostCode, Reason: "could not be started: " + l.err.Error()})
		return
	}
	h.shim, h.child = l.shim, l.child
	if h.child.PID == 0 {
		return // its exit follows
	}
	// A rank without the protocol says nothing more: it runs.
	if r := h.rec.Spec.Rank; r != nil && !r.Protocol && h.state == nodes.StateStarting {
		o.set(h, nodes.StateRunning, "")
	}
}
