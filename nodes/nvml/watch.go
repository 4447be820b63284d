//go:build cgo && linux

package nvml

import (
	"context"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	// waitMs is how long one wait in the driver lasts, and so how long the end
	// of a watch can take.
	waitMs = 500
	// retryWait is the pause after a wait that failed at once.
	retryWait = time.Second
)

// Watch delivers the driver's critical errors of all GPUs that are listed now,
// until ctx ends or Close is called; then the channel is closed. At most
// maxEvents are kept for a slow reader, then the oldest are dropped: Read shows
// the state all the same. A library without events delivers none, and
// Inventory.Missing says so.
func (r *Reader) Watch(ctx context.Context) <-chan XID {
	out := make(chan XID, maxEvents)
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		close(out)
		return out
	}
	r.watchers.Add(1) // Close waits for us from here on
	r.mu.Unlock()
	// Registered before Watch returns, so that a loss from here on is seen;
	// outside the lock, since a driver may hang.
	set, names, ok := r.register()
	go func() {
		defer r.watchers.Done()
		defer close(out)
		r.watch(ctx, out, set, names, ok)
	}()
	return out
}

func (r *Reader) watch(ctx context.Context, out chan XID, set nvml.EventSet, names map[nvml.Device]string, ok bool) {
	if !ok {
		select {
		case <-ctx.Done():
		case <-r.stop:
		}
		return
	}
	defer set.Free()
	for ctx.Err() == nil && !r.stopped() {
		event, ret := set.Wait(waitMs)
		switch ret {
		case nvml.SUCCESS:
			if event.EventType == nvml.EventTypeXidCriticalError {
				r.deliver(out, XID{UUID: nameOf(event.Device, names), Code: event.EventData})
			}
		case nvml.ERROR_TIMEOUT:
		default:
			// A lost GPU makes some drivers answer so at once, again and again.
			timer := time.NewTimer(retryWait)
			select {
			case <-timer.C:
			case <-ctx.Done():
			case <-r.stop:
			}
			timer.Stop()
		}
	}
}

// register makes an event set over all listed GPUs; false when there is none.
func (r *Reader) register() (set nvml.EventSet, names map[nvml.Device]string, ok bool) {
	if !r.have.xids {
		return nil, nil, false
	}
	n, ret := r.api.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, nil, false
	}
	set, ret = r.api.EventSetCreate()
	if ret != nvml.SUCCESS {
		return nil, nil, false
	}
	names = map[nvml.Device]string{}
	for i := range min(n, MaxGPUs) {
		h, ret := r.api.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		uuid, ret := h.GetUUID()
		if ret != nvml.SUCCESS || h.RegisterEvents(nvml.EventTypeXidCriticalError, set) != nvml.SUCCESS {
			continue
		}
		names[h] = uuid
	}
	return set, names, true
}

// nameOf asks the map first: a lost GPU cannot tell its UUID any more.
func nameOf(h nvml.Device, names map[nvml.Device]string) string {
	if uuid, ok := names[h]; ok {
		return uuid
	}
	if uuid, ret := h.GetUUID(); ret == nvml.SUCCESS {
		return uuid
	}
	return ""
}

// deliver never waits. It is called by one goroutine for each out.
func (r *Reader) deliver(out chan XID, x XID) {
	if x.Code == xidOffTheBus && x.UUID != "" {
		r.markLost(x.UUID, "XID 79: the GPU has fallen off the bus")
	}
	for {
		select {
		case out <- x:
			return
		default:
		}
		select {
		case <-out: // the oldest makes room
		default:
		}
	}
}

func (r *Reader) stopped() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}
