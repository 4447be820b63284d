// Package simgpu simulates the GPUs of one machine for programs that have none.
//
// It decides two things, on the processes themselves and at the moment of the
// call: whether a process may map memory on a device (the sum over all living
// processes never exceeds the device's memory, the next byte is
// [ErrOutOfMemory]), and whether a holder may compute on it (one active holder
// a GPU; a second one gets [ErrBusy] and leaves a line in violations.jsonl).
// Several processes of one holder share a GPU without conflict.
//
// There is no daemon. A directory holds one file a GPU with two checksummed
// JSON copies of its state; a writer has the file's flock and overwrites the
// older copy, so a kill -9 of any process at any instruction leaves a readable
// state. An entry counts only while its
// process lives: identity is the pid together with its start time, and a
// zombie is dead. What a killed process held is therefore free at once, as
// with a real driver.
//
// Callers owe it: one directory on a local file system for the whole machine,
// and the same pid namespace for every process that uses it. Order:
//
//	simgpu.Create(dir, []simgpu.Spec{{UUID: "GPU-0", Name: "sim", MemoryBytes: 80 << 30}})
//	dev, err := simgpu.Open(dir, "GPU-0")
//	ctx, err := dev.Attach("replica-7")
//	err = ctx.SetAllocated(60 << 30) // ErrOutOfMemory if it does not fit
//	err = ctx.Activate()             // ErrBusy if another living holder computes
//	...
//	ctx.Deactivate()                 // yielded: memory stays, compute ends
//	ctx.Close()
//
// A process started by an agent uses [FromEnv] instead of Open and Attach.
// [Read] is what an agent polls; it takes no lock, so a frozen process that
// was caught holding one cannot stop it.
//
// It does not simulate time, utilisation, transfers or topology beyond the
// island number, and it does not limit processes that never call it.
package simgpu
