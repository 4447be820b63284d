//go:build cgo && linux

package nvml

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// notAvailable is how NVML spells it in a 64-bit value.
const notAvailable = math.MaxUint64

// detail reads everything of one GPU. The result's code is SUCCESS, or the
// first sign that the GPU is lost, after which no more is asked.
func (r *Reader) detail(d *device) (GPU, nvml.Return) {
	g := GPU{UUID: d.uuid, Index: d.last.Index}
	steps := []func(nvml.Device, *GPU) nvml.Return{
		r.readName, r.readPCI, r.readMIG, r.readMemory, r.readUtil, r.readPower, r.readTemperature, r.readProcs,
	}
	for _, step := range steps {
		switch ret := step(d.handle, &g); ret {
		case nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_FOUND, nvml.ERROR_NO_PERMISSION:
			// An ordinary answer: the value stays nil.
		case nvml.ERROR_GPU_IS_LOST:
			return g, ret
		default:
			g.Err = text(ret)
		}
	}
	return g, nvml.SUCCESS
}

func (r *Reader) readName(h nvml.Device, g *GPU) (ret nvml.Return) {
	if r.have.name {
		g.Name, ret = h.GetName()
	}
	return ret
}

func (r *Reader) readPCI(h nvml.Device, g *GPU) nvml.Return {
	if !r.have.pci {
		return nvml.SUCCESS
	}
	info, ret := h.GetPciInfo()
	if ret == nvml.SUCCESS {
		g.PCI = pciAddress(info)
	}
	return ret
}

// pciAddress is domain:bus:device.0, the same for both ends of a link.
func pciAddress(p nvml.PciInfo) string {
	return fmt.Sprintf("%08x:%02x:%02x.0", p.Domain, p.Bus, p.Device)
}

func (r *Reader) readMIG(h nvml.Device, g *GPU) nvml.Return {
	if !r.have.mig {
		return nvml.SUCCESS
	}
	mode, _, ret := h.GetMigMode()
	if ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		return ret
	}
	g.MIG = true
	if !r.have.migUUIDs {
		return nvml.SUCCESS
	}
	n, ret := h.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return ret
	}
	for i := range min(n, MaxInstances) {
		m, ret := h.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue // an empty place
		}
		if ret != nvml.SUCCESS {
			return ret
		}
		in, ret := r.instance(m)
		if ret != nvml.SUCCESS {
			return ret
		}
		g.Instances = append(g.Instances, in)
	}
	return nvml.SUCCESS
}

func (r *Reader) instance(m nvml.Device) (in Instance, ret nvml.Return) {
	in.GPUInstance, in.Compute = -1, -1
	if in.UUID, ret = m.GetUUID(); ret != nvml.SUCCESS {
		return in, ret
	}
	var unit GPU
	if ret := r.memoryOf(m, &unit); ret == nvml.ERROR_GPU_IS_LOST {
		return in, ret
	}
	in.MemoryBytes, in.UsedBytes = unit.MemoryBytes, unit.UsedBytes
	if r.have.instanceIDs {
		if id, ret := m.GetGpuInstanceId(); ret == nvml.SUCCESS {
			in.GPUInstance = id
		}
		if id, ret := m.GetComputeInstanceId(); ret == nvml.SUCCESS {
			in.Compute = id
		}
	}
	return in, nvml.SUCCESS
}

// readMemory also knows unified memory: a whole GPU that says "not supported"
// shares the system's memory, whose size is then the machine's.
func (r *Reader) readMemory(h nvml.Device, g *GPU) nvml.Return {
	ret := r.memoryOf(h, g)
	if ret == nvml.ERROR_NOT_SUPPORTED && !g.MIG {
		if total, ok := systemMemoryBytes(); ok {
			g.Unified, g.MemoryBytes = true, &total
		}
	}
	return ret
}

// memoryOf fills the memory of a GPU or an instance. A total of 0 is no
// memory size, whatever the code says.
func (r *Reader) memoryOf(h nvml.Device, g *GPU) nvml.Return {
	if r.have.memory2 {
		m, ret := h.GetMemoryInfo_v2()
		if ret == nvml.SUCCESS && m.Total != 0 {
			g.MemoryBytes, g.UsedBytes, g.ReservedBytes = size(m.Total), size(m.Used), size(m.Reserved)
			return ret
		}
		if ret == nvml.ERROR_GPU_IS_LOST {
			return ret
		}
	}
	if !r.have.memory {
		return nvml.SUCCESS
	}
	m, ret := h.GetMemoryInfo()
	if ret == nvml.SUCCESS && m.Total != 0 {
		g.MemoryBytes, g.UsedBytes = size(m.Total), size(m.Used)
	}
	return ret
}

func size(v uint64) *int64 {
	if v > math.MaxInt64 {
		return nil // not available, in NVML's spelling
	}
	n := int64(v)
	return &n
}

func whole(v uint32) *int {
	n := int(v)
	return &n
}

func (r *Reader) readUtil(h nvml.Device, g *GPU) nvml.Return {
	if !r.have.util {
		return nvml.SUCCESS
	}
	u, ret := h.GetUtilizationRates()
	if ret == nvml.SUCCESS && u.Gpu <= 100 {
		g.UtilPercent = whole(u.Gpu)
	}
	return ret
}

func (r *Reader) readPower(h nvml.Device, g *GPU) nvml.Return {
	if !r.have.power {
		return nvml.SUCCESS
	}
	mw, ret := h.GetPowerUsage()
	if ret == nvml.SUCCESS && mw != math.MaxUint32 {
		g.PowerMilliwatts = whole(mw)
	}
	return ret
}

func (r *Reader) readTemperature(h nvml.Device, g *GPU) nvml.Return {
	if !r.have.temperature {
		return nvml.SUCCESS
	}
	c, ret := h.GetTemperature(nvml.TEMPERATURE_GPU)
	if ret == nvml.SUCCESS && c < 1000 {
		g.TemperatureC = whole(c)
	}
	return ret
}

func (r *Reader) readProcs(h nvml.Device, g *GPU) nvml.Return {
	if !r.have.procs {
		return nvml.SUCCESS
	}
	list, ret := h.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return ret
	}
	g.Procs = make([]Proc, 0, len(list))
	for _, p := range list {
		out := Proc{PID: int(p.Pid), GPUInstance: -1}
		if p.UsedGpuMemory != notAvailable {
			out.UsedBytes = size(p.UsedGpuMemory)
		}
		if p.GpuInstanceId != math.MaxUint32 {
			out.GPUInstance = int(p.GpuInstanceId)
		}
		g.Procs = append(g.Procs, out)
	}
	return ret
}

// systemMemoryBytes is the machine's memory, from /proc/meminfo.
func systemMemoryBytes() (int64, bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib int64
		if rest, ok := strings.CutPrefix(lines.Text(), "MemTotal:"); ok {
			n, err := fmt.Sscanf(rest, "%d kB", &kib)
			return kib << 10, err == nil && n == 1 && kib > 0
		}
	}
	return 0, false
}

// findIslands reads links and topology of all GPUs that have a handle. The
// wiring does not change while a machine runs, so this is done only when a new
// GPU appears.
func (r *Reader) findIslands() {
	var gpus []island
	var handles []nvml.Device
	for _, d := range r.known {
		if d.handle == nil {
			continue
		}
		a := island{uuid: d.uuid}
		if r.have.pci {
			if p, ret := d.handle.GetPciInfo(); ret == nvml.SUCCESS {
				a.pci = pciAddress(p)
			}
		}
		if r.have.links {
			a.links = farEnds(d.handle)
		}
		gpus, handles = append(gpus, a), append(handles, d.handle)
	}
	for i := range gpus {
		if !r.have.topology || len(gpus[i].links) > 0 {
			continue
		}
		for j := range i {
			level, ret := handles[i].GetTopologyCommonAncestor(handles[j])
			if ret == nvml.SUCCESS && level <= nvml.TOPOLOGY_MULTIPLE {
				gpus[i].near = append(gpus[i].near, j)
			}
		}
	}
	r.island = islands(gpus)
}

// farEnds are the PCI addresses at the other ends of a GPU's active NVLinks.
func farEnds(h nvml.Device) (ends []string) {
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := h.GetNvLinkState(link)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			break // past the last one
		}
		if ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue
		}
		p, ret := h.GetNvLinkRemotePciInfo(link)
		if ret == nvml.SUCCESS && (p.Bus != 0 || p.Domain != 0 || p.Device != 0) && p.Bus <= 0xff {
			ends = append(ends, pciAddress(p))
		}
	}
	return ends
}
