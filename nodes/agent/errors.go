package agent

import "errors"

// Errors of starting an agent.
var (
	// ErrConfig: a field of Config cannot be; the text says which and the remedy.
	ErrConfig = errors.New("agent: bad config")
	// ErrLocked: another agent has the data directory.
	ErrLocked = errors.New("agent: another agent runs on this data directory; stop it, or give this one its own --data")
	// ErrJournal: the journal cannot be read or written.
	ErrJournal = errors.New("agent: journal")
	// ErrInsecure: a listener beyond loopback without TLS and bearer check.
	ErrInsecure = errors.New("agent: a listener beyond loopback needs TLS and a join token")
)

// Errors of orders, told in Answer.Err.
var (
	ErrOldTerm       = errors.New("order is of an older term")
	ErrBadOrder      = errors.New("bad order")
	ErrUnknownHolder = errors.New("no such holder on this node")
	ErrGeneration    = errors.New("holder is of another generation")
	ErrState         = errors.New("holder is not in a state for this order")
	ErrGPUs          = errors.New("gpus are not free")
	ErrFiles         = errors.New("files or user are not there")
	ErrFull          = errors.New("too many holders on this node; forget those that are gone")
	ErrNoPort        = errors.New("no free port; widen the port range")
)
