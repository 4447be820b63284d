package fill

import (
	"fmt"

	"sluice/nodes/registry"
)

// explain names the cause of everything that waits.
func (ps *pass) explain() {
	for _, n := range ps.needs {
		if n.missing > n.placed && n.cause != "" {
			ps.wait(n.name, n.cause, n.text)
		}
	}
	for i := range ps.f.jobs {
		j := &ps.f.jobs[i]
		if cause, text := ps.whyNotRunning(j); cause != "" {
			ps.wait(j.name, cause, text)
		}
	}
}

func (ps *pass) whyNotRunning(j *floorJob) (Cause, string) {
	switch j.job.Phase {
	case registry.JobRunning:
		return "", ""
	case registry.JobPending, registry.JobPaused:
	case registry.JobYielded:
		if j.touched {
			return CauseSwitching, "goes on"
		}
		busy := 0
		for _, i := range j.gpus {
			if g := &ps.f.gpus[i]; g.active || g.reserved != "" || g.claimed {
				busy++
			}
		}
		if busy == 0 {
			return CauseBackoff, "its GPUs are free, but it switched so often that it waits a little"
		}
		return CauseShortage, fmt.Sprintf("%d of its %d GPUs serve inference", busy, len(j.gpus))
	default:
		return CauseSwitching, "it is " + string(j.job.Phase)
	}
	switch {
	case j.job.Want != "":
		return CauseUser, "its owner asked: " + j.job.Want
	case j.job.BackoffToMs > ps.nowMs:
		return CauseBackoff, fmt.Sprintf("failed before; next try in %d ms", j.job.BackoffToMs-ps.nowMs)
	case j.cause != "":
		return j.cause, j.text
	}
	return CauseSwitching, "it is being placed"
}
