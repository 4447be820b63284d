package slo

import (
	"errors"
	"fmt"
)

// ErrConfig is wrapped by every error of Config.Validate and NewTracker.
var ErrConfig = errors.New("slo: config out of range")

// Limits of a Config, so that the memory of a tracker is bounded (a slot takes 5 KB, a step 24 bytes).
const (
	MaxSlots = 1024
	MaxSteps = 1 << 16
)

// Config sets the time scales of a Tracker. Start from Default.
type Config struct {
	SlotMs     int64   `json:"slotMs"`     // length of one slot of the sliding window
	Slots      int     `json:"slots"`      // slots in the window; Slots × SlotMs is the slow burn window
	FastSlots  int     `json:"fastSlots"`  // slots of the fast burn window
	StepMs     int64   `json:"stepMs"`     // resolution of the arrival counts behind the forecast
	Steps      int     `json:"steps"`      // steps remembered; growth is learned over Steps × StepMs
	HalfLifeMs int64   `json:"halfLifeMs"` // half-life of the current arrival rate
	Quantile   float64 `json:"quantile"`   // of demand at the horizon
	ClearMs    int64   `json:"clearMs"`    // a backlog is to be gone within this time
	BurnFast   float64 `json:"burnFast"`   // both burn rates above these limits count as burning
	BurnSlow   float64 `json:"burnSlow"`
}

// Default returns the scales for real time: 5 min of 5 s slots, 30 s fast window, 17 min of 1 s steps.
func Default() Config {
	return Config{
		SlotMs: 5000, Slots: 60, FastSlots: 6, // a burst shows in the fast window before it ends
		StepMs: 1000, Steps: 1024, HalfLifeMs: 15_000, // 5 s took the noise of 2 requests/s for growth: 7 times the switches, a third more replicas
		Quantile: 0.8, ClearMs: 10_000, // an overrun lasts one horizon, and objectives have quantiles of their own
		BurnFast: 2, BurnSlow: 1,
	}
}

// Scale returns c with every time divided by speed, for a trace that is played speed times faster than it was
// recorded. Times stay at or above 1 ms. A speed that is not above 0 changes nothing.
func (c Config) Scale(speed float64) Config {
	if !(speed > 0) {
		return c
	}
	div := func(ms int64) int64 { return max(1, int64(float64(ms)/speed+0.5)) }
	c.SlotMs, c.StepMs, c.HalfLifeMs, c.ClearMs = div(c.SlotMs), div(c.StepMs), div(c.HalfLifeMs), div(c.ClearMs)
	return c
}

// Validate returns nil, or an error that wraps ErrConfig and names the field.
func (c Config) Validate() error {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("%w: %s %v; want %s", ErrConfig, field, value, want)
	}
	switch {
	case c.SlotMs < 1:
		return bad("slotMs", c.SlotMs, "at least 1")
	case c.Slots < 2 || c.Slots > MaxSlots:
		return bad("slots", c.Slots, fmt.Sprintf("2 to %d", MaxSlots))
	case c.FastSlots < 1 || c.FastSlots >= c.Slots:
		return bad("fastSlots", c.FastSlots, "1 to slots-1")
	case c.StepMs < 1:
		return bad("stepMs", c.StepMs, "at least 1")
	case c.Steps < 16 || c.Steps > MaxSteps:
		return bad("steps", c.Steps, fmt.Sprintf("16 to %d", MaxSteps))
	case c.HalfLifeMs < c.StepMs:
		return bad("halfLifeMs", c.HalfLifeMs, "at least stepMs")
	case !(c.Quantile >= 0.5 && c.Quantile < 1):
		return bad("quantile", c.Quantile, "0.5 to below 1")
	case c.ClearMs < 1:
		return bad("clearMs", c.ClearMs, "at least 1")
	case !(c.BurnFast > 0) || !(c.BurnSlow > 0):
		return bad("burnFast, burnSlow", [2]float64{c.BurnFast, c.BurnSlow}, "above 0")
	}
	return nil
}
