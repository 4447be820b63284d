package fill

import (
	"sluice/nodes/registry"
)

// learned is a duration that starts from a guess and follows what is seen: the
// first sight counts half, later ones a quarter.
type learned struct {
	ms   float64
	seen int
}

func (l *learned) observe(ms int64) {
	if ms < 0 {
		return
	}
	w := 0.25
	if l.seen == 0 {
		w = 0.5
	}
	l.ms += w * (float64(ms) - l.ms)
	l.seen++
}

func (l *learned) valueMs(guessMs int64) int64 {
	if l.seen == 0 {
		return guessMs
	}
	return int64(l.ms + 0.5)
}

func (l *learned) note(ms, guessMs int64) {
	if l.seen == 0 {
		l.ms = float64(guessMs)
	}
	l.observe(ms)
}

// modelMemo is what the planner remembers of a model.
type modelMemo struct {
	// sinceMs[k] is since when fewer than k+1 replicas were needed; 0 when they are.
	sinceMs        []int64
	rolloutSinceMs int64
	missingSinceMs int64
	start, wake    learned
	burst          learned
	replicas       map[string]replicaMemo
}

type replicaMemo struct {
	phase   registry.ReplicaPhase
	sinceMs int64
	readyMs int64 // when it last became ready
}

// jobMemo is what the planner remembers of a job.
type jobMemo struct {
	phase     registry.JobPhase
	begun     int64 // the generation whose start was measured
	sinceMs   int64
	decidedMs int64 // of the stop in progress
	rung      registry.Rung
	restart   learned
	stop      learned
	yield     learned
	resume    learned
	// creditMs is what the job may still spend on returns; see Config.SwitchShare.
	creditMs  float64
	creditAt  int64
	growing   bool
	promise   []string // GPUs kept for it until promiseMs
	promiseMs int64
}

type fleetMemo struct {
	restart, stop, yield, resume learned
	stay                         learned
	drain                        learned // of a replica, its requests ended
	creditGPUMs                  float64
	creditAtMs                   int64
	creditGPUs                   int // the most GPUs seen: those that the credit is for
}

// learn compares the facts with what was last seen and takes durations from
// the differences. Facts carry the times, so a plan more or less changes nothing.
func (p *Planner) learn(v *View, nowMs int64) {
	for i := range p.floor.jobs {
		j := &p.floor.jobs[i]
		m := p.jobs[j.name]
		if m == nil {
			m = &jobMemo{phase: j.job.Phase, sinceMs: j.job.SinceMs, creditAt: nowMs,
				creditMs: float64(p.cfg.SwitchBurst * p.cfg.RestartMs)}
			if m.begun = j.job.Generation; j.job.Phase == registry.JobPreparing || j.job.Phase == registry.JobStarting {
				m.begun-- // its start is still to be seen
			}
			p.jobs[j.name] = m
		}
		j.memo = m
		p.learnJob(m, j.job)
	}
	if len(p.jobs) > len(p.floor.jobs) {
		for name := range p.jobs {
			if _, ok := p.floor.jobIndex[name]; !ok {
				delete(p.jobs, name)
			}
		}
	}
	p.learnReplicas(v.State)
	p.refill(nowMs)
}

func (p *Planner) learnJob(m *jobMemo, j *registry.Job) {
	if j.Stop != nil && j.Phase == registry.JobStopping {
		m.decidedMs, m.rung = j.Stop.DecidedMs, j.Stop.Rung
		if m.phase == registry.JobRunning && (m.rung == registry.RungYield || m.rung == registry.RungShrink || m.rung == registry.RungPause) {
			p.fleet.stay.note(j.Stop.DecidedMs-m.sinceMs, p.cfg.StayMs)
		}
	}
	if m.phase == j.Phase && m.sinceMs == j.SinceMs {
		return
	}
	tookMs := j.SinceMs - m.sinceMs
	switch {
	case j.Phase == registry.JobRunning && m.phase == registry.JobResuming:
		m.resume.note(tookMs, p.cfg.ResumeMs)
		p.fleet.resume.note(tookMs, p.cfg.ResumeMs)
	case j.Phase == registry.JobRunning && j.Generation != m.begun:
		m.begun = j.Generation
		m.restart.note(j.SinceMs-j.GenStartMs, p.cfg.RestartMs)
		p.fleet.restart.note(j.SinceMs-j.GenStartMs, p.cfg.RestartMs)
		m.growing = false
	case j.Phase == registry.JobYielded && m.decidedMs > 0:
		m.yield.note(j.SinceMs-m.decidedMs, p.cfg.YieldMs)
		p.fleet.yield.note(j.SinceMs-m.decidedMs, p.cfg.YieldMs)
	case (j.Phase == registry.JobPaused || j.Phase == registry.JobPreparing) && m.phase == registry.JobReleasing && m.decidedMs > 0:
		m.stop.note(j.SinceMs-m.decidedMs, p.cfg.StopMs)
		p.fleet.stop.note(j.SinceMs-m.decidedMs, p.cfg.StopMs)
	}
	if j.Phase == registry.JobPaused || j.Phase == registry.JobPending {
		m.growing = false
	}
	if j.Phase != registry.JobStopping && j.Phase != registry.JobReleasing {
		m.decidedMs = 0
	}
	m.phase, m.sinceMs = j.Phase, j.SinceMs
}

func (p *Planner) learnReplicas(st *registry.State) {
	for name := range p.models {
		if st.Models[name] == nil {
			delete(p.models, name)
		}
	}
	for _, r := range p.floor.replicas {
		m := p.model(r.Model)
		was, known := m.replicas[r.ID]
		now := replicaMemo{phase: r.Phase, sinceMs: r.SinceMs, readyMs: was.readyMs}
		if known && was.phase != r.Phase {
			switch {
			case r.Phase == registry.ReplicaReady && was.phase == registry.ReplicaStarting:
				m.start.note(r.SinceMs-was.sinceMs, p.cfg.StartMs)
			case r.Phase == registry.ReplicaReady && was.phase == registry.ReplicaWaking:
				m.wake.note(r.SinceMs-was.sinceMs, p.cfg.WakeMs)
			case r.Phase == registry.ReplicaAsleep && was.phase == registry.ReplicaDraining:
				p.fleet.drain.note(r.SinceMs-was.sinceMs, p.cfg.DrainMs)
			case was.phase == registry.ReplicaReady:
				m.burst.note(r.SinceMs-was.sinceMs, p.cfg.BurstMs)
			}
		}
		m.replicas[r.ID] = now
	}
	for _, m := range p.models {
		for id := range m.replicas {
			if st.Replicas[id] == nil {
				delete(m.replicas, id)
			}
		}
	}
}

func (p *Planner) model(name string) *modelMemo {
	m := p.models[name]
	if m == nil {
		m = &modelMemo{replicas: map[string]replicaMemo{}}
		p.models[name] = m
	}
	return m
}

// refill lets time earn credit for returns.
func (p *Planner) refill(nowMs int64) {
	share, burst := p.cfg.SwitchShare, float64(p.cfg.SwitchBurst)
	for i := range p.floor.jobs {
		m := p.floor.jobs[i].memo
		most := burst * float64(max(p.restartMs(m), p.cfg.RestartMs))
		m.creditMs = min(most, m.creditMs+share*float64(nowMs-m.creditAt))
		m.creditAt = nowMs
	}
	gpus := float64(len(p.floor.gpus))
	each := burst * float64(p.cfg.RestartMs)
	// GPUs come with a full credit of their own: a planner that starts before
	// the agents are back would have none else.
	// Those that go and come again bring none.
	came := max(0, len(p.floor.gpus)-p.fleet.creditGPUs)
	p.fleet.creditGPUs += came
	p.fleet.creditGPUMs = min(each*float64(p.fleet.creditGPUs),
		p.fleet.creditGPUMs+each*float64(came)+share*gpus*float64(nowMs-p.fleet.creditAtMs))
	p.fleet.creditAtMs = nowMs
}

// mayReturn tells whether a return of priceMs on gpus GPUs is within the cap
// on switches.
func (p *Planner) mayReturn(m *jobMemo, priceMs int64, gpus int) bool {
	return m.creditMs >= float64(priceMs) && p.fleet.creditGPUMs >= float64(priceMs)*float64(gpus)
}

func (p *Planner) spendReturn(m *jobMemo, priceMs int64, gpus int) {
	m.creditMs -= float64(priceMs)
	p.fleet.creditGPUMs -= float64(priceMs) * float64(gpus)
}

func (p *Planner) restartMs(m *jobMemo) int64 {
	return m.restart.valueMs(p.fleet.restart.valueMs(p.cfg.RestartMs))
}

func (p *Planner) stopMs(m *jobMemo) int64 {
	return m.stop.valueMs(p.fleet.stop.valueMs(p.cfg.StopMs))
}

func (p *Planner) yieldMs(m *jobMemo) int64 {
	return m.yield.valueMs(p.fleet.yield.valueMs(p.cfg.YieldMs))
}

func (p *Planner) resumeMs(m *jobMemo) int64 {
	return m.resume.valueMs(p.fleet.resume.valueMs(p.cfg.ResumeMs))
}
