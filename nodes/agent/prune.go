package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sluice/nodes"
)

// maxPruned bounds the checkpoints' files and directories that one order
// removes; the next manifest's order goes on.
const maxPruned = 10_000

// obeyPrune removes old checkpoints beside the owner.
func (o *owner) obeyPrune(h *holder, ord nodes.Order) error {
	s := &h.rec.Spec
	if s.Rank == nil || !s.Rank.Protocol {
		return fmt.Errorf("%w: %s does not speak the rank protocol", ErrState, s.ID)
	}
	job, own := filepath.Split(filepath.Clean(s.Rank.CheckpointDir))
	if numberIn(own, "g") != s.Generation {
		return fmt.Errorf("%w: checkpoint directory %q is not of generation %d", ErrState, s.Rank.CheckpointDir, s.Generation)
	}
	p := pruning{jobDir: job, generation: s.Generation, from: ord.FromGeneration, keep: ord.Keep}
	done := nodes.RankNote{Holder: s.ID, Job: s.Rank.Job, Generation: s.Generation, Rank: s.Rank.Rank, Kind: "pruned", Step: ord.Step}
	o.work(o.ctx, func(context.Context) func() {
		removed, err := p.run()
		return func() {
			if removed > 0 {
				o.cfg.Log.Info("removed old checkpoints", "holder", done.Holder, "entries", removed, "currentStep", done.Step)
			}
			if err != nil {
				o.cfg.Log.Warn("old checkpoints stay", "holder", done.Holder, "error", err)
			}
			// The note is the answer, after an error too: the next checkpoint is
			// the next try.
			delete(o.pending, ord.ID)
			o.onRankNote(h, done)
		}
	})
	return errLater
}

// pruning is what may go below one job's directory: g<generation>/step-<number>
// alone, files or directories, whatever follows the number, of generations
// from..generation, that no manifest can name again.
type pruning struct {
	jobDir           string
	from, generation int64
	keep             []string // "g3/step-00000120"
}

// run removes them. The directory is opened as a root: the job writes there,
// as its own user, and a link of it must not lead the agent outside.
func (p *pruning) run() (removed int, err error) {
	root, err := os.OpenRoot(p.jobDir)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrFiles, err)
	}
	defer root.Close()
	generations, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrFiles, err)
	}
	var errs []error
	for _, g := range generations {
		if gen := numberIn(g.Name(), "g"); !g.IsDir() || gen < max(p.from, 0) || gen > p.generation {
			continue
		}
		entries, err := fs.ReadDir(root.FS(), g.Name())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, e := range entries {
			if removed == maxPruned {
				return removed, errors.Join(errs...)
			}
			if p.old(g.Name(), e.Name()) {
				removed++
				errs = append(errs, root.RemoveAll(filepath.Join(g.Name(), e.Name())))
			}
		}
		if numberIn(g.Name(), "g") < p.generation {
			_ = root.Remove(g.Name()) // fails while anything is in it, as it should
		}
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("%w: %w", ErrFiles, err)
	}
	return removed, nil
}

// old says whether no manifest can name an entry of a generation again. In the
// present generation that is so below the current manifest, which has the
// highest number kept there; what is above is being written.
func (p *pruning) old(generation, entry string) bool {
	name := nodes.StepName(entry)
	if name == "" || slices.Contains(p.keep, generation+"/"+name) {
		return false
	}
	if numberIn(generation, "g") < p.generation {
		return true
	}
	current := int64(-1)
	for _, k := range p.keep {
		if own, ok := strings.CutPrefix(k, generation+"/"); ok {
			current = max(current, numberIn(own, "step-"))
		}
	}
	n := numberIn(name, "step-")
	return n >= 0 && n < current
}

// numberIn is the number after prefix, which is all the rest of name; -1 when
// name is of another form.
func numberIn(name, prefix string) int64 {
	digits, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.ParseUint(digits, 10, 63)
	if !ok || err != nil {
		return -1
	}
	return int64(n)
}
