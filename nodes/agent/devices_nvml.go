package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"sluice/nodes"
	"sluice/nodes/nvml"
)

// deviceWaitMs bounds the wait for another reading that has not returned: a
// driver that hangs must not hang every worker.
const deviceWaitMs = 3000

// NoDevices is a node without GPUs.
type NoDevices struct{}

// GPUs implements Devices.
func (NoDevices) GPUs() ([]nodes.GPU, error) { return nil, nil }

// Read implements Devices.
func (NoDevices) Read() ([]DeviceReading, error) { return nil, nil }

// Env implements Devices.
func (NoDevices) Env([]string) map[string]string { return nil }

// Missing implements Devices.
func (NoDevices) Missing() []string { return nil }

// NVMLDevices are the GPUs that NVIDIA's driver shows; of one in MIG mode, its
// instances. Use OpenNVMLDevices.
type NVMLDevices struct {
	reader  *nvml.Reader
	turn    chan struct{} // one reading at a time
	cancel  context.CancelFunc
	watched chan struct{} // closed when the watch has ended

	mu      sync.Mutex
	xid     map[string]int // guarded by mu; last fault by UUID, a fatal one stays
	missing []string       // guarded by mu
}

// OpenNVMLDevices opens the driver's library; an empty path is the system's.
// Errors are those of package nvml. Close it at the end.
func OpenNVMLDevices(libraryPath string) (*NVMLDevices, error) {
	r, err := nvml.Open(libraryPath)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &NVMLDevices{
		reader: r, turn: make(chan struct{}, 1), cancel: cancel,
		watched: make(chan struct{}), xid: map[string]int{},
	}
	go func() {
		defer close(d.watched)
		for x := range r.Watch(ctx) {
			d.mu.Lock()
			if fatalXIDs[d.xid[x.UUID]] == "" {
				d.xid[x.UUID] = int(x.Code)
			}
			d.mu.Unlock()
		}
	}()
	return d, nil
}

// Close ends the watch and closes the library.
func (d *NVMLDevices) Close() error {
	d.cancel()
	<-d.watched
	return d.reader.Close()
}

// Remember names GPUs that the node had before a restart; one that is gone is
// then reported as lost.
func (d *NVMLDevices) Remember(uuids ...string) { d.reader.Remember(uuids...) }

// read takes a reading begun after the call.
func (d *NVMLDevices) read() (nvml.Inventory, error) {
	timer := time.NewTimer(deviceWaitMs * time.Millisecond)
	defer timer.Stop()
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-timer.C:
		return nvml.Inventory{}, nvml.ErrBusy
	}
	inv, err := d.reader.Read()
	if err != nil {
		return inv, err
	}
	missing := append([]string(nil), inv.Missing...)
	for _, g := range inv.GPUs {
		if !g.Lost && g.MemoryBytes == nil && !g.MIG {
			missing = append(missing, "memory size of "+g.UUID)
		}
		if !g.Lost && g.Procs == nil {
			missing = append(missing, "processes of "+g.UUID)
		}
	}
	d.mu.Lock()
	d.missing = missing
	d.mu.Unlock()
	return inv, nil
}

// GPUs implements Devices.
func (d *NVMLDevices) GPUs() ([]nodes.GPU, error) {
	inv, err := d.read()
	if err != nil {
		return nil, err
	}
	if len(inv.GPUs) == 0 && inv.CountErr != "" {
		return nil, errors.New(inv.CountErr)
	}
	var out []nodes.GPU
	for _, g := range inv.GPUs {
		if g.UUID == "" {
			continue // lost before it was ever read: nobody can name it
		}
		if !g.MIG {
			out = append(out, nodes.GPU{UUID: g.UUID, Index: g.Index, Name: g.Name, MemoryBytes: value(g.MemoryBytes), Island: g.Island})
			continue
		}
		for _, in := range g.Instances {
			out = append(out, nodes.GPU{
				UUID: in.UUID, Index: g.Index, Name: fmt.Sprintf("%s MIG %d", g.Name, in.GPUInstance),
				MemoryBytes: value(in.MemoryBytes), Island: g.Island,
			})
		}
	}
	return out, nil
}

// Read implements Devices.
func (d *NVMLDevices) Read() ([]DeviceReading, error) {
	inv, err := d.read()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []DeviceReading
	for _, g := range inv.GPUs {
		r := DeviceReading{
			UUID: g.UUID, UsedBytes: g.UsedBytes, UtilPercent: g.UtilPercent, Lost: g.Lost,
			XID: d.xid[g.UUID], ProcsUnknown: g.Procs == nil,
		}
		if g.Lost || g.UUID == "" {
			r.Lost = true
		} else {
			r.Err = g.Err
		}
		if !g.MIG {
			for _, p := range g.Procs {
				r.Procs = append(r.Procs, DeviceProc{PID: p.PID, UsedBytes: p.UsedBytes})
			}
			out = append(out, r)
			continue
		}
		for _, in := range g.Instances {
			ri := r
			ri.UUID, ri.UsedBytes = in.UUID, in.UsedBytes
			for _, p := range g.Procs {
				if p.GPUInstance == in.GPUInstance {
					ri.Procs = append(ri.Procs, DeviceProc{PID: p.PID, UsedBytes: p.UsedBytes})
				}
			}
			out = append(out, ri)
		}
	}
	return out, nil
}

func value(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}

// Env implements Devices.
func (d *NVMLDevices) Env(uuids []string) map[string]string {
	return map[string]string{"CUDA_VISIBLE_DEVICES": strings.Join(uuids, ",")}
}

// Missing implements Devices.
func (d *NVMLDevices) Missing() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.missing...)
}
