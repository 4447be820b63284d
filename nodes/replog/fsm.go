package replog

import (
	"fmt"
	"io"

	"github.com/hashicorp/raft"
)

// fsm shows a Machine to raft. Called from raft's one FSM goroutine.
type fsm struct{ machine Machine }

// Apply panics on a damaged entry: it passed its check when it was stored, so
// this is memory or a bug, and going on would make servers differ.
func (f *fsm) Apply(entry *raft.Log) any {
	data, ok := unseal(entry.Data)
	if !ok {
		panic(fmt.Sprintf("replog: entry %d changed in memory", entry.Index))
	}
	return f.machine.Apply(data)
}

func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	state, err := f.machine.Snapshot()
	if err != nil {
		return nil, err
	}
	return snapshot(state), nil
}

func (f *fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	sealed, err := io.ReadAll(io.LimitReader(r, MaxSnapshotBytes+1))
	if err != nil {
		return err
	}
	if len(sealed) > MaxSnapshotBytes {
		return fmt.Errorf("%w: a snapshot is over %d bytes", ErrCorrupt, MaxSnapshotBytes)
	}
	state, ok := unseal(sealed)
	if !ok {
		return fmt.Errorf("%w: a snapshot fails its checksum", ErrCorrupt)
	}
	return f.machine.Restore(state)
}

type snapshot []byte

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(seal(s)); err != nil {
		sink.Cancel()
		return err
	}
	return sink.Close()
}

func (s snapshot) Release() {}
