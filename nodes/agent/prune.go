package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"sluice/nodes"
)

// maxPruned bounds the step directories that one order removes; the next
// manifest's order goes on.
const maxPruned = 1000

var (
	generationForm = regexp.MustCompile(`^g([0-9]{1,18})$`)
	stepForm       = regexp.MustCompile(`^step-([0-9]{1,18})$`)
)

// obeyPrune removes old checkpoints beside the owner.
func (o *owner) obeyPrune(h *holder, ord nodes.Order) error {
	s := &h.rec.Spec
	if s.Rank == nil || !s.Rank.Protocol {
		return fmt.Errorf("%w: %s does not speak the rank protocol", ErrState, s.ID)
	}
	job, own := filepath.Split(filepath.Clean(s.Rank.CheckpointDir))
	if numberOf(generationForm, own) != s.Generation {
		return fmt.Errorf("%w: checkpoint directory %q is not of generation %d", ErrState, s.Rank.CheckpointDir, s.Generation)
	}
	p := pruning{jobDir: job, generation: s.Generation, from: ord.FromGeneration, step: ord.Step, keep: ord.KeepDirs}
	done := nodes.RankNote{Holder: s.ID, Job: s.Rank.Job, Generation: s.Generation, Rank: s.Rank.Rank, Kind: "pruned", Step: ord.Step}
	o.work(o.ctx, func(context.Context) func() {
		removed, err := p.run()
		return func() {
			if removed > 0 {
				o.cfg.Log.Info("removed old checkpoints", "holder", done.Holder, "directories", removed, "currentStep", done.Step)
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

// pruning is what may go below one job's directory: g<generation>/step-<step>
// directories alone, of generations from..generation, that are older than the
// current manifest and hold no kept directory.
type pruning struct {
	jobDir           string
	from, generation int64
	step             int64 // of the current manifest
	keep             []string
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
		gen := numberOf(generationForm, g.Name())
		if !g.IsDir() || gen < p.from || gen > p.generation {
			continue
		}
		steps, err := fs.ReadDir(root.FS(), g.Name())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, s := range steps {
			step := numberOf(stepForm, s.Name())
			path := filepath.Join(g.Name(), s.Name())
			if !s.IsDir() || step < 0 || (gen == p.generation && step >= p.step) || p.keeps(path) {
				continue
			}
			if removed++; removed > maxPruned {
				return removed - 1, errors.Join(errs...)
			}
			errs = append(errs, root.RemoveAll(path))
		}
		if gen < p.generation {
			_ = root.Remove(g.Name()) // fails while anything is in it, as it should
		}
	}
	if err := errors.Join(errs...); err != nil {
		return removed, fmt.Errorf("%w: %w", ErrFiles, err)
	}
	return removed, nil
}

// keeps says whether a kept directory is path or lies in it.
func (p *pruning) keeps(path string) bool {
	full := filepath.Join(p.jobDir, path)
	for _, k := range p.keep {
		if k = filepath.Clean(k); k == full || strings.HasPrefix(k, full+string(filepath.Separator)) {
			return true
		}
	}
	return false
}

// numberOf is the number in a name of the form; -1 when it is of another form.
func numberOf(form *regexp.Regexp, name string) int64 {
	m := form.FindStringSubmatch(name)
	if m == nil {
		return -1
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return -1
	}
	return n
}
