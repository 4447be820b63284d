package trainer

import (
	"errors"
	"fmt"
	"strings"

	"sluice/nodes/simgpu"
)

// devices are the simulated GPUs this rank holds; none is fine.
type devices struct {
	cfg  Config
	ctxs []*simgpu.Context
}

// openDevices attaches the GPUs that the environment names, allocates, and
// activates them: another active holder, or too little memory, is an error.
func openDevices(cfg Config) (*devices, error) {
	d := &devices{cfg: cfg}
	dir, list, holder := cfg.Getenv(simgpu.EnvDir), cfg.Getenv(simgpu.EnvDevices), cfg.Getenv(simgpu.EnvHolder)
	if dir == "" || list == "" {
		return d, nil
	}
	if holder == "" {
		return nil, fmt.Errorf("%w: %s must name the holder", simgpu.ErrBadEnv, simgpu.EnvHolder)
	}
	for uuid := range strings.SplitSeq(list, ",") {
		dev, err := simgpu.Open(dir, strings.TrimSpace(uuid))
		if err == nil {
			var c *simgpu.Context
			if c, err = dev.Attach(holder); err == nil {
				d.ctxs = append(d.ctxs, c)
			}
		}
		if err != nil {
			d.close()
			return nil, fmt.Errorf("attaching gpu %s: %w", uuid, err)
		}
	}
	if err := d.activate(); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// activate takes memory first: an active device without it would be a lie.
func (d *devices) activate() error {
	for _, c := range d.ctxs {
		if err := c.SetAllocated(d.cfg.ActiveBytes); err != nil {
			return fmt.Errorf("activating gpu %s: %w", c.Spec().UUID, err)
		}
	}
	for _, c := range d.ctxs {
		if err := c.Activate(); err != nil {
			return fmt.Errorf("activating gpu %s: %w", c.Spec().UUID, err)
		}
	}
	return nil
}

// quiet leaves the devices to others, resident memory kept.
func (d *devices) quiet() error {
	for _, c := range d.ctxs {
		if err := errors.Join(c.Deactivate(), c.SetAllocated(d.cfg.ResidentBytes)); err != nil {
			return fmt.Errorf("leaving gpu %s: %w", c.Spec().UUID, err)
		}
	}
	return nil
}

func (d *devices) close() {
	for _, c := range d.ctxs {
		c.Close() // the process's end would do it too
	}
	d.ctxs = nil
}
