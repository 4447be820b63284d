package agent

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice/nodes"
	"sluice/nodes/agent/cgroup"
)

// observe reads the devices, names the holder of every process on them, and
// lists the processes of group, if one is given. It judges nothing.
func (o *owner) observe(group *cgroup.Group) observation {
	var obs observation
	if group != nil {
		obs.pids, obs.pidErr = group.Pids()
	}
	obs.devices, obs.devErr = o.cfg.Devices.Read()
	for i := range obs.devices {
		for j := range obs.devices[i].Procs {
			p := &obs.devices[i].Procs[j]
			if holder, ok := o.tree.HolderOf(p.PID); ok {
				p.holder = holder
			} else {
				p.name = processName(p.PID)
			}
		}
	}
	return obs
}

func processName(pid int) string {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(raw))
}

// keepReading observes the devices every readingsMs, which is the heartbeat.
func (o *owner) keepReading(ctx context.Context) {
	for {
		obs := o.observe(nil)
		if !o.do(ctx, func() { o.onSeen(obs) }) || !wait(ctx, readingsMs) {
			return
		}
	}
}

// readings is the last observation in the words of the fleet.
func (o *owner) readings() []nodes.Reading {
	out := make([]nodes.Reading, 0, len(o.gpus))
	for _, g := range o.node.GPUs {
		r := o.seen.device(g.UUID)
		if r == nil {
			why := "no reading yet"
			if o.seen.devErr != nil {
				why = o.seen.devErr.Error()
			}
			out = append(out, nodes.Reading{UUID: g.UUID, BadReason: "the GPU cannot be read: " + why})
			continue
		}
		n := nodes.Reading{
			UUID: r.UUID, UsedBytes: r.UsedBytes, UtilPercent: r.UtilPercent, Lost: r.Lost, XID: r.XID,
			Foreign: foreign(*r, o.known), BadReason: badReason(*r),
		}
		seen := make(map[string]bool)
		for _, p := range r.Procs {
			if p.Active != nil && *p.Active && p.holder != "" && !seen[p.holder] {
				seen[p.holder] = true
				n.ActiveHolders = append(n.ActiveHolders, p.holder)
			}
		}
		out = append(out, n)
	}
	return out
}

func (o *owner) known(holder string) bool { return o.holders[holder] != nil }

// exitPollMs is the pace of waitExit where the kernel has no pidfd.
const exitPollMs = 50

// waitExit returns when the process has ended, true, or when ctx has, false. It
// works for processes that are not our children.
func waitExit(ctx context.Context, p cgroup.Process) bool {
	if !p.Alive() {
		return ctx.Err() == nil
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		for p.Alive() {
			if !wait(ctx, exitPollMs) {
				return false
			}
		}
		return true
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	if !p.Alive() { // the descriptor may be of a later process with this pid
		return ctx.Err() == nil
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	conn, err := f.SyscallConn()
	if err == nil {
		err = conn.Read(func(fd uintptr) bool {
			set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, perr := unix.Poll(set, 0)
			return perr == nil && n > 0
		})
	}
	return err == nil
}
