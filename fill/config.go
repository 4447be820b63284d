package fill

import (
	"errors"
	"fmt"
)

// ErrConfig is wrapped by every error of Config.Validate.
var ErrConfig = errors.New("fill: config out of range")

// Limits of one plan. What goes beyond waits for the next plan, a few hundred
// milliseconds later.
const (
	maxTakesPerModel  = 64 // replicas placed for one model in one plan
	maxRepairs        = 32 // attempts to spare a victim of one reclaim
	maxVictimsInSpan  = 8  // holders whose subsets are searched exactly in one island: 256 subsets
	maxSeeds          = 16 // gangs tried as the first victim of a reclaim of several replicas
	maxQuotaVictims   = 64 // gangs stopped in one plan for a tenant's share
	maxLevels         = 1024
	maxWaitingEntries = 4096
)

// Config sets times and prices of the planner. Start from Default.
type Config struct {
	// PlanEveryMs is the pause between two plans without a release between them.
	PlanEveryMs int64 `json:"planEveryMs"`
	// DeadlineMs is by when a missing replica must serve where the headroom
	// names no horizon: a way to get a GPU that takes longer is late, and used
	// only when no other exists.
	DeadlineMs int64 `json:"deadlineMs"`
	// DownAfterMs is the least time for which a surplus must persist. The ski
	// rental makes it longer where giving back and taking again costs more.
	DownAfterMs int64 `json:"downAfterMs"`
	// RolloutWaitMs is how long a new version waits for a GPU of its own before
	// an old replica is stopped to make room.
	RolloutWaitMs int64 `json:"rolloutWaitMs"`

	// StartMs, WakeMs, DrainMs, YieldMs, StopMs, ResumeMs and RestartMs are what
	// these take until learned from this fleet: engine start, engine wake,
	// drain, yield, stop with checkpoint, resume in place, and prepare to first
	// step of a generation.
	StartMs   int64 `json:"startMs"`
	WakeMs    int64 `json:"wakeMs"`
	DrainMs   int64 `json:"drainMs"`
	YieldMs   int64 `json:"yieldMs"`
	StopMs    int64 `json:"stopMs"`
	ResumeMs  int64 `json:"resumeMs"`
	RestartMs int64 `json:"restartMs"`
	// BurstMs and StayMs are how long a replica keeps what it took, and how long
	// a gang keeps what it was given, until learned.
	BurstMs int64 `json:"burstMs"`
	StayMs  int64 `json:"stayMs"`

	// GrowAfterMs is the least time since a gang's start before it grows.
	GrowAfterMs int64 `json:"growAfterMs"`
	// MinRunMs is the least time a gang runs before a tenant's share, not
	// inference, may stop it.
	MinRunMs int64 `json:"minRunMs"`
	// MinWorthMs is the least time for which a GPU must stay with training to be
	// given to it.
	MinWorthMs int64 `json:"minWorthMs"`
	// StarveAfterMs is how long a gang waits before smaller ones behind it are
	// held back so that GPUs gather for it.
	StarveAfterMs int64 `json:"starveAfterMs"`
	// EvictAsleepAfterMs is how long a job waits before a sleeping replica whose
	// memory is in its way is stopped.
	EvictAsleepAfterMs int64 `json:"evictAsleepAfterMs"`
	// YieldTimeoutMs, StopTimeoutMs, DrainTimeoutMs, StartTimeoutMs and
	// ResumeTimeoutMs bound phases whose spec names no limit.
	YieldTimeoutMs  int64 `json:"yieldTimeoutMs"`
	StopTimeoutMs   int64 `json:"stopTimeoutMs"`
	DrainTimeoutMs  int64 `json:"drainTimeoutMs"`
	StartTimeoutMs  int64 `json:"startTimeoutMs"`
	ResumeTimeoutMs int64 `json:"resumeTimeoutMs"`

	// SwitchShare is the part of a gang's time (and of the fleet's GPU time)
	// that returns may spend on switching; SwitchBurst is how many restarts may
	// come at once. Reclaims are never held back.
	SwitchShare float64 `json:"switchShare"`
	SwitchBurst int64   `json:"switchBurst"`
	// ShareSlack is how far above its fair share, as a fraction, a tenant must
	// stay after giving, or nothing is taken from it for another's share.
	ShareSlack float64 `json:"shareSlack"`
}

// Default returns times for real engines and trainers. Starts and restarts are
// the middle of published figures (vLLM loads 30 to 100 s, data-parallel
// restarts 15 to 250 s); all are replaced by what the fleet shows.
func Default() Config {
	return Config{
		PlanEveryMs: 100, DeadlineMs: 10_000, DownAfterMs: 10_000, RolloutWaitMs: 30_000,
		StartMs: 45_000, WakeMs: 1000, DrainMs: 2000, YieldMs: 1000, StopMs: 5000, ResumeMs: 500, RestartMs: 25_000,
		BurstMs: 120_000, StayMs: 600_000,
		GrowAfterMs: 45_000, MinRunMs: 60_000, MinWorthMs: 15_000, StarveAfterMs: 1_800_000, EvictAsleepAfterMs: 60_000,
		YieldTimeoutMs: 10_000, StopTimeoutMs: 30_000, DrainTimeoutMs: 30_000, StartTimeoutMs: 300_000, ResumeTimeoutMs: 10_000,
		SwitchShare: 0.2, SwitchBurst: 4, ShareSlack: 0.25,
	}
}

// Scale returns c with every time divided by speed, for a trace that is played
// speed times faster than it was recorded. Times above 0 stay at or above
// 1 ms. PlanEveryMs and the timeouts stay as they are: they bound processes and
// networks, which run no faster because a trace does. A speed that is not above
// 0 changes nothing.
func (c Config) Scale(speed float64) Config {
	if !(speed > 0) {
		return c
	}
	for _, ms := range []*int64{&c.DeadlineMs, &c.DownAfterMs, &c.RolloutWaitMs,
		&c.StartMs, &c.WakeMs, &c.DrainMs, &c.YieldMs, &c.StopMs, &c.ResumeMs, &c.RestartMs, &c.BurstMs, &c.StayMs,
		&c.GrowAfterMs, &c.MinRunMs, &c.MinWorthMs, &c.StarveAfterMs, &c.EvictAsleepAfterMs} {
		if *ms > 0 {
			*ms = max(1, int64(float64(*ms)/speed+0.5))
		}
	}
	return c
}

// Validate returns nil, or an error that wraps ErrConfig and names the field.
func (c Config) Validate() error {
	times := []struct {
		field string
		ms    int64
	}{
		{"planEveryMs", c.PlanEveryMs}, {"deadlineMs", c.DeadlineMs}, {"startMs", c.StartMs}, {"wakeMs", c.WakeMs},
		{"drainMs", c.DrainMs}, {"yieldMs", c.YieldMs}, {"stopMs", c.StopMs}, {"resumeMs", c.ResumeMs},
		{"restartMs", c.RestartMs}, {"burstMs", c.BurstMs}, {"stayMs", c.StayMs},
		{"yieldTimeoutMs", c.YieldTimeoutMs}, {"stopTimeoutMs", c.StopTimeoutMs}, {"drainTimeoutMs", c.DrainTimeoutMs},
		{"startTimeoutMs", c.StartTimeoutMs}, {"resumeTimeoutMs", c.ResumeTimeoutMs},
	}
	for _, t := range times {
		if t.ms < 1 {
			return fmt.Errorf("%w: %s %d; want at least 1", ErrConfig, t.field, t.ms)
		}
	}
	if min(c.DownAfterMs, c.RolloutWaitMs, c.GrowAfterMs, c.MinRunMs, c.MinWorthMs, c.StarveAfterMs, c.EvictAsleepAfterMs) < 0 {
		return fmt.Errorf("%w: a time is below 0; want 0 or more", ErrConfig)
	}
	if !(c.SwitchShare > 0 && c.SwitchShare <= 1) || c.SwitchBurst < 1 {
		return fmt.Errorf("%w: switchShare %v, switchBurst %d; want above 0 to 1, and at least 1", ErrConfig, c.SwitchShare, c.SwitchBurst)
	}
	if !(c.ShareSlack >= 0) {
		return fmt.Errorf("%w: shareSlack %v; want 0 or more", ErrConfig, c.ShareSlack)
	}
	return nil
}
