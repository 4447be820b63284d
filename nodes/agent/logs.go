package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sluice/nodes"
	"sluice/nodes/agent/hold"
)

// Limits of the logs kept of ended holders. What is over them goes, the oldest
// first; the newest log of all stays whatever its size.
const (
	// keptEnds is how many ended generations of a job, and ended replicas of a
	// model, keep their logs here.
	keptEnds     = 3
	maxKeptLogs  = 4096
	maxKeptBytes = 1 << 30
)

// keptLog is one file of an ended holder: DATA/logs/KIND/OWNER/HOLDER.log, or
// .log.1, its older half.
type keptLog struct {
	path  string
	bytes int64
	ms    int64 // of its last change
}

// end names what ended with the holder: the generation, or the replica.
func (k keptLog) end() string {
	dir, name := filepath.Split(k.path)
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".1"), ".log")
	if filepath.Base(filepath.Dir(filepath.Clean(dir))) == string(nodes.KindRank) {
		if i := strings.LastIndexByte(name, '.'); i >= 0 {
			name = name[:i] // the rank
		}
	}
	return dir + name
}

// excess names the files over the limits. Pure.
func excess(files []keptLog) (over []string) {
	slices.SortFunc(files, func(a, b keptLog) int {
		if a.ms != b.ms {
			return int(b.ms - a.ms)
		}
		return strings.Compare(a.path, b.path)
	})
	ends := map[string][]string{} // by owner's directory
	count, bytes := 0, int64(0)
	for _, f := range files {
		owner, end := filepath.Dir(f.path), f.end()
		known := slices.Contains(ends[owner], end)
		if !known && len(ends[owner]) >= keptEnds || count >= maxKeptLogs || count > 0 && bytes+f.bytes > maxKeptBytes {
			over = append(over, f.path)
			continue
		}
		if !known {
			ends[owner] = append(ends[owner], end)
		}
		count++
		bytes += f.bytes
	}
	return over
}

func (o *owner) logsDir() string { return filepath.Join(o.cfg.DataDir, "logs") }

// keepLog moves the log of a holder that is being forgotten aside, and trims
// what is kept. A log that cannot be moved is told and let go.
func (o *owner) keepLog(h *holder) {
	s := &h.rec.Spec
	if !nameForm.MatchString(s.Owner) {
		return
	}
	dir := filepath.Join(o.logsDir(), string(s.Kind), s.Owner)
	err := os.MkdirAll(dir, 0o700)
	for from, to := range map[string]string{hold.OldLog: ".log.1", hold.LogFile: ".log"} {
		if err == nil {
			err = os.Rename(filepath.Join(h.dir, from), filepath.Join(dir, s.ID+to))
		}
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		o.cfg.Log.Warn("the log of an ended holder is lost", "holder", s.ID, "error", err)
	}
	o.work(o.ctx, func(context.Context) func() {
		trimLogs(o.logsDir())
		return nil
	})
}

// trimLogs keeps the limits. Two at once remove the same: that is no fault.
func trimLogs(root string) {
	names, _ := fs.Glob(os.DirFS(root), "*/*/*")
	var files []keptLog
	for _, name := range names {
		p := filepath.Join(root, name)
		if st, err := os.Stat(p); err == nil {
			files = append(files, keptLog{path: p, bytes: st.Size(), ms: st.ModTime().UnixMilli()})
		}
	}
	for _, p := range excess(files) {
		_ = os.Remove(p)
		_ = os.Remove(filepath.Dir(p)) // fails while anything is in it
	}
}

// logOf finds the two files of a holder's log, present or kept; false when
// there is none. It is for the listener's goroutines.
func (o *owner) logOf(id string) (now, old string, ok bool) {
	if !nameForm.MatchString(id) {
		return "", "", false
	}
	if dir := o.holderDir(id); exists(dir) {
		return filepath.Join(dir, hold.LogFile), filepath.Join(dir, hold.OldLog), true
	}
	kept, _ := fs.Glob(os.DirFS(o.logsDir()), "*/*/"+id+".log")
	if len(kept) == 0 {
		return "", "", false
	}
	now = filepath.Join(o.logsDir(), kept[0])
	return now, now + ".1", true
}
