//go:build cgo && linux

package nvml

import (
	"fmt"
	"slices"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Reader reads one node's GPUs. Read is for one goroutine at a time; all else
// is safe for concurrent use.
type Reader struct {
	api     nvml.Interface
	have    features
	missing []string
	driver  string

	reading sync.Mutex         // held during Read; never waited for
	known   []*device          // owned by the holder of reading; in order of first sight
	byUUID  map[string]*device // owned by the holder of reading
	island  map[string]int     // owned by the holder of reading

	mu         sync.Mutex
	lost       map[string]string // guarded by mu; UUID to reason; only Forget removes
	remembered []string          // guarded by mu; not yet in known
	forgotten  []string          // guarded by mu; not yet out of known
	closed     bool              // guarded by mu
	stop       chan struct{}     // closed by Close
	watchers   sync.WaitGroup
}

// device is a GPU that was seen, or is remembered.
type device struct {
	uuid   string
	handle nvml.Device // nil when only remembered
	last   GPU         // what was read of it last; Index kept over a loss
}

func newReader(api nvml.Interface, have features, missing []string) *Reader {
	return &Reader{
		api: api, have: have, missing: missing,
		byUUID: map[string]*device{}, island: map[string]int{},
		lost: map[string]string{}, stop: make(chan struct{}),
	}
}

// Remember names GPUs that this node had before, so that one that is gone is
// reported as lost. Names already known change nothing.
func (r *Reader) Remember(uuids ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	room := MaxGPUs - len(r.remembered)
	r.remembered = append(r.remembered, uuids[:max(0, min(len(uuids), room))]...)
}

// Forget is an operator's word that a GPU was replaced or reset: from the next
// Read on it counts as new if the driver lists it, and is not reported if not.
func (r *Reader) Forget(uuid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.lost, uuid)
	r.remembered = slices.DeleteFunc(r.remembered, func(have string) bool { return have == uuid })
	if len(r.forgotten) < MaxGPUs {
		r.forgotten = append(r.forgotten, uuid)
	}
}

func (r *Reader) markLost(uuid, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, already := r.lost[uuid]; !already {
		r.lost[uuid] = why
	}
}

func (r *Reader) whyLost(uuid string) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	why, ok := r.lost[uuid]
	return why, ok
}

// Read reads all GPUs. What fails for one GPU is said in that GPU's Err, and
// touches no other. The error is ErrBusy or ErrClosed; a driver that cannot
// list its GPUs is in Inventory.CountErr, and the GPUs seen before are read all
// the same.
func (r *Reader) Read() (Inventory, error) {
	if !r.reading.TryLock() {
		return Inventory{}, ErrBusy
	}
	defer r.reading.Unlock()
	if r.takeWords() {
		return Inventory{}, ErrClosed
	}
	inv := Inventory{Driver: r.driver, Missing: slices.Clone(r.missing)}
	seen := r.enumerate(&inv)
	var gone int
	for _, d := range r.known {
		g := r.readOne(d, seen, inv.CountErr == "")
		if g.Lost {
			gone++
		}
		g.Island = r.island[d.uuid]
		inv.GPUs = append(inv.GPUs, g)
	}
	// Indexes that answered nothing belong to known lost GPUs; one too many is
	// a GPU lost before this reader ever saw it.
	for n, i := range seen.silent {
		if n >= gone {
			inv.GPUs = append(inv.GPUs, GPU{Index: i, Lost: true, Err: seen.why[i], Island: -1})
		}
	}
	slices.SortStableFunc(inv.GPUs, func(a, b GPU) int { return a.Index - b.Index })
	return inv, nil
}

// takeWords carries out Forget and Remember; true when the reader is closed.
func (r *Reader) takeWords() (closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, uuid := range r.forgotten {
		delete(r.byUUID, uuid)
		r.known = slices.DeleteFunc(r.known, func(d *device) bool { return d.uuid == uuid })
	}
	for _, uuid := range r.remembered {
		if r.byUUID[uuid] == nil && len(r.known) < MaxGPUs {
			r.add(&device{uuid: uuid, last: GPU{UUID: uuid, Index: len(r.known)}})
		}
	}
	r.forgotten, r.remembered = nil, nil
	return r.closed
}

func (r *Reader) add(d *device) {
	r.byUUID[d.uuid] = d
	r.known = append(r.known, d)
}

// listing is what the driver listed this time.
type listing struct {
	index  map[string]int // by UUID
	silent []int          // indexes that gave no UUID
	why    map[int]string // of those
}

// enumerate asks for all handles, adds new GPUs to known, and finds islands
// when there are new ones.
func (r *Reader) enumerate(inv *Inventory) listing {
	seen := listing{index: map[string]int{}, why: map[int]string{}}
	n, ret := r.api.DeviceGetCount()
	if ret != nvml.SUCCESS {
		inv.CountErr = text(ret)
		return seen
	}
	fresh := false
	for i := range min(n, MaxGPUs) {
		handle, ret := r.api.DeviceGetHandleByIndex(i)
		var uuid string
		if ret == nvml.SUCCESS {
			uuid, ret = handle.GetUUID()
		}
		if ret != nvml.SUCCESS || uuid == "" {
			seen.silent, seen.why[i] = append(seen.silent, i), text(ret)
			continue
		}
		d := r.byUUID[uuid]
		if d == nil {
			if len(r.known) >= MaxGPUs {
				continue
			}
			d = &device{uuid: uuid}
			r.add(d)
		}
		fresh = fresh || d.handle == nil
		d.handle = handle
		seen.index[uuid] = i
	}
	if fresh {
		r.findIslands()
	}
	return seen
}

// readOne reads a known GPU, or says how it was lost.
func (r *Reader) readOne(d *device, seen listing, listed bool) GPU {
	d.last.UUID = d.uuid
	if i, ok := seen.index[d.uuid]; ok {
		d.last.Index = i
	} else if ret := r.ask(d); ret != nvml.SUCCESS {
		// Gone from the list and silent. Without a list, a GPU that is only
		// remembered has no handle to ask: nothing is known of it.
		if listed || ret == nvml.ERROR_GPU_IS_LOST {
			r.markLost(d.uuid, text(ret))
		} else {
			return r.bare(d, false, "not readable: "+text(ret))
		}
	}
	if why, lost := r.whyLost(d.uuid); lost {
		return r.bare(d, true, why)
	}
	g, ret := r.detail(d)
	if ret == nvml.ERROR_GPU_IS_LOST {
		r.markLost(d.uuid, text(ret))
		return r.bare(d, true, text(ret))
	}
	d.last = g
	return g
}

// ask asks a GPU that was not listed whether it still answers.
func (r *Reader) ask(d *device) nvml.Return {
	if d.handle == nil {
		return nvml.ERROR_NOT_FOUND
	}
	uuid, ret := d.handle.GetUUID()
	if ret == nvml.SUCCESS && uuid != d.uuid {
		return nvml.ERROR_NOT_FOUND // the handle is another's now
	}
	return ret
}

// bare is a GPU of which only its identity is known.
func (r *Reader) bare(d *device, lost bool, why string) GPU {
	return GPU{
		UUID: d.uuid, Name: d.last.Name, Index: d.last.Index, PCI: d.last.PCI,
		MIG: d.last.MIG, Unified: d.last.Unified, Lost: lost, Err: why,
	}
}

// Close ends the watchers and the library. Idempotent. It waits for a Read in
// progress only if it can: one that hangs keeps the library open.
func (r *Reader) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	close(r.stop)
	r.mu.Unlock()
	r.watchers.Wait()
	if !r.reading.TryLock() {
		return ErrBusy
	}
	defer r.reading.Unlock()
	if !r.have.shutdown {
		return nil
	}
	if ret := r.api.Shutdown(); ret != nvml.SUCCESS {
		return fmt.Errorf("nvml: closing: %s", text(ret))
	}
	return nil
}
