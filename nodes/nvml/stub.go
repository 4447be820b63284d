//go:build !cgo || !linux

package nvml

import "context"

// Reader is never made in a build without cgo.
type Reader struct{}

// Open returns ErrUnavailable.
func Open(string) (*Reader, error) { return nil, ErrUnavailable }

// Read returns ErrUnavailable.
func (*Reader) Read() (Inventory, error) { return Inventory{}, ErrUnavailable }

// Remember does nothing.
func (*Reader) Remember(...string) {}

// Forget does nothing.
func (*Reader) Forget(string) {}

// Watch returns a channel that is closed when ctx ends.
func (*Reader) Watch(ctx context.Context) <-chan XID {
	c := make(chan XID)
	context.AfterFunc(ctx, func() { close(c) })
	return c
}

// Close does nothing.
func (*Reader) Close() error { return nil }
