// Package nvml reads the GPUs of one node through NVIDIA's management library
// (go-nvml, cgo). Without cgo, Open returns ErrUnavailable and the rest of the
// program runs as on a node without GPUs.
//
// What it decides: which GPUs are there, by UUID (numbers are for display;
// their order changes); what is not available, as nil and never as zero; which
// GPU is lost, for good, without taking the others with it; and which GPUs
// form an island.
//
// What the caller owes it: Read from one goroutine at a time (a second one gets
// ErrBusy: the driver hangs in the first), Close at the end, and after a
// restart Remember with the UUIDs it knew, so that a GPU that is gone is
// reported as lost rather than not at all.
//
//	r, err := nvml.Open("")
//	switch {
//	case errors.Is(err, nvml.ErrNoLibrary), errors.Is(err, nvml.ErrNoDriver):
//		// a node without GPUs: say so once
//	case errors.Is(err, nvml.ErrVersionMismatch):
//		// cordon: reboot needed; what runs goes on running
//	}
//	defer r.Close()
//	inv, err := r.Read()
//
// # Never a crash
//
// go-nvml binds lazily: a call of a function that the driver's library lacks
// ends the process, with no error and nothing to recover. So every symbol is
// looked up once at Open, before anything is called, and a call whose symbol is
// missing is not made; Inventory.Missing lists what that costs. For the same
// reason NVIDIA's own error texts are not asked for. The library stays mapped
// until the process ends, since addresses once bound are never bound again.
//
// # Islands
//
// GPUs joined by active NVLinks, directly or through a common NVSwitch, form an
// island (union-find over PCI addresses of both ends). GPUs without any active
// NVLink form islands by PCIe: those joined by switches alone, without crossing
// a host bridge. Islands are numbered from 0 in the order of the GPUs, and keep
// their numbers when a GPU is lost.
//
// What it does not do: reset or configure GPUs, decide what a loss means, or
// keep history.
package nvml
