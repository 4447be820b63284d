package rank

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Version is the protocol version spoken by this package.
const Version = 1

// MaxLineBytes bounds one message on the wire, newline included. A longer line
// ends the connection.
const MaxLineBytes = 64 << 10

// Type names a message.
type Type string

// Messages from a rank to its agent.
const (
	TypeHello    Type = "hello"    // version, job, generation, rank, worldSize, pid, sync, step (resumed from)
	TypeStep     Type = "step"     // begun, done, loss, samples
	TypePhase    Type = "phase"    // phase
	TypePrepared Type = "prepared" // id, begun
	TypeShard    Type = "shard"    // generation, step, file, bytes, digest, scope, samples, seq
	TypeYielded  Type = "yielded"  // id, step
	TypeResumed  Type = "resumed"  // id, step
	TypeStopped  Type = "stopped"  // id, step, seq: saved, about to exit
	TypeFinished Type = "finished" // step, seq: the last step is done and saved
	TypeAborted  Type = "aborted"  // id
	TypeRefused  Type = "refused"  // id, order, reason; also sent by an agent that refuses a hello
)

// Messages from the agent to a rank.
const (
	TypePrepare Type = "prepare" // id, mode
	TypeCommit  Type = "commit"  // id, step, mode
	TypeAbort   Type = "abort"   // id
	TypeResume  Type = "resume"  // id
	TypeAck     Type = "ack"     // seq: everything up to seq was taken
)

// Mode says how an agreed stop ends.
type Mode string

// ModeYield keeps the process and its memory; ModeStop saves and exits.
const (
	ModeYield Mode = "yield"
	ModeStop  Mode = "stop"
)

// Sync says whether the ranks of a gang wait for each other at each step.
type Sync string

// SyncAll ranks stop at one common step; SyncNone ranks at their own boundary.
const (
	SyncAll  Sync = "all"
	SyncNone Sync = "none"
)

// Phase is what a rank is doing; only in train is a step boundary near.
type Phase string

// The phases of a rank.
const (
	PhaseTrain   Phase = "train"
	PhaseCompile Phase = "compile"
	PhaseEval    Phase = "eval"
	PhaseSave    Phase = "save"
	PhaseLoad    Phase = "load"
)

// Scope says who can read a shard again.
type Scope string

// ScopeNode shards pin the gang to their nodes; ScopeShared ones outlive a node.
const (
	ScopeNode   Scope = "node"
	ScopeShared Scope = "shared"
)

var (
	// ErrMessage is wrapped by every error about a message that is not of this protocol.
	ErrMessage = errors.New("rank protocol: bad message")
	// ErrTooLong says that a message exceeds MaxLineBytes.
	ErrTooLong = errors.New("rank protocol: message too long")
)

// Message is every message of the protocol; Type says which fields count.
// The zero Message is invalid. Absent numbers read as 0.
type Message struct {
	Type       Type   `json:"type"`
	Version    int    `json:"version,omitempty"`
	Job        string `json:"job,omitempty"`
	Generation int64  `json:"generation,omitempty"`
	Rank       int    `json:"rank,omitempty"`
	WorldSize  int    `json:"worldSize,omitempty"`
	PID        int    `json:"pid,omitempty"`
	Sync       Sync   `json:"sync,omitempty"`
	// Step is the step resumed from in hello, S in commit, and the step reached
	// in yielded, resumed, stopped, finished and shard.
	Step int64 `json:"step,omitempty"`
	// Begun and Done: the last step begun and the last one finished; 0 is none.
	Begun int64 `json:"begun,omitempty"`
	Done  int64 `json:"done,omitempty"`
	// Loss of step Done; nil when unknown or not a finite number.
	Loss *float64 `json:"loss,omitempty"`
	// Samples consumed by the job through Done (of this rank alone with SyncNone).
	Samples int64  `json:"samples,omitempty"`
	Phase   Phase  `json:"phase,omitempty"`
	ID      string `json:"id,omitempty"`
	Mode    Mode   `json:"mode,omitempty"`
	File    string `json:"file,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"`
	// Digest is "sha256:" and 64 hex digits over the file's bytes.
	Digest string `json:"digest,omitempty"`
	Scope  Scope  `json:"scope,omitempty"`
	// Seq numbers messages that are kept until acknowledged, from 1.
	Seq int64 `json:"seq,omitempty"`
	// Order and Reason of a refusal.
	Order  Type   `json:"order,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Append appends m as one line to dst. It fails with ErrTooLong.
func (m Message) Append(dst []byte) ([]byte, error) {
	if m.Loss != nil && !finite(*m.Loss) {
		m.Loss = nil // JSON has no NaN, and a diverged loss must not end the stream
	}
	b, err := json.Marshal(m)
	if err != nil {
		return dst, fmt.Errorf("%w: %s", ErrMessage, err.Error())
	}
	if len(b)+1 > MaxLineBytes {
		return dst, fmt.Errorf("%w: %s of %d bytes, limit %d", ErrTooLong, m.Type, len(b)+1, MaxLineBytes)
	}
	return append(append(dst, b...), '\n'), nil
}

// Parse reads one line. Unknown fields pass, so that a later version may add
// some; unknown types and impossible values are errors that wrap ErrMessage.
func Parse(line []byte) (Message, error) {
	var m Message
	if err := json.Unmarshal(bytes.TrimSpace(line), &m); err != nil {
		return m, fmt.Errorf("%w: not one JSON object a line: %s", ErrMessage, err.Error())
	}
	return m, m.Validate()
}

// Validate checks the fields that m's type needs.
func (m Message) Validate() error {
	bad := func(why string) error { return fmt.Errorf("%w: %s: %s", ErrMessage, m.Type, why) }
	if m.Step < 0 || m.Begun < 0 || m.Done < 0 || m.Samples < 0 || m.Bytes < 0 || m.Seq < 0 || m.Generation < 0 {
		return bad("negative count")
	}
	switch m.Type {
	case TypeHello:
		return m.validateHello(bad)
	case TypeStep:
		if m.Done > m.Begun {
			return bad("done is beyond begun")
		}
	case TypePhase:
		switch m.Phase {
		case PhaseTrain, PhaseCompile, PhaseEval, PhaseSave, PhaseLoad:
		default:
			return bad(fmt.Sprintf("unknown phase %q", m.Phase))
		}
	case TypeShard:
		if m.File == "" || !validDigest(m.Digest) {
			return bad("needs file and digest sha256:<64 hex>")
		}
		if m.Scope != ScopeNode && m.Scope != ScopeShared {
			return bad(`scope must be "node" or "shared"`)
		}
	case TypePrepare, TypeCommit:
		if m.ID == "" || (m.Mode != ModeYield && m.Mode != ModeStop) {
			return bad(`needs id and mode "yield" or "stop"`)
		}
	case TypePrepared, TypeYielded, TypeResumed, TypeAborted, TypeAbort, TypeResume:
		if m.ID == "" {
			return bad("needs id")
		}
	case TypeStopped, TypeFinished, TypeRefused, TypeAck:
	default:
		return fmt.Errorf("%w: unknown type %q", ErrMessage, m.Type)
	}
	return nil
}

func (m Message) validateHello(bad func(string) error) error {
	if m.Version != Version {
		return bad(fmt.Sprintf("version %d, this agent speaks %d; update the helper or the agent", m.Version, Version))
	}
	if m.WorldSize < 1 || m.Rank < 0 || m.Rank >= m.WorldSize {
		return bad(fmt.Sprintf("rank %d of %d", m.Rank, m.WorldSize))
	}
	if m.Sync != SyncAll && m.Sync != SyncNone {
		return bad(`sync must be "all" or "none"`)
	}
	return nil
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func validDigest(d string) bool {
	const prefix = "sha256:"
	if len(d) != len(prefix)+64 || d[:len(prefix)] != prefix {
		return false
	}
	for _, c := range d[len(prefix):] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
