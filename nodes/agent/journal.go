package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"sluice/nodes"
	"sluice/nodes/agent/hold"
)

const (
	// compactBytes is the length at which the journal is written anew, if it
	// has also doubled since the last time.
	compactBytes = 1 << 20
	// maxEntryBytes bounds one line: a resume manifest is the largest part.
	maxEntryBytes = 16 << 20
)

// record is what the journal knows of one holder: enough to take it back.
type record struct {
	Spec nodes.HolderSpec `json:"spec"`
	Port int              `json:"port,omitempty"`
	// Started is set, and synced, before the fork.
	Started bool `json:"started,omitempty"`
	// State is the last one told; a restarted agent begins with it.
	State    nodes.HolderState `json:"state"`
	Exited   bool              `json:"exited,omitempty"`
	ExitCode int               `json:"exitCode,omitempty"`
	Reason   string            `json:"reason,omitempty"`
	// Want is the change in progress: sleep, wake, stop or kill; a restarted
	// agent goes on with it.
	Want    nodes.OrderKind `json:"want,omitempty"`
	GraceMs int64           `json:"graceMs,omitempty"`
	// RankOrder is the last rank order, for ranks that connect later.
	RankOrder *nodes.Order `json:"rankOrder,omitempty"`
}

// entry is one line. Exactly one field is set.
type entry struct {
	Term     uint64           `json:"term,omitempty"`
	Holder   *record          `json:"holder,omitempty"`
	Forget   string           `json:"forget,omitempty"`
	Answer   *nodes.Answer    `json:"answer,omitempty"`
	Note     *nodes.RankNote  `json:"note,omitempty"` // acknowledged to its rank, so kept here
	Baseline map[string]int64 `json:"baseline,omitempty"`
}

// past is what a journal says, replayed.
type past struct {
	term     uint64
	order    []string // holders in order of first mention
	holders  map[string]*record
	answers  []nodes.Answer
	notes    map[string][]nodes.RankNote // by holder
	baseline map[string]int64
}

func newPast() *past {
	return &past{holders: map[string]*record{}, notes: map[string][]nodes.RankNote{}, baseline: map[string]int64{}}
}

func (p *past) apply(e entry) {
	switch {
	case e.Term != 0:
		p.term = max(p.term, e.Term)
	case e.Holder != nil:
		id := e.Holder.Spec.ID
		if p.holders[id] == nil {
			p.order = append(p.order, id)
		}
		p.holders[id] = e.Holder
	case e.Forget != "":
		delete(p.holders, e.Forget)
		delete(p.notes, e.Forget)
		p.answers = slices.DeleteFunc(p.answers, func(a nodes.Answer) bool { return a.Holder == e.Forget })
	case e.Answer != nil:
		p.answers = append(p.answers, *e.Answer)
	case e.Note != nil:
		p.notes[e.Note.Holder] = append(p.notes[e.Note.Holder], *e.Note)
	case e.Baseline != nil:
		p.baseline = e.Baseline
	}
}

// journal appends entries. The owner's alone.
type journal struct {
	path  string
	f     *os.File
	size  int64
	floor int64 // size after the last compaction
}

// openJournal replays the journal and opens it for appending. A last line
// without its end is what a crash leaves, and is dropped.
func openJournal(dir string) (*journal, *past, error) {
	j := &journal{path: filepath.Join(dir, "journal")}
	p := newPast()
	raw, err := os.ReadFile(j.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%w: %w", ErrJournal, err)
	}
	whole := bytes.LastIndexByte(raw, '\n') + 1
	lines := bufio.NewScanner(bytes.NewReader(raw[:whole]))
	lines.Buffer(nil, maxEntryBytes)
	for n := 1; lines.Scan(); n++ {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, nil, fmt.Errorf("%w: %s:%d is not readable; remove that line: %w", ErrJournal, j.path, n, err)
		}
		p.apply(e)
	}
	if err := lines.Err(); err != nil {
		return nil, nil, fmt.Errorf("%w: read %s: %w", ErrJournal, j.path, err)
	}
	return j, p, j.reopen(int64(whole))
}

func (j *journal) reopen(size int64) error {
	f, err := os.OpenFile(j.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		err = f.Truncate(size)
	}
	if err == nil {
		_, err = f.Seek(size, 0)
	}
	if err != nil {
		return fmt.Errorf("%w: open %s: %w", ErrJournal, j.path, err)
	}
	if j.f != nil {
		j.f.Close()
	}
	j.f, j.size, j.floor = f, size, size
	return nil
}

// append writes one entry: it survives the end of this process, and with sync
// also the end of the machine.
func (j *journal) append(e entry, sync bool) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("%w: encode: %w", ErrJournal, err)
	}
	line = append(line, '\n')
	if len(line) > maxEntryBytes {
		return fmt.Errorf("%w: an entry of %d bytes is over the limit of %d", ErrJournal, len(line), maxEntryBytes)
	}
	n, err := j.f.Write(line)
	if err != nil {
		// Never leave half a line before the next one.
		_ = j.f.Truncate(j.size)
		_, _ = j.f.Seek(j.size, 0)
		return fmt.Errorf("%w: write %s: %w", ErrJournal, j.path, err)
	}
	j.size += int64(n)
	if sync {
		if err := j.f.Sync(); err != nil {
			return fmt.Errorf("%w: sync %s: %w", ErrJournal, j.path, err)
		}
	}
	return nil
}

// full says that it is time to compact.
func (j *journal) full() bool { return j.size > compactBytes && j.size > 2*j.floor }

// compact replaces the journal by entries, atomically.
func (j *journal) compact(entries []entry) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	for _, e := range entries {
		if err := enc.Encode(e); err != nil {
			return fmt.Errorf("%w: encode: %w", ErrJournal, err)
		}
	}
	if err := hold.WriteFile(j.path, buf.Bytes()); err != nil {
		return fmt.Errorf("%w: %w", ErrJournal, err)
	}
	return j.reopen(int64(buf.Len()))
}

func (j *journal) close() { j.f.Close() }
