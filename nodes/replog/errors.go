package replog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/hashicorp/raft"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Errors of opening.
var (
	// ErrCorrupt: the store cannot be read back as it was written.
	ErrCorrupt = errors.New("the log's store is damaged")
	// ErrLocked: another process has the store open.
	ErrLocked = errors.New("the log's store is in use by another process")
	// ErrWrongID: the directory belongs to a server of another name.
	ErrWrongID = errors.New("the log belongs to another server")
	// ErrNoAccess: the directory or its files cannot be opened by this user.
	ErrNoAccess = errors.New("the log's store cannot be opened")
)

// Errors of running.
var (
	// ErrNotLeader: only the leader takes commands; nothing was changed.
	ErrNotLeader = errors.New("this server is not the leader")
	// ErrUncertain: the outcome is not known: the command may be applied
	// later, or never. Send it again with the same command id.
	ErrUncertain = errors.New("the command's outcome is not known")
	// ErrBusy: MaxInFlight commands wait already; nothing was changed.
	ErrBusy = errors.New("too many commands wait for the log")
	// ErrTooLarge: the command is over MaxCommandBytes; nothing was changed.
	ErrTooLarge = errors.New("the command is too large")
	// ErrDiskFull: the store could not grow; nothing was acknowledged.
	ErrDiskFull = errors.New("the disk of the log is full")
	// ErrDisk: the store could not be written for another reason.
	ErrDisk = errors.New("the log cannot be written")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("the log is closed")
)

// openError says what went wrong with dir and what to do about it.
func openError(dir string, err error) error {
	switch {
	case errors.Is(err, ErrCorrupt), errors.Is(err, ErrWrongID), errors.Is(err, ErrDiskFull):
		return err
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("replog: %s: %w: stop the other sluice server, or give this one another directory", dir, ErrLocked)
	case full(err):
		return fmt.Errorf("replog: %s: %w: free some space on that file system and start again; no acknowledged command is lost", dir, ErrDiskFull)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("replog: %s: %w: %v: run as the owner of that directory on a writable file system", dir, ErrNoAccess, err)
	}
	return corrupt(dir, err)
}

func corrupt(dir string, what any) error {
	return fmt.Errorf("replog: %s: %w (%v): put back a copy of the directory, or on a cluster of several voters move it aside and start empty with Join to copy from the leader", dir, ErrCorrupt, what)
}

// writeError turns a failed write into an error that names the remedy.
func writeError(dir string, err error) error {
	if full(err) {
		return fmt.Errorf("replog: %s: %w: free some space; the log goes on by itself", dir, ErrDiskFull)
	}
	return fmt.Errorf("replog: %s: %w: %v: check the disk; the log goes on by itself when it can write", dir, ErrDisk, err)
}

func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

// applyError translates raft's answers. leader is the present leader's id.
func (l *Log) applyError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrRaftShutdown), errors.Is(err, os.ErrClosed):
		return ErrClosed
	case errors.Is(err, raft.ErrEnqueueTimeout):
		if fault := l.fault(); fault != nil {
			return fault
		}
		return ErrBusy
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		if fault := l.fault(); fault != nil {
			return fault
		}
		return fmt.Errorf("%w: send it to %s", ErrNotLeader, l.leaderName())
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrAbortedByRestore):
		return fmt.Errorf("%w: %v: repeat it with the same command id", ErrUncertain, err)
	}
	return writeError(l.dir, err)
}

func (l *Log) leaderName() string {
	addr, id := l.raft.LeaderWithID()
	if id == "" {
		return "the next leader, an election is under way"
	}
	return strings.TrimSuffix(string(id)+" at "+string(addr), " at "+localAddr)
}
