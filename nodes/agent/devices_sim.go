package agent

import (
	"strings"

	"sluice/nodes"
	"sluice/nodes/simgpu"
)

// SimDevices are simulated GPUs.
type SimDevices struct {
	dir   string
	uuids map[string]bool // nil: all of the directory
}

// NewSimDevices uses the GPUs of a simgpu directory, or of them only those
// named (several agents of one machine share a directory).
func NewSimDevices(dir string, uuids ...string) *SimDevices {
	d := &SimDevices{dir: dir}
	if len(uuids) > 0 {
		d.uuids = make(map[string]bool, len(uuids))
		for _, u := range uuids {
			d.uuids[u] = true
		}
	}
	return d
}

func (d *SimDevices) ours(uuid string) bool { return d.uuids == nil || d.uuids[uuid] }

// GPUs implements Devices.
func (d *SimDevices) GPUs() ([]nodes.GPU, error) {
	specs, err := simgpu.List(d.dir)
	if err != nil {
		return nil, err
	}
	var out []nodes.GPU
	for _, s := range specs {
		if d.ours(s.UUID) {
			out = append(out, nodes.GPU{UUID: s.UUID, Index: len(out), Name: s.Name, MemoryBytes: s.MemoryBytes, Island: s.Island})
		}
	}
	return out, nil
}

// Read implements Devices.
func (d *SimDevices) Read() ([]DeviceReading, error) {
	all, err := simgpu.Read(d.dir)
	if err != nil {
		return nil, err
	}
	var out []DeviceReading
	for _, r := range all {
		if !d.ours(r.UUID) {
			continue
		}
		used, util := r.UsedBytes, 0
		dr := DeviceReading{UUID: r.UUID, UsedBytes: &used, UtilPercent: &util, Lost: r.Lost, XID: r.XID}
		for _, p := range r.Procs {
			bytes, active := p.Bytes, p.Active
			if active {
				util = 100
			}
			dr.Procs = append(dr.Procs, DeviceProc{PID: p.PID, UsedBytes: &bytes, Active: &active})
		}
		out = append(out, dr)
	}
	return out, nil
}

// Env implements Devices.
func (d *SimDevices) Env(uuids []string) map[string]string {
	return map[string]string{simgpu.EnvDir: d.dir, simgpu.EnvDevices: strings.Join(uuids, ",")}
}

// Missing implements Devices: a simulated GPU tells everything.
func (d *SimDevices) Missing() []string { return nil }
