package engine

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"sluice/nodes/simgpu"
)

// onGPUs makes simulated GPUs of 80 bytes and this process one of holder's.
func onGPUs(t *testing.T, holder string, uuids ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "gpus")
	for _, u := range uuids {
		if err := simgpu.Create(dir, []simgpu.Spec{{UUID: u, MemoryBytes: 80}}); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(simgpu.EnvDir, dir)
	t.Setenv(simgpu.EnvDevices, strings.Join(uuids, ","))
	t.Setenv(simgpu.EnvHolder, holder)
	return dir
}

func other(t *testing.T, dir, uuid string, bytes int64) *simgpu.Context {
	t.Helper()
	dev, err := simgpu.Open(dir, uuid)
	if err != nil {
		t.Fatal(err)
	}
	c, err := dev.Attach("trainer")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetAllocated(bytes); err != nil {
		t.Fatal(err)
	}
	return c
}

// gpuState is "bytes/active" of the engine on each GPU.
func gpuState(t *testing.T, dir string) string {
	t.Helper()
	readings, err := simgpu.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range readings {
		for _, p := range r.Procs {
			if p.Holder == "engine" {
				out = append(out, fmt.Sprintf("%d/%v", p.Bytes, p.Active))
			}
		}
	}
	return strings.Join(out, " ")
}

// A wake-up gets one GPU and not the other: nothing of it stays, the engine is
// asleep and usable once there is room.
func TestCase_FILL_20_WakeUpFailsHalfWay(t *testing.T) {
	dir := onGPUs(t, "engine", "GPU-0", "GPU-1")
	cfg := fast()
	cfg.ActiveBytes, cfg.ResidentBytes = 60, 5
	s := startHealthy(t, cfg)
	if got := gpuState(t, dir); got != "60/true 60/true" {
		t.Fatalf("awake: %s", got)
	}
	s.postOK("/sleep", "", nil)
	if got := gpuState(t, dir); got != "5/false 5/false" {
		t.Fatalf("asleep: %s", got)
	}
	trainer := other(t, dir, "GPU-1", 26)
	for range 2 {
		if status, body := s.post("/wake_up", ""); status != 500 || !strings.Contains(body, "out of memory") {
			t.Fatalf("wake up without room: %d %s", status, body)
		}
		if got := gpuState(t, dir); got != "5/false 5/false" {
			t.Fatalf("after the failure: %s", got)
		}
		if _, body := s.get("/is_sleeping"); body != `{"is_sleeping":true}` {
			t.Fatalf("is_sleeping %s", body)
		}
	}
	// Room, but the trainer still computes: the first GPU is given back too.
	if err := trainer.SetAllocated(1); err != nil {
		t.Fatal(err)
	}
	if err := trainer.Activate(); err != nil {
		t.Fatal(err)
	}
	if status, body := s.post("/wake_up", ""); status != 500 || !strings.Contains(body, "another active holder") {
		t.Fatalf("wake up beside an active holder: %d %s", status, body)
	}
	if got := gpuState(t, dir); got != "5/false 5/false" {
		t.Fatalf("after the second failure: %s", got)
	}
	if err := trainer.Close(); err != nil {
		t.Fatal(err)
	}
	s.postOK("/wake_up", "", nil)
	if got := gpuState(t, dir); got != "60/true 60/true" {
		t.Fatalf("awake again: %s", got)
	}
	s.postOK("/v1/completions", `{"model":"sim","prompt":"x"}`, nil)
	// Level 2 keeps nothing.
	s.postOK("/sleep?level=2", "", nil)
	if got := gpuState(t, dir); got != "0/false 0/false" {
		t.Fatalf("deep asleep: %s", got)
	}
}

func TestStartWithoutMemoryFails(t *testing.T) {
	dir := onGPUs(t, "engine", "GPU-0")
	trainer := other(t, dir, "GPU-0", 30)
	cfg := fast()
	cfg.ActiveBytes, cfg.ResidentBytes = 60, 5
	if err := Run(t.Context(), cfg); !errors.Is(err, simgpu.ErrOutOfMemory) {
		t.Errorf("start without memory: %v", err)
	}
	if err := errors.Join(trainer.SetAllocated(1), trainer.Activate()); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), cfg); !errors.Is(err, simgpu.ErrBusy) {
		t.Errorf("start beside an active holder: %v", err)
	}
	if got := gpuState(t, dir); got != "" {
		t.Errorf("left on the gpu: %s", got)
	}
}

// A real engine ends with an error at its next kernel on a lost device.
func TestLostGPUEndsTheEngine(t *testing.T) {
	dir := onGPUs(t, "engine", "GPU-0")
	cfg := fast()
	cfg.ActiveBytes, cfg.ResidentBytes = 60, 5
	cfg.OnListen = func(string) {
		if err := simgpu.SetLost(dir, "GPU-0", true); err != nil {
			t.Error(err)
		}
	}
	if err := Run(t.Context(), cfg); !errors.Is(err, simgpu.ErrLost) {
		t.Errorf("lost gpu: %v", err)
	}
}
