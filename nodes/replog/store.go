package replog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

const (
	// lockTimeout is how long opening waits for another process's lock.
	lockTimeout = time.Second
	// stalledRetry is how often a stalled write of raft's own state is tried
	// again.
	stalledRetry = 250 * time.Millisecond
	// sealBytes is the length of the checksum before each command.
	sealBytes = 4
)

// durable is what raft wants of a store.
type durable interface {
	raft.LogStore
	raft.StableStore
}

func openBolt(path string) (*raftboltdb.BoltStore, error) {
	return raftboltdb.New(raftboltdb.Options{
		Path: path,
		BoltOptions: &bbolt.Options{
			Timeout: lockTimeout,
			// The free list is written with each commit (one page more).
			// Without it bolt rebuilds the list at open, in a goroutine of
			// its own, whose panic on a damaged page nobody can catch.
			NoFreelistSync: false,
			FreelistType:   bbolt.FreelistMapType,
		},
	})
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal puts a checksum before a command. bolt checks only its meta pages, so
// without it a flipped bit would become a fact.
func seal(data []byte) []byte {
	out := make([]byte, sealBytes, sealBytes+len(data))
	binary.LittleEndian.PutUint32(out, crc32.Checksum(data, castagnoli))
	return append(out, data...)
}

// unseal returns the command inside sealed, or false if it was damaged.
func unseal(sealed []byte) ([]byte, bool) {
	if len(sealed) < sealBytes {
		return nil, false
	}
	data := sealed[sealBytes:]
	return data, binary.LittleEndian.Uint32(sealed) == crc32.Checksum(data, castagnoli)
}

// verify reads every entry back before raft trusts them.
func verify(s raft.LogStore) error {
	first, err := s.FirstIndex()
	if err != nil || first == 0 {
		return err
	}
	last, err := s.LastIndex()
	if err != nil {
		return err
	}
	for i := first; i <= last; i++ {
		var entry raft.Log
		if err := s.GetLog(i, &entry); err != nil {
			return fmt.Errorf("entry %d of %d to %d: %w", i, first, last, err)
		}
		if entry.Index != i {
			return fmt.Errorf("entry %d calls itself %d", i, entry.Index)
		}
		if entry.Type == raft.LogCommand {
			if _, ok := unseal(entry.Data); !ok {
				return fmt.Errorf("entry %d fails its checksum", i)
			}
		}
	}
	return nil
}

// owner returns the id that the directory was claimed for, "" when it never
// was.
func owner(dir string) (string, error) {
	have, err := os.ReadFile(filepath.Join(dir, "id"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(have)), err
}

// checkOwner refuses another server's directory, and one that was in use but
// whose log is gone: starting empty there would forget every fact.
func checkOwner(dir, id string) (claimed bool, err error) {
	got, err := owner(dir)
	if err != nil || got == "" {
		return false, err
	}
	if got != id {
		return false, fmt.Errorf("replog: %s: %w: it was made by %q, this is %q: use that name, or another directory", dir, ErrWrongID, got, id)
	}
	info, err := os.Stat(filepath.Join(dir, "log.db"))
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return false, corrupt(dir, "log.db was there and is gone")
	}
	return true, err
}

// claim writes the server's name, once the log itself is on disk.
func claim(dir, id string) error {
	f, err := os.OpenFile(filepath.Join(dir, "id"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(id + "\n")
	return errors.Join(err, f.Sync(), f.Close())
}

// guardedStore keeps a full disk from ending the process: raft panics when it
// cannot store a term or a vote, so those writes stall here, and are tried
// again, until the disk takes them or the log closes. Writes of commands fail
// at once, to their callers.
type guardedStore struct {
	durable
	dir   string
	log   *slog.Logger
	stop  <-chan struct{}
	state atomic.Pointer[error] // the present fault; nil when the last write worked
}

var errStopped = errors.New("replog: closed while the disk could not be written")

func (g *guardedStore) fault() error {
	if p := g.state.Load(); p != nil {
		return *p
	}
	return nil
}

func (g *guardedStore) StoreLog(entry *raft.Log) error { return g.StoreLogs([]*raft.Log{entry}) }

// StoreLogs pauses after a failure: raft answers one by stepping down and, if
// alone, leading again at once, which would spin. Only a write that works here
// ends a fault, since every leader begins with one.
func (g *guardedStore) StoreLogs(entries []*raft.Log) error {
	err := g.durable.StoreLogs(entries)
	if err != nil {
		g.note(err)
		g.pause()
		return err
	}
	if g.state.Load() != nil && g.state.Swap(nil) != nil {
		g.log.Info("the log can be written again", "dir", g.dir)
	}
	return nil
}

// Set stores a vote. Stopped, it fails, which raft answers by not voting.
func (g *guardedStore) Set(key, val []byte) error {
	return g.insist(func() error { return g.durable.Set(key, val) })
}

// SetUint64 stores a term. Stopped, it says nil although nothing was stored:
// raft panics on an error, and no message of that term can leave any more,
// since Close shuts the transport before it stops the store.
func (g *guardedStore) SetUint64(key []byte, val uint64) error {
	err := g.insist(func() error { return g.durable.SetUint64(key, val) })
	if errors.Is(err, errStopped) {
		return nil
	}
	return err
}

func (g *guardedStore) insist(write func() error) error {
	for {
		err := write()
		if err == nil {
			return nil
		}
		g.note(err)
		if !g.pause() {
			return errStopped
		}
	}
}

func (g *guardedStore) note(err error) {
	said := writeError(g.dir, err)
	if g.state.Swap(&said) == nil {
		g.log.Error("the log cannot be written", "dir", g.dir, "err", said)
	}
}

// pause waits stalledRetry; false when the log closes meanwhile.
func (g *guardedStore) pause() bool {
	timer := time.NewTimer(stalledRetry)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-g.stop:
		return false
	}
}

// snapshotStore is raft's file store with files that only the owner reads.
type snapshotStore struct {
	raft.SnapshotStore
	dir string
}

func openSnapshots(dir string, hlog hclog.Logger) (raft.SnapshotStore, error) {
	inner, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, hlog)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "snapshots")
	if err := os.Chmod(path, 0o700); err != nil {
		return nil, err
	}
	return &snapshotStore{SnapshotStore: inner, dir: path}, nil
}

func (s *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, conf, confIndex, trans)
	if err != nil {
		return nil, err
	}
	// The sink writes into ID.tmp and renames it at its end.
	tmp := filepath.Join(s.dir, sink.ID()+".tmp")
	for name, mode := range map[string]os.FileMode{"": 0o700, "state.bin": 0o600, "meta.json": 0o600} {
		if err := os.Chmod(filepath.Join(tmp, name), mode); err != nil {
			sink.Cancel()
			return nil, err
		}
	}
	return sink, nil
}
