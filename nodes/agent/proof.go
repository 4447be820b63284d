package agent

import (
	"fmt"
	"math"
	"strings"
)

// memorySlackBytes is how far used memory may lie above what is accounted for:
// drivers keep a little for themselves, and round.
const memorySlackBytes = 64 << 20

// use is what a holder does to its GPUs.
type use uint8

const (
	useNone use = iota
	useResident
	useActive
)

// claim is one holder's hold on its GPUs.
type claim struct {
	id            string
	gpus          []string
	use           use
	activeBytes   int64 // 0: not declared
	residentBytes int64
}

func (c claim) has(uuid string) bool {
	for _, g := range c.gpus {
		if g == uuid {
			return true
		}
	}
	return false
}

// observation is what a worker saw; judging it is not the worker's.
type observation struct {
	pids    []int // of the holder's group
	pidErr  error
	devices []DeviceReading
	devErr  error
}

func (obs observation) device(uuid string) *DeviceReading {
	for i := range obs.devices {
		if obs.devices[i].UUID == uuid {
			return &obs.devices[i]
		}
	}
	return nil
}

// judgeGone says what is still there of a holder that should be gone; empty is
// the proof. others are the claims of all other holders.
func judgeGone(c claim, obs observation, others []claim, baseline map[string]int64) string {
	if obs.pidErr != nil {
		return "its processes: " + obs.pidErr.Error()
	}
	if len(obs.pids) > 0 {
		return "still running: " + pidList(obs.pids)
	}
	if obs.devErr != nil && len(c.gpus) > 0 {
		return "devices cannot be read: " + obs.devErr.Error()
	}
	for _, uuid := range c.gpus {
		r := obs.device(uuid)
		switch {
		case r == nil:
			return uuid + " has no reading"
		case r.Lost:
			// Nothing can be read from it any more, and nothing can run on it.
			continue
		case r.Err != "":
			return uuid + " cannot be read: " + r.Err
		}
		for _, p := range r.Procs {
			if p.holder == c.id {
				return fmt.Sprintf("pid %d is still on %s", p.PID, uuid)
			}
		}
		base, learned := baseline[uuid]
		if !learned {
			continue // the processes have to serve as proof
		}
		if why := judgeLeft(*r, others, base); why != "" {
			return why
		}
	}
	return ""
}

// judgeLeft compares used memory with what is accounted for by the others.
func judgeLeft(r DeviceReading, others []claim, baseline int64) string {
	if r.UsedBytes == nil {
		return ""
	}
	accounted := baseline + memorySlackBytes
	own, known := ownBytes(r)
	accounted += own
	if !known {
		// Without figures by process, what the others declared must serve.
		accounted = baseline + memorySlackBytes
		for _, c := range others {
			if !c.has(r.UUID) || c.use == useNone {
				continue
			}
			if c.activeBytes == 0 {
				return "" // undeclared: nothing to compare with
			}
			if c.use == useActive {
				accounted += c.activeBytes
			} else {
				accounted += c.residentBytes
			}
		}
	}
	if *r.UsedBytes > accounted {
		return fmt.Sprintf("%s still uses %d bytes, %d are accounted for", r.UUID, *r.UsedBytes, accounted)
	}
	return ""
}

// ownBytes is the memory of all processes of a device; false when the device
// does not tell that of each.
func ownBytes(r DeviceReading) (int64, bool) {
	var sum int64
	for _, p := range r.Procs {
		if p.UsedBytes == nil {
			return 0, false
		}
		sum += *p.UsedBytes
	}
	return sum, !r.ProcsUnknown
}

// judgeQuiet says why a holder is not quiet on its GPUs; empty is the proof. A
// device that cannot tell activity by process is judged by its utilisation,
// which counts only while no other holder is active there.
func judgeQuiet(c claim, obs observation, others []claim) string {
	if obs.devErr != nil && len(c.gpus) > 0 {
		return "devices cannot be read: " + obs.devErr.Error()
	}
	for _, uuid := range c.gpus {
		r := obs.device(uuid)
		if r == nil {
			return uuid + " has no reading"
		}
		if r.Lost {
			continue
		}
		if r.Err != "" {
			return uuid + " cannot be read: " + r.Err
		}
		var held int64
		for _, p := range r.Procs {
			if p.holder != c.id {
				continue
			}
			if p.UsedBytes != nil {
				held += *p.UsedBytes
			}
			if p.Active != nil && *p.Active {
				return fmt.Sprintf("pid %d computes on %s", p.PID, uuid)
			}
			if p.Active == nil && r.UtilPercent != nil && *r.UtilPercent > 0 && !anyActive(others, uuid) {
				return fmt.Sprintf("%s is %d%% busy", uuid, *r.UtilPercent)
			}
		}
		if c.residentBytes > 0 && held > c.residentBytes+memorySlackBytes {
			return fmt.Sprintf("holds %d bytes of %s, declared %d", held, uuid, c.residentBytes)
		}
	}
	return ""
}

func anyActive(claims []claim, uuid string) bool {
	for _, c := range claims {
		if c.use == useActive && c.has(uuid) {
			return true
		}
	}
	return false
}

// judgeFree says why a holder may not become active on its GPUs; empty is the
// permission. fresh is true for a holder that is not on them yet.
func judgeFree(c claim, obs observation, others []claim, memory map[string]int64, fresh bool) string {
	if obs.devErr != nil && len(c.gpus) > 0 {
		return "devices cannot be read: " + obs.devErr.Error()
	}
	for _, uuid := range c.gpus {
		total, ok := memory[uuid]
		if !ok {
			return uuid + " is not a GPU of this node"
		}
		r := obs.device(uuid)
		if r == nil {
			return uuid + " has no reading"
		}
		if bad := badReason(*r); bad != "" {
			return uuid + ": " + bad
		}
		if f := foreign(*r, nil); len(f) > 0 {
			return fmt.Sprintf("%s has a process that nobody placed there: %s", uuid, strings.Join(f, ", "))
		}
		if why := judgeShare(c, uuid, others, total); why != "" {
			return why
		}
		if why := judgeMemory(c, *r, others, total, fresh); why != "" {
			return why
		}
	}
	return ""
}

// judgeShare compares declared sums. All residents must fit beside the one that
// is active, whichever of them it is.
func judgeShare(c claim, uuid string, others []claim, total int64) string {
	if total == 0 {
		total = math.MaxInt64 // the device does not tell its size
	}
	if c.activeBytes > total {
		return fmt.Sprintf("%s has %d bytes, %d are declared", uuid, total, c.activeBytes)
	}
	resident, extra := c.residentBytes, c.activeBytes-c.residentBytes
	shared := false
	for _, o := range others {
		if !o.has(uuid) || o.use == useNone {
			continue
		}
		if o.use == useActive {
			return fmt.Sprintf("%s is held by %s", uuid, o.id)
		}
		if o.activeBytes == 0 || c.activeBytes == 0 {
			return fmt.Sprintf("%s is shared with %s, and memory is not declared by both", uuid, o.id)
		}
		shared = true
		resident += o.residentBytes
		extra = max(extra, o.activeBytes-o.residentBytes)
	}
	if shared && resident+extra > total {
		return fmt.Sprintf("%s has %d bytes, residents and the active holder declare %d", uuid, total, resident+extra)
	}
	return ""
}

// judgeMemory looks at what the device itself says is used.
func judgeMemory(c claim, r DeviceReading, others []claim, total int64, fresh bool) string {
	if !fresh {
		return ""
	}
	inUse := func(p DeviceProc) bool {
		for _, o := range others {
			if o.id == p.holder && o.has(r.UUID) && o.use != useNone {
				return true
			}
		}
		return false
	}
	for _, p := range r.Procs {
		if !inUse(p) {
			return fmt.Sprintf("pid %d of %s is still on %s", p.PID, p.holder, r.UUID)
		}
		if p.Active != nil && *p.Active {
			return fmt.Sprintf("pid %d of %s computes on %s", p.PID, p.holder, r.UUID)
		}
	}
	if total != 0 && r.UsedBytes != nil && *r.UsedBytes+c.activeBytes > total+memorySlackBytes {
		return fmt.Sprintf("%s has %d bytes of which %d are used, %d are declared", r.UUID, total, *r.UsedBytes, c.activeBytes)
	}
	return ""
}

// foreign names the processes of a GPU that belong to no holder; known, if not
// nil, limits which holders count.
func foreign(r DeviceReading, known func(holder string) bool) []string {
	var out []string
	for _, p := range r.Procs {
		switch {
		case p.holder == "":
			out = append(out, fmt.Sprintf("pid %d (%s)", p.PID, p.name))
		case known != nil && !known(p.holder):
			out = append(out, fmt.Sprintf("pid %d of unknown holder %s", p.PID, p.holder))
		}
	}
	return out
}

// maxListed bounds the pids named in a reason.
const maxListed = 8

func pidList(pids []int) string {
	var b strings.Builder
	for i, p := range pids {
		if i == maxListed {
			fmt.Fprintf(&b, " and %d more", len(pids)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "pid %d", p)
	}
	return b.String()
}
