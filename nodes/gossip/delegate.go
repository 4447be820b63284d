package gossip

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// conflictLogEvery is how often the same complaint is logged.
	conflictLogEvery = time.Minute
	// maxThrottled is how many different complaints are remembered; beyond it
	// all are forgotten, and may be logged once more.
	maxThrottled = 1024
)

var (
	_ memberlist.Delegate         = (*Gossip)(nil)
	_ memberlist.EventDelegate    = (*Gossip)(nil)
	_ memberlist.ConflictDelegate = (*Gossip)(nil)
)

// NodeMeta is memberlist's question for our description.
func (g *Gossip) NodeMeta(limit int) []byte {
	if b := *g.meta.Load(); len(b) <= limit {
		return b
	}
	return nil
}

// NotifyMsg, GetBroadcasts, LocalState and MergeRemoteState carry nothing:
// gossip is for discovery only.
func (g *Gossip) NotifyMsg([]byte) {}

// GetBroadcasts carries nothing; see NotifyMsg.
func (g *Gossip) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState carries nothing; see NotifyMsg.
func (g *Gossip) LocalState(bool) []byte { return nil }

// MergeRemoteState carries nothing; see NotifyMsg.
func (g *Gossip) MergeRemoteState([]byte, bool) {}

// NotifyJoin and its siblings are called by memberlist under its lock: they
// must not wait and must not call it.
func (g *Gossip) NotifyJoin(n *memberlist.Node) { g.note(Join, member(n)) }

// NotifyLeave; see NotifyJoin.
func (g *Gossip) NotifyLeave(n *memberlist.Node) { g.note(Leave, member(n)) }

// NotifyUpdate; see NotifyJoin.
func (g *Gossip) NotifyUpdate(n *memberlist.Node) { g.note(Update, member(n)) }

func (g *Gossip) note(kind Kind, m Member) {
	g.mu.Lock()
	if kind == Leave {
		delete(g.members, m.ID)
	} else {
		g.members[m.ID] = m
	}
	g.mu.Unlock()
	g.backlog.put(Event{kind, m})
}

// NotifyConflict: other speaks under the name of existing.
func (g *Gossip) NotifyConflict(existing, other *memberlist.Node) {
	g.stats.conflicts.Add(1)
	refused := member(other)
	g.backlog.put(Event{Conflict, refused})
	if g.said.allow("conflict " + refused.ID + refused.Addr) {
		g.log.Error("two nodes use one name; the second is refused until the first is gone",
			"node", refused.ID, "first", address(existing), "second", refused.Addr)
	}
}

func (g *Gossip) rotate(what string, change func(*memberlist.Keyring) error) error {
	ring := g.keys
	if ring == nil {
		return fmt.Errorf("gossip: %s a key: %w", what, ErrNoKey)
	}
	if err := change(ring); err != nil {
		return fmt.Errorf("gossip: %s a key: %w", what, err)
	}
	return nil
}

// throttle lets each complaint through once an interval.
type throttle struct {
	every time.Duration

	mu   sync.Mutex
	last map[string]time.Time // guarded by mu
}

func newThrottle(every time.Duration) *throttle {
	return &throttle{every: every, last: map[string]time.Time{}}
}

func (t *throttle) allow(what string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if at, ok := t.last[what]; ok && now.Sub(at) < t.every {
		return false
	}
	if len(t.last) >= maxThrottled {
		clear(t.last)
	}
	t.last[what] = now
	return true
}

// rejections are what memberlist's log lines contain when it drops a packet or
// a stream of another cluster. It has no hook to count these, so the text is
// read; a test asserts that the text is still right for the pinned version.
var rejections = [][]byte{
	[]byte("unacceptable label"),
	[]byte("Decrypt packet failed"),
	[]byte("installed keys could decrypt"),
	[]byte("remote state is encrypted"),
	[]byte("remote state is not encrypted"),
}

// logWriter takes memberlist's lines to slog, at debug: what an operator
// should know is said by this package, once, in its own words.
type logWriter struct {
	log   *slog.Logger
	stats *counters
}

func (w *logWriter) Write(line []byte) (int, error) {
	for _, text := range rejections {
		if bytes.Contains(line, text) {
			w.stats.rejected.Add(1)
			break
		}
	}
	w.log.Debug("memberlist", "line", string(bytes.TrimSpace(line)))
	return len(line), nil
}

func newStdLogger(w io.Writer) *log.Logger { return log.New(w, "", 0) }
