package slo

import (
	"fmt"
	"math"
)

// netLimit bounds what the safety net may ask for: netLimit × what the formula says for now, plus one. Without it a burn that
// more replicas do not cure would take the whole cluster.
const netLimit = 2

// minNetSamples in the fast window before a burn rate is believed.
const minNetSamples = 10

// Model is what a Tracker must know of a model.
type Model struct {
	Name        string
	Objectives  []Objective // at most MaxObjectives
	MinReplicas int         // said as the need while there is no data
	MaxInFlight int         // requests a replica may hold at once; 0 when unknown
}

// Attainment is how one objective was met lately.
type Attainment struct {
	Objective  Objective `json:"objective"`
	ObservedMs float64   `json:"observedMs"` // the objective's quantile over the slow window; 0 without samples
	Met        bool      `json:"met"`        // Fraction ≥ Quantile, or nothing seen
	Fraction   float64   `json:"fraction"`   // of requests inside the threshold, failures outside
	BurnFast   float64   `json:"burnFast"`   // error budget spent, 1 = exactly the budget
	BurnSlow   float64   `json:"burnSlow"`
}

// Headroom is how far a model is from breaking its objectives, now and at the horizon.
type Headroom struct {
	Model         string  `json:"model"`
	AtMs          int64   `json:"atMs"`
	HorizonMs     int64   `json:"horizonMs"`
	ReadyReplicas int     `json:"readyReplicas"`
	ArrivalRps    float64 `json:"arrivalRps"`  // now, smoothed, counted at the entrance
	DemandRps     float64 `json:"demandRps"`   // quantile at the horizon, the backlog's clearing included
	CapacityRps   float64 `json:"capacityRps"` // of the ready replicas within the objectives; 0 without data
	PerReplicaRps float64 `json:"perReplicaRps"`
	NeedReplicas  int     `json:"needReplicas"` // at the horizon
	NeedNow       int     `json:"needNow"`
	// NeedExisting is the need at the horizon of a cold start: as many replicas should exist, serving or asleep. The
	// caller fills it in, by a second call with that horizon; 0 says nothing.
	NeedExisting       int          `json:"needExisting,omitempty"`
	HeadroomRps        float64      `json:"headroomRps"`        // CapacityRps − DemandRps
	HeadroomTokensPerS float64      `json:"headroomTokensPerS"` // the same in output tokens
	HeadroomReplicas   int          `json:"headroomReplicas"`   // ReadyReplicas − NeedReplicas; below 0: missing
	InFlight           int          `json:"inFlight"`           // arrived and not finished, the queue included
	QueueDepth         int          `json:"queueDepth"`
	Burning            bool         `json:"burning"`
	Coverage           float64      `json:"coverage"` // share of past forecasts that held
	Objectives         []Attainment `json:"objectives,omitempty"`
	Reason             string       `json:"reason"` // what NeedReplicas rests on, for people
}

// Tracker follows one model. Make it with NewTracker. One goroutine owns it; Arrived, Finished and SetQueue do not
// allocate and cost under a microsecond, Headroom allocates its answer and costs some hundred microseconds.
type Tracker struct {
	model    Model
	config   Config
	window   *Window
	forecast *Forecast
	learn    learner
	prior    Service

	inFlight int // arrived − finished, never below 0
	queue    int
	ready    int   // replicas, as last told
	readyMs  int64 // when that number last changed
	load     float64
	service  Service

	slow, fast Totals
}

// NewTracker checks the config and the objectives.
func NewTracker(m Model, c Config) (*Tracker, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("model %s: %w", m.Name, err)
	}
	if len(m.Objectives) > MaxObjectives {
		return nil, fmt.Errorf("model %s: %w: %d objectives; at most %d", m.Name, ErrObjective, len(m.Objectives), MaxObjectives)
	}
	for _, o := range m.Objectives {
		if err := o.Validate(); err != nil {
			return nil, fmt.Errorf("model %s: %w", m.Name, err)
		}
	}
	w, err := NewWindow(c.SlotMs, c.Slots)
	if err != nil {
		return nil, err
	}
	f, err := NewForecast(c)
	if err != nil {
		return nil, err
	}
	return &Tracker{model: m, config: c, window: w, forecast: f, ready: -1}, nil
}

// SetPrior gives a service model to use until enough samples have been seen, from a profile or an earlier run.
func (t *Tracker) SetPrior(s Service) { t.prior = s }

// SetModel takes new objectives and limits and keeps everything learned. It refuses what NewTracker refuses.
func (t *Tracker) SetModel(m Model) error {
	if _, err := NewTracker(m, t.config); err != nil {
		return err
	}
	t.model = m
	return nil
}

// Arrived counts a request when it has been read, before it is queued or refused.
func (t *Tracker) Arrived(nowMs int64) {
	t.window.Arrived(nowMs)
	t.forecast.Arrived(nowMs, 1)
	t.inFlight++
}

// Finished takes the sample of a request that ended, however it ended; once for each Arrived.
func (t *Tracker) Finished(s Sample, nowMs int64) {
	if t.impatient(&s) {
		s.Outcome = ClientGone
	}
	t.window.Finished(&s, nowMs)
	t.learn.finished(&s, float64(max(0, t.inFlight-t.queue))/float64(max(1, t.ready)), t.load)
	t.inFlight = max(0, t.inFlight-1)
}

// impatient reports that a client gave a request less time than an objective promises, and that it ended for want of it.
// The service has not failed then: the client has left, and nobody can make a model miss its objectives by asking so.
func (t *Tracker) impatient(s *Sample) bool {
	if s.PatienceMs <= 0 || s.Outcome != Timeout && s.Outcome != RefusedDeadline {
		return false
	}
	for _, o := range t.model.Objectives {
		if o.Metric != ITL && s.PatienceMs < o.ThresholdMs {
			return true
		}
	}
	return false
}

// SetQueue tells the depth of the router's queue for this model, all classes.
func (t *Tracker) SetQueue(depth int) { t.queue = max(0, depth) }

// Window returns the tracker's own window, for merging and reading. The tracker stays its owner.
func (t *Tracker) Window() *Window { return t.window }

// Service returns what is known of the cost of a request: learned, else the prior. Refreshed by Headroom.
func (t *Tracker) Service() Service { return t.service }

func (t *Tracker) refreshService(nowMs int64) {
	dispersion := t.forecast.Dispersion(nowMs, int(t.window.SpanMs()/t.config.StepMs))
	finishedRps := 0.0
	if steady := nowMs-t.readyMs >= t.window.SpanMs(); steady && t.ready > 0 {
		finishedRps = float64(t.slow.Outcomes[OK]) * 1000 / float64(t.slow.SpanMs) / float64(t.ready)
	}
	s := t.learn.service(t.model.MaxInFlight, dispersion, finishedRps)
	if !s.Known() && t.prior.Known() {
		s = t.prior
		s.ArrivalSCV = dispersion
		if t.model.MaxInFlight > 0 {
			s.MaxBatch = t.model.MaxInFlight
		}
	}
	t.service = s
}

// Headroom answers for nowMs and for nowMs + horizonMs, the time in which more capacity could arrive, with
// readyReplicas serving now.
func (t *Tracker) Headroom(nowMs, horizonMs int64, readyReplicas int) Headroom {
	if readyReplicas != t.ready {
		t.ready, t.readyMs = readyReplicas, nowMs
	}
	t.window.Snapshot(nowMs, t.config.Slots, &t.slow)
	t.window.Snapshot(nowMs, t.config.FastSlots, &t.fast)
	t.refreshService(nowMs)
	h := Headroom{
		Model: t.model.Name, AtMs: nowMs, HorizonMs: horizonMs, ReadyReplicas: readyReplicas,
		InFlight: t.inFlight, QueueDepth: t.queue, Objectives: t.attainment(),
	}
	h.DemandRps = t.forecast.DemandRps(nowMs, horizonMs)
	h.ArrivalRps = t.forecast.RateRps()
	h.Coverage, _ = t.forecast.Coverage()
	// Requests that wait are demand that arrivals do not show: closed-loop clients send nothing new while they wait.
	backlogRps := float64(t.queue) * 1000 / float64(t.config.ClearMs)
	h.DemandRps += backlogRps
	mean, _ := t.service.prefill()
	t.load = min(1, h.ArrivalRps/1000*mean/float64(max(1, readyReplicas)))
	t.need(&h, h.ArrivalRps+backlogRps)
	h.HeadroomRps = h.CapacityRps - h.DemandRps
	h.HeadroomTokensPerS = h.HeadroomRps * t.service.OutputTokens.Mean()
	h.HeadroomReplicas = readyReplicas - h.NeedReplicas
	return h
}

// need fills in capacity, both needs and the reason.
func (t *Tracker) need(h *Headroom, nowRps float64) {
	switch {
	case t.slow.Arrivals == 0 && t.inFlight == 0 && t.queue == 0:
		// Zero traffic is a reading, not a missing one.
		h.DemandRps = 0
		h.Reason = fmt.Sprintf("no request for %d ms: none needed", t.window.SpanMs())
		t.capacity(h)
		return
	case !t.service.Known():
		h.NeedReplicas, h.NeedNow = max(1, t.model.MinReplicas), max(1, t.model.MinReplicas)
		h.Reason = fmt.Sprintf("fewer than %d finished requests: the minimum is kept", minSamples)
		// A queue speaks before the first answer does.
		if held := t.heldReplicas(t.inFlight); t.queue > 0 && min(held, h.ReadyReplicas+1) > h.NeedReplicas {
			h.NeedReplicas = min(held, h.ReadyReplicas+1)
			h.NeedNow = h.NeedReplicas
			h.Reason = fmt.Sprintf("nothing is known of the service yet, and %d requests wait", t.queue)
		}
		return
	}
	t.capacity(h)
	h.NeedNow = max(1, NeedReplicas(nowRps, t.service, t.model.Objectives))
	h.NeedReplicas = max(1, NeedReplicas(h.DemandRps, t.service, t.model.Objectives))
	h.Reason = fmt.Sprintf("%.1f requests/s at the horizon, %.1f within the objectives on one replica",
		h.DemandRps, h.PerReplicaRps)
	held := t.heldReplicas(t.inFlight - min(t.queue, t.inFlight))
	if held > h.NeedReplicas && held > h.ReadyReplicas {
		h.Reason = fmt.Sprintf("%d requests are in flight, %d to a replica", t.inFlight, t.model.MaxInFlight)
		h.NeedReplicas = held
	}
	h.NeedNow = max(h.NeedNow, min(held, max(h.ReadyReplicas, h.NeedReplicas)))
	t.safetyNet(h)
}

// heldReplicas is how many replicas so many requests fill; 0 when their limit is not known.
func (t *Tracker) heldReplicas(requests int) int {
	if t.model.MaxInFlight <= 0 {
		return 0
	}
	return int(math.Ceil(float64(requests) / (batchFill * float64(t.model.MaxInFlight))))
}

func (t *Tracker) capacity(h *Headroom) {
	h.CapacityRps = CapacityRps(h.ReadyReplicas, t.service, t.model.Objectives)
	h.PerReplicaRps = CapacityRps(1, t.service, t.model.Objectives)
}

// safetyNet asks for one replica more than there is while an objective burns, whatever the formula says. Evidence from
// before the last change of capacity does not count, and netLimit bounds it.
func (t *Tracker) safetyNet(h *Headroom) {
	if h.AtMs-t.readyMs < int64(t.config.FastSlots)*t.config.SlotMs || t.fast.Finished < minNetSamples {
		return
	}
	for _, a := range h.Objectives {
		if a.BurnFast < t.config.BurnFast || a.BurnSlow < t.config.BurnSlow || !t.service.reachable(a.Objective) {
			continue
		}
		h.Burning = true
		if want := min(h.ReadyReplicas+1, netLimit*h.NeedNow+1); want > h.NeedReplicas {
			h.NeedReplicas = want
			h.Reason = fmt.Sprintf("%s burns its budget %.1f times too fast", a.Objective, a.BurnFast)
		}
	}
}

func (t *Tracker) attainment() []Attainment {
	if len(t.model.Objectives) == 0 {
		return nil
	}
	all := make([]Attainment, len(t.model.Objectives))
	for i, o := range t.model.Objectives {
		fraction := t.slow.Fraction(o)
		all[i] = Attainment{
			Objective: o, ObservedMs: t.slow.Latency[o.Metric].Quantile(o.Quantile),
			Met: fraction >= o.Quantile, Fraction: fraction,
			BurnFast: t.fast.Burn(o), BurnSlow: t.slow.Burn(o),
		}
	}
	return all
}
