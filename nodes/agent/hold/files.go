package hold

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"sluice/nodes/agent/cgroup"
)

// Names of the files in a holder's directory.
const (
	RunFile   = "run.json"
	LockFile  = "hold.lock"
	ShimFile  = "shim.pid"
	ChildFile = "child.pid"
	ExitFile  = "exit.json"
	LogFile   = "log"
	OldLog    = "log.1"
)

// DefaultLogMaxBytes bounds each of the two log files when Run names no limit.
const DefaultLogMaxBytes = 8 << 20

// LostCode is the exit code of a command whose shim could not tell.
const LostCode = -1

// ErrRunning is returned by Cancel while a shim holds the lock.
var ErrRunning = errors.New("hold: the shim is running")

// Run is what a shim is to run.
type Run struct {
	Holder      string   `json:"holder"`
	Mark        string   `json:"mark"`
	CgroupDir   string   `json:"cgroupDir,omitempty"` // empty: by marks
	Argv        []string `json:"argv"`
	Env         []string `json:"env"`
	Dir         string   `json:"dir,omitempty"`
	Switch      bool     `json:"switch,omitempty"` // to UID, GID and Groups
	UID         uint32   `json:"uid,omitempty"`
	GID         uint32   `json:"gid,omitempty"`
	Groups      []uint32 `json:"groups,omitempty"`
	LogMaxBytes int64    `json:"logMaxBytes,omitempty"` // 0: DefaultLogMaxBytes
}

// Group is the group that the command runs in.
func (r Run) Group() cgroup.Group { return cgroup.FromParts(r.Mark, r.Holder, r.CgroupDir) }

// Exit is how a command ended.
type Exit struct {
	// Code is the exit code, 128+n for signal n, 127 and 126 for a command that
	// could not be started, LostCode for unknown.
	Code     int    `json:"code"`
	Reason   string `json:"reason,omitempty"`
	AtUnixMs int64  `json:"atUnixMs"`
}

// WriteRun writes run.json.
func WriteRun(dir string, r Run) error { return writeJSON(filepath.Join(dir, RunFile), r) }

// ReadExit returns the exit status; fs.ErrNotExist while there is none.
func ReadExit(dir string) (Exit, error) {
	var e Exit
	err := readJSON(filepath.Join(dir, ExitFile), &e)
	return e, err
}

// ReadProcess reads ShimFile or ChildFile; fs.ErrNotExist while there is none.
func ReadProcess(dir, file string) (cgroup.Process, error) {
	raw, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return cgroup.Process{}, err
	}
	return cgroup.ParseProcess(string(raw))
}

// Locked says whether a shim lives in dir.
func Locked(dir string) bool {
	f, err := tryLock(dir)
	if err != nil {
		return errors.Is(err, ErrRunning)
	}
	f.Close()
	return false
}

// Cancel makes sure that no shim runs in dir, now or later, by leaving an
// exit.json unless there is one. ErrRunning while a shim lives.
func Cancel(dir, reason string) error {
	f, err := tryLock(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := ReadExit(dir); err == nil {
		return nil
	}
	return writeJSON(filepath.Join(dir, ExitFile), Exit{Code: LostCode, Reason: reason})
}

// tryLock takes hold.lock without waiting; closing the file gives it back.
func tryLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, LockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrRunning
		}
		return nil, fmt.Errorf("hold: lock %s: %w", f.Name(), err)
	}
	return f, nil
}

func readJSON(path string, into any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("hold: %s is not readable: %w", path, err)
	}
	return nil
}

func writeJSON(path string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("hold: encode %s: %w", filepath.Base(path), err)
	}
	return WriteFile(path, raw)
}

// WriteFile replaces a file whole: temporary file, fsync, rename, fsync of the
// directory. Mode 0600.
func WriteFile(path string, raw []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("hold: %w", err)
	}
	_, err = f.Write(raw)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return fmt.Errorf("hold: write %s: %w", path, err)
	}
	if d, err := os.Open(filepath.Dir(path)); err == nil {
		_ = d.Sync() // some file systems refuse to sync a directory
		d.Close()
	}
	return nil
}

// Missing says that a file of the directory is not there (yet).
func Missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
