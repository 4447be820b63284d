package engine

import (
	"context"
	"fmt"
	"time"

	"sluice/nodes/simgpu"
)

// gpus are the simulated GPUs of this process; none is fine.
type gpus []*simgpu.Context

// wake maps bytes on every GPU, then becomes active on every one. If anything
// fails, all of them are back at rest with restBytes.
func (g gpus) wake(bytes, restBytes int64) error {
	for i, c := range g {
		if err := c.SetAllocated(bytes); err != nil {
			return fmt.Errorf("map %d bytes: %w", bytes, g[:i].undo(restBytes, err))
		}
	}
	for _, c := range g {
		if err := c.Activate(); err != nil {
			return fmt.Errorf("activate: %w", g.undo(restBytes, err))
		}
	}
	return nil
}

// undo puts g to rest after cause, and returns cause.
func (g gpus) undo(restBytes int64, cause error) error {
	if err := g.rest(restBytes); err != nil {
		return fmt.Errorf("%w; and giving back failed: %v", cause, err)
	}
	return cause
}

// rest ends computing and keeps bytes mapped. It does as much as it can and
// returns the first error.
func (g gpus) rest(bytes int64) error {
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	for _, c := range g {
		keep(c.Deactivate())
		keep(c.SetAllocated(bytes))
	}
	return first
}

// gpuCheckEvery is how soon a lost GPU ends the process, in real time.
const gpuCheckEvery = 500 * time.Millisecond

// watch returns the first error of a device, nil once ctx ended.
func (g gpus) watch(ctx context.Context) error {
	if len(g) == 0 {
		return nil
	}
	tick := time.NewTicker(gpuCheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			for _, c := range g {
				if err := c.Check(); err != nil {
					return fmt.Errorf("engine: gpu: %w", err)
				}
			}
		}
	}
}

func (g gpus) close() {
	for _, c := range g {
		_ = c.Close()
	}
}
