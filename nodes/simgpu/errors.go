package simgpu

import "errors"

// Errors of set-up.
var (
	// ErrUnknownGPU: no state file of that UUID in the directory; Create it first.
	ErrUnknownGPU = errors.New("simgpu: no such gpu")
	// ErrBadSpec: the Spec cannot be a device; the text says which field.
	ErrBadSpec = errors.New("simgpu: bad spec")
	// ErrBadEnv: the process environment names devices but not fully.
	ErrBadEnv = errors.New("simgpu: bad environment")
)

// Errors of use.
var (
	// ErrOutOfMemory: the device has less memory left than was asked. Nothing
	// was changed; what the context held before it still holds.
	ErrOutOfMemory = errors.New("simgpu: out of memory")
	// ErrBusy: another living holder is active on the device. The attempt is
	// in the violations file.
	ErrBusy = errors.New("simgpu: gpu has another active holder")
	// ErrLost: the device fell off the bus (fault injection). Freeing,
	// deactivating and closing still work.
	ErrLost = errors.New("simgpu: gpu is lost")
	// ErrClosed: the context was closed, or its entry is gone.
	ErrClosed = errors.New("simgpu: context is closed")
	// ErrFull: MaxContexts living contexts are attached already.
	ErrFull = errors.New("simgpu: too many contexts on one gpu")
	// ErrLocked: another process kept the state locked for LockWaitMs, most
	// likely because it is stopped or frozen in the middle of a call.
	ErrLocked = errors.New("simgpu: gpu state stayed locked")
)
