package admin

import (
	"context"
	"io"
	"net/http"

	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/slo"
)

// Controller is what the control port needs from the process that owns the
// facts. All methods are safe for concurrent use.
type Controller interface {
	// Read calls f under the controller's read lock with the facts, the
	// picture of the agents and fleet time. f keeps no pointer and does not block.
	Read(f func(s *registry.State, fleet *nodes.Fleet, nowMs int64))
	// Submit applies one command. Empty ID, AtMs and Term are filled in. The
	// error is that of registry.State.Apply, or of the log.
	Submit(ctx context.Context, c registry.Command) ([]registry.Event, error)
	// Headroom is the latest per model.
	Headroom() map[string]slo.Headroom
	// Waiting lists what does not run and why, as of the last plan.
	Waiting() []Waiting
	// ServeAgent speaks with one agent (nodes.Frame up, nodes.Down down, one
	// JSON document a line) until the stream or ctx ends. It closes conn.
	ServeAgent(ctx context.Context, conn io.ReadWriteCloser, peer string) error
	// Events returns up to max recorded events with Seq > sinceSeq, oldest
	// first, from a bounded ring: older ones are skipped. next is the Seq of
	// the last one returned or, when none is, the newest Seq there is.
	Events(sinceSeq int64, max int) (events []Recorded, next int64)
	// WaitEvents returns when there is an event with Seq > sinceSeq, or ctx ends.
	WaitEvents(ctx context.Context, sinceSeq int64)
}

// Recorded is an event with its place in the ring.
type Recorded struct {
	Seq int64 `json:"seq"`
	registry.Event
}

// Waiting says why a job or a wanted replica does not run.
type Waiting struct {
	Object string `json:"object"`
	Cause  string `json:"cause"` // quota, shortage, fragmentation, topology, health, backoff, user
	Text   string `json:"text"`
}

// Role is what an actor may do.
type Role string

// The roles.
const (
	RoleOperator Role = "operator" // everything
	RoleAgent    Role = "agent"    // only the agents' stream
)

// Actor is who makes a call.
type Actor struct {
	Name string // "uid:1000", "token:op-1a2b"; written in commands and the audit log
	Role Role
}

// Auth finds the actor of a request. It returns an error that wraps
// ErrUnauthenticated when there is none.
type Auth interface {
	Check(r *http.Request) (Actor, error)
}
