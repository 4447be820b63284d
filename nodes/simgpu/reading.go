package simgpu

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Reading is what a driver would say about one GPU now.
type Reading struct {
	Spec
	UsedBytes int64  `json:"usedBytes"` // by living processes
	Procs     []Proc `json:"procs"`     // living contexts, one entry each
	Lost      bool   `json:"lost"`
	XID       int    `json:"xid"` // last injected fault code, 0 for none
}

// Proc is one living context on a GPU.
type Proc struct {
	PID     int    `json:"pid"`
	Holder  string `json:"holder"`
	Bytes   int64  `json:"bytes"`
	Active  bool   `json:"active"`
	Stopped bool   `json:"stopped"` // by a signal (state T); a frozen cgroup does not show here
}

// Read returns a reading of every GPU in order of creation. It takes no lock
// and changes nothing; the dead are left out, whether pruned yet or not.
func Read(dir string) ([]Reading, error) {
	all, err := loadAll(dir)
	if err != nil {
		return nil, err
	}
	out := make([]Reading, len(all))
	for i, st := range all {
		r := Reading{Spec: st.Spec, Lost: st.Lost, XID: st.XID, Procs: []Proc{}}
		for _, c := range st.Contexts {
			letter, alive := procAlive(c.PID, c.StartTicks)
			if !alive {
				continue
			}
			r.UsedBytes += c.Bytes
			r.Procs = append(r.Procs, Proc{
				PID: c.PID, Holder: c.Holder, Bytes: c.Bytes, Active: c.Active,
				Stopped: letter == 'T' || letter == 't',
			})
		}
		out[i] = r
	}
	return out, nil
}

// SetLost makes a GPU fall off the bus, or brings it back.
func SetLost(dir, uuid string, lost bool) error {
	return inject(dir, uuid, func(st *state) { st.Lost = lost })
}

// SetXID sets the fault code that readings show; 0 clears it.
func SetXID(dir, uuid string, xid int) error {
	return inject(dir, uuid, func(st *state) { st.XID = xid })
}

func inject(dir, uuid string, f func(*state)) error {
	if err := (Spec{UUID: uuid, MemoryBytes: 1}).validate(); err != nil {
		return err
	}
	file, err := openState(dir, uuid)
	if err != nil {
		return err
	}
	defer file.close()
	return file.update(func(st *state) (bool, error) {
		f(st)
		return true, nil
	})
}

// Violation is one attempt to compute on a GPU that had another active holder.
type Violation struct {
	AtUnixMs     int64  `json:"atUnixMs"`
	UUID         string `json:"uuid"`
	Holder       string `json:"holder"` // who tried
	PID          int    `json:"pid"`
	ActiveHolder string `json:"activeHolder"` // who was there
	ActivePID    int    `json:"activePid"`
}

func violationsPath(dir string) string { return filepath.Join(dir, "violations.jsonl") }

// appendViolation writes one line under a flock of the file itself.
func appendViolation(dir string, v Violation) error {
	v.AtUnixMs = time.Now().UnixMilli()
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(violationsPath(dir), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := acquire(f); err != nil {
		return err
	}
	defer release(f)
	_, err = f.Write(append(line, '\n'))
	return err
}

// Violations returns every recorded attempt, oldest first; none when the file
// does not exist.
func Violations(dir string) ([]Violation, error) {
	f, err := os.Open(violationsPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("simgpu: open violations: %w", err)
	}
	defer f.Close()
	var out []Violation
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		var v Violation
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			return out, fmt.Errorf("simgpu: %s:%d is not a violation, remove the line: %w", violationsPath(dir), n, err)
		}
		out = append(out, v)
	}
	return out, lines.Err()
}
