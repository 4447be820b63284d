package registry

import (
	"fmt"
	"strconv"
	"strings"

	"sluice/nodes"
)

// RankHolder names the holder that starts with a job's rank in a generation.
// Which holder a rank lies in, Job.Holder says.
func RankHolder(job string, generation int64, rank int) string {
	return job + ".g" + itoa(generation) + ".r" + itoa(int64(rank))
}

// FirstRank is the rank that names the holder of rank i of the present
// generation: i itself, or with torchrun, of which there is one on a node for
// all its ranks there, the first of them. Ranks of a node come in a row then
// (placements are refused otherwise).
func (j *Job) FirstRank(i int) int {
	if j.Spec.Launcher == nodes.LaunchTorchrun {
		for i > 0 && j.Ranks[i-1].Node == j.Ranks[i].Node {
			i--
		}
	}
	return i
}

// Holder names the holder of rank i of the present generation.
func (j *Job) Holder(i int) string {
	return RankHolder(j.Spec.Name, j.Generation, j.FirstRank(i))
}

// HolderRanks counts the ranks, from rank first on, that the holder named by
// rank first stands for.
func (j *Job) HolderRanks(first int) int {
	n := first + 1
	if j.Spec.Launcher == nodes.LaunchTorchrun {
		for n < len(j.Ranks) && j.Ranks[n].Node == j.Ranks[first].Node {
			n++
		}
	}
	return n - first
}

// CurrentHolder tells whether holder is a rank, not yet gone, of its job's
// present generation.
func (s *State) CurrentHolder(holder string) bool {
	job, generation, rank := parseHolder(holder)
	j := s.Jobs[job]
	return j != nil && generation == j.Generation && rank < len(j.Ranks) && !j.Ranks[rank].Gone && j.FirstRank(rank) == rank
}

// parseHolder takes a rank holder's name apart: "bert.g3.r1". The job is empty
// when it is no such name.
func parseHolder(holder string) (job string, generation int64, rank int) {
	job = jobOf(holder)
	if job == "" {
		return "", 0, 0
	}
	g, r, _ := strings.Cut(holder[len(job)+1:], ".")
	generation, errG := strconv.ParseInt(strings.TrimPrefix(g, "g"), 10, 64)
	rank, errR := strconv.Atoi(strings.TrimPrefix(r, "r"))
	if errG != nil || errR != nil || rank < 0 || RankHolder(job, generation, rank) != holder {
		return "", 0, 0
	}
	return job, generation, rank
}

// jobOf cuts the job's name from a rank holder's id, "bert.g3.r1" → "bert".
func jobOf(holder string) string {
	dots := 0
	for i := len(holder) - 1; i >= 0; i-- {
		if holder[i] == '.' {
			if dots++; dots == 2 {
				return holder[:i]
			}
		}
	}
	return ""
}

// inARow refuses a placement under torchrun in which a node's ranks are apart:
// torchrun numbers those of one node without gaps.
func inARow(j *Job, ranks []RankPlace) error {
	if j.Spec.Launcher != nodes.LaunchTorchrun {
		return nil
	}
	left := map[string]bool{}
	for i := 1; i < len(ranks); i++ {
		if ranks[i].Node == ranks[i-1].Node {
			continue
		}
		left[ranks[i-1].Node] = true
		if left[ranks[i].Node] {
			return fmt.Errorf("ranks of job %q on node %q are not in a row, as torchrun has them: %w", j.Spec.Name, ranks[i].Node, ErrConflict)
		}
	}
	return nil
}
