package replog

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
)

// Limits. Each has one defined answer, given beside it.
const (
	// MaxCommandBytes is the largest command; a larger one is ErrTooLarge.
	MaxCommandBytes = 8 << 20
	// MaxInFlight is how many Apply calls may wait at once; further ones wait
	// for a place until their context ends, then ErrBusy.
	MaxInFlight = 4096
	// MaxSnapshotBytes is the largest snapshot read back; a larger one is
	// ErrCorrupt, since no registry comes near it.
	MaxSnapshotBytes = 1 << 30
	// maxGroup is how many commands share one write. raft allows 1024.
	maxGroup = 512
	// snapshotsKept is how many snapshots stay on disk: the newest and, in
	// case it is torn, the one before.
	snapshotsKept = 2
	// trailingLogs is how many entries stay after a snapshot, so that a
	// follower a little behind needs no whole snapshot.
	trailingLogs = 1024
	// DefaultSnapshotThreshold is the number of entries between snapshots.
	DefaultSnapshotThreshold = 8192
	// maxPeerConns is how many idle connections to each peer are kept.
	maxPeerConns = 3
)

// Machine is the state that the log replicates.
//
// Apply is called once for each committed command, in log order, and must be
// a pure function of the state and data; data must not be kept or changed.
// Its result is handed to the Apply call that proposed the command, if that
// call is on this server. Snapshot returns the whole state, owned by the log
// from then on. Restore replaces the whole state. All three are called from
// one goroutine, one at a time.
type Machine interface {
	Apply(data []byte) any
	Snapshot() ([]byte, error)
	Restore(snapshot []byte) error
}

// Peer is one voter.
type Peer struct {
	ID   string // unique in the cluster, never reused
	Addr string // host:port of its log port
}

// Config says where a log lives and who shares it. The zero value is not
// valid: Dir and ID are required.
type Config struct {
	// Dir holds log.db and snapshots/. Made with mode 0700 if it is missing.
	Dir string
	// ID names this server for ever. A directory opened under another ID is
	// refused, since its votes were cast under the first.
	ID string
	// Bind is the log port's host:port. Empty: a single voter with an
	// in-memory transport, and no port is opened.
	Bind string
	// Advertise is the host:port that peers dial; empty means Bind.
	Advertise string
	// Peers are all voters, this one included. Used once, when the directory
	// is empty, and must then be equal on all of them. Empty: this server is
	// the only voter.
	Peers []Peer
	// Join: start without bootstrapping and wait to be added by a leader
	// (AddVoter, AddFollower). Needs Bind.
	Join bool
	// TLS for the log port, used for both directions; see trust.PeerTLS.
	// Required unless Bind is a loopback address.
	TLS *tls.Config
	// SnapshotThreshold is the number of entries between snapshots; 0 means
	// DefaultSnapshotThreshold.
	SnapshotThreshold int
	// Logger takes raft's own messages too; nil means slog.Default().
	Logger *slog.Logger

	// store, for tests: stands between raft and the bolt store.
	store func(durable) durable
}

func (c *Config) alone() bool { return len(c.Peers) <= 1 && !c.Join }

// Validate checks each rule once and names the field.
func (c *Config) Validate() error {
	switch {
	case c.Dir == "":
		return errors.New("replog: Dir is empty: name the directory of the log")
	case c.ID == "":
		return errors.New("replog: ID is empty: give this server a name that never changes")
	case c.SnapshotThreshold < 0:
		return fmt.Errorf("replog: SnapshotThreshold %d is negative", c.SnapshotThreshold)
	case c.Bind == "" && !c.alone():
		return errors.New("replog: Bind is empty, but there are peers to talk to: set host:port")
	case c.Bind != "" && c.TLS == nil && !loopback(c.Bind):
		return fmt.Errorf("replog: Bind %s is reachable from outside: set TLS, or bind to 127.0.0.1", c.Bind)
	}
	seen := make(map[string]bool, len(c.Peers))
	self := len(c.Peers) == 0 || c.Join
	for _, p := range c.Peers {
		if p.ID == "" || seen[p.ID] {
			return fmt.Errorf("replog: peer id %q is empty or given twice", p.ID)
		}
		if p.Addr == "" {
			return fmt.Errorf("replog: peer %s has no address", p.ID)
		}
		seen[p.ID] = true
		self = self || p.ID == c.ID
	}
	if !self {
		return fmt.Errorf("replog: Peers do not contain this server, %s", c.ID)
	}
	return nil
}

func loopback(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
