package gateway

import (
	"maps"
	"slices"
	"sync"

	"sluice/slo"
)

// meterRefreshMs is how old a headroom may be before it is computed again.
const meterRefreshMs = 100

// MeterModel is what a Meter must know of a model, beside its samples.
type MeterModel struct {
	slo.Model
	ReadyReplicas int
	// HorizonMs is the time in which more capacity could arrive: by waking a
	// replica where the model can sleep, else by a cold start.
	HorizonMs int64
	// ColdHorizonMs is the time of a cold start; 0 when HorizonMs is that.
	ColdHorizonMs int64
	// QueueDepth is the router's queue.
	QueueDepth int
}

// Meter collects the samples of one gateway and answers with headroom. It is an
// Observer. Safe for concurrent use; Arrived and Finished cost about a
// microsecond under one lock, far below a request.
type Meter struct {
	cfg      slo.Config
	mu       sync.Mutex
	trackers map[string]*slo.Tracker // guarded by mu
	models   map[string]MeterModel   // guarded by mu
	last     map[string]slo.Headroom // guarded by mu; never changed after it was set
	lastMs   int64                   // guarded by mu
}

// NewMeter returns a meter that knows no model yet.
func NewMeter(cfg slo.Config) *Meter {
	return &Meter{cfg: cfg, trackers: map[string]*slo.Tracker{}, models: map[string]MeterModel{}}
}

// SetModels tells which models there are. What was learned of a model that
// stays is kept; a model that left is forgotten, with its memory. A model whose
// objectives are invalid is reported and left as it was.
func (m *Meter) SetModels(models []MeterModel) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var first error
	next := map[string]MeterModel{}
	for _, mm := range models {
		t := m.trackers[mm.Name]
		var err error
		if t == nil {
			t, err = slo.NewTracker(mm.Model, m.cfg)
		} else if old := m.models[mm.Name]; !sameTracked(&old.Model, &mm.Model) {
			err = t.SetModel(mm.Model)
		}
		if err != nil {
			if first == nil {
				first = err
			}
			continue
		}
		m.trackers[mm.Name] = t
		next[mm.Name] = mm
	}
	maps.DeleteFunc(m.trackers, func(name string, _ *slo.Tracker) bool { _, ok := next[name]; return !ok })
	m.models = next
	return first
}

func sameTracked(a, b *slo.Model) bool {
	return a.Name == b.Name && a.MinReplicas == b.MinReplicas && a.MaxInFlight == b.MaxInFlight && slices.Equal(a.Objectives, b.Objectives)
}

// Arrived counts a request of a known model; others are not kept.
func (m *Meter) Arrived(model string, _ slo.Class, nowMs int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.trackers[model]; t != nil {
		t.Arrived(nowMs)
	}
}

// Finished takes the sample of a request that ended.
func (m *Meter) Finished(s slo.Sample) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.trackers[s.Model]; t != nil {
		t.Finished(s, s.ArrivalMs+int64(s.E2EMs))
	}
}

// Headroom answers for every model. The map is shared: do not change it.
func (m *Meter) Headroom(nowMs int64) map[string]slo.Headroom {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last != nil && nowMs-m.lastMs < meterRefreshMs {
		return m.last
	}
	out := make(map[string]slo.Headroom, len(m.trackers))
	for name, t := range m.trackers {
		mm := m.models[name]
		t.SetQueue(mm.QueueDepth)
		h := t.Headroom(nowMs, mm.HorizonMs, mm.ReadyReplicas)
		if mm.ColdHorizonMs > mm.HorizonMs {
			h.NeedExisting = t.Headroom(nowMs, mm.ColdHorizonMs, mm.ReadyReplicas).NeedReplicas
		}
		out[name] = h
	}
	m.last, m.lastMs = out, nowMs
	return out
}

// Service is what was learned of a model's cost.
func (m *Meter) Service(model string) (slo.Service, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.trackers[model]
	if t == nil {
		return slo.Service{}, false
	}
	return t.Service(), true
}
