package rank

import (
	"errors"
	"fmt"
)

// Errors of a Stop.
var (
	// ErrSplit says that ranks stopped at different steps: the generation must
	// be ended, and only its last manifest counts.
	ErrSplit = errors.New("rank protocol: ranks stopped at different steps")
	// ErrDecided says that a commit was decided, so the stop cannot be aborted.
	ErrDecided = errors.New("rank protocol: commit already decided")
	// ErrNotYielding says that only a committed yield can be resumed.
	ErrNotYielding = errors.New("rank protocol: not a committed yield")
	// ErrNoRank says that an answer came from a rank outside the gang.
	ErrNoRank = errors.New("rank protocol: no such rank")
)

// StopVerdict is what the controller should do about a stop.
type StopVerdict uint8

// The verdicts of Stop.Verdict.
const (
	StopPreparing StopVerdict = iota // send prepare to Missing, wait
	StopCommit                       // S is known: record it, then send commit to Missing
	StopComplete                     // every rank reached S
	StopAborted                      // send abort to Missing until it is empty
	StopResuming                     // send resume to Missing
	StopOver                         // every rank trains again
	StopKill                         // the deadline passed, or ranks split: end the generation
)

const unanswered = -1

// Stop is the controller's side of one agreed stop, as plain data that can be
// kept as a fact and taken over by a successor. The caller records it after Step
// first says ok and before any commit leaves, and after Abort and Resume before
// any of those leaves. Not safe for concurrent use.
type Stop struct {
	ID   string `json:"id"`
	Mode Mode   `json:"mode"`
	Sync Sync   `json:"sync"`
	// Begun and At have one entry a rank: the answer to prepare, and the step
	// reached; -1 until heard.
	Begun []int64 `json:"begun"`
	At    []int64 `json:"at"`
	// Decided holds S once every rank answered; it never changes after that.
	Decided bool  `json:"decided"`
	S       int64 `json:"s"`
	// DeadlineMs in fleet time; 0 is none.
	DeadlineMs int64 `json:"deadlineMs"`
	IsAborted  bool  `json:"aborted"`
	IsResuming bool  `json:"resuming"`
	IsSplit    bool  `json:"split"`
	// Back has one entry a rank: it said aborted or resumed.
	Back []bool `json:"back"`
}

// NewStop begins a stop of a gang of ranks that synchronise each step. Set Sync
// to SyncNone and DeadlineMs before use where they apply.
func NewStop(id string, mode Mode, ranks int) *Stop {
	s := &Stop{ID: id, Mode: mode, Sync: SyncAll, Begun: make([]int64, ranks), At: make([]int64, ranks), Back: make([]bool, ranks)}
	for i := range s.Begun {
		s.Begun[i], s.At[i] = unanswered, unanswered
	}
	return s
}

// Prepared takes a rank's answer to prepare. Answers after the decision are
// repeats and change nothing.
func (s *Stop) Prepared(rank int, begun int64) error {
	if rank < 0 || rank >= len(s.Begun) {
		return fmt.Errorf("%w: %d of %d", ErrNoRank, rank, len(s.Begun))
	}
	if s.Decided || s.IsAborted {
		return nil
	}
	s.Begun[rank] = max(s.Begun[rank], begun)
	for _, b := range s.Begun {
		if b == unanswered {
			return nil
		}
	}
	for _, b := range s.Begun {
		s.S = max(s.S, b)
	}
	s.Decided = true
	return nil
}

// Step is S, the step all ranks stop at, once every rank has answered.
func (s *Stop) Step() (int64, bool) { return s.S, s.Decided }

// Reached takes yielded, stopped or finished from a rank. A rank that finished
// without a prepare counts as prepared there. ErrSplit is sticky.
func (s *Stop) Reached(rank int, step int64) error {
	if err := s.Prepared(rank, step); err != nil {
		return err
	}
	if s.IsAborted || s.IsResuming {
		return nil
	}
	if s.Sync != SyncNone && s.Decided && step != s.S {
		s.IsSplit = true
		return fmt.Errorf("%w: rank %d at %d, agreed %d", ErrSplit, rank, step, s.S)
	}
	s.At[rank] = step
	return nil
}

// Complete reports whether every rank reached its stop.
func (s *Stop) Complete() bool {
	if !s.Decided || s.IsSplit {
		return false
	}
	for _, at := range s.At {
		if at == unanswered || (s.Sync != SyncNone && at != s.S) {
			return false
		}
	}
	return true
}

// Missing lists the ranks whose answer the present stage awaits: those to send
// its order to again.
func (s *Stop) Missing() []int {
	var out []int
	for r := range s.Begun {
		heard := s.Begun[r] != unanswered
		switch {
		case s.IsAborted || s.IsResuming:
			heard = s.Back[r]
		case s.Decided:
			heard = s.At[r] != unanswered
		}
		if !heard {
			out = append(out, r)
		}
	}
	return out
}

// Resume takes a committed yield back, complete or not.
func (s *Stop) Resume() error {
	if s.Mode != ModeYield || !s.Decided || s.IsSplit {
		return fmt.Errorf("%w: stop %s", ErrNotYielding, s.ID)
	}
	s.IsResuming = true
	return nil
}

// Answered takes aborted or resumed from a rank.
func (s *Stop) Answered(rank int) error {
	if rank < 0 || rank >= len(s.Back) {
		return fmt.Errorf("%w: %d of %d", ErrNoRank, rank, len(s.Back))
	}
	s.Back[rank] = s.IsAborted || s.IsResuming
	return nil
}

// Abort gives the stop up; allowed only before the decision, since a commit may
// be on its way after it. Aborting and resuming have no deadline here: a rank that
// answers nothing may be training again, and one that is not shows in its steps.
func (s *Stop) Abort() error {
	if s.Decided {
		return fmt.Errorf("%w: stop %s at step %d", ErrDecided, s.ID, s.S)
	}
	s.IsAborted = true
	return nil
}

// Verdict says what to do at nowMs.
func (s *Stop) Verdict(nowMs int64) StopVerdict {
	switch {
	case (s.IsAborted || s.IsResuming) && len(s.Missing()) == 0:
		return StopOver
	case s.IsAborted:
		return StopAborted
	case s.IsResuming:
		return StopResuming
	case s.IsSplit:
		return StopKill
	case s.Complete():
		return StopComplete
	case s.DeadlineMs != 0 && nowMs >= s.DeadlineMs:
		return StopKill
	case s.Decided:
		return StopCommit
	}
	return StopPreparing
}
