package slo

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// floor is a world with a tracker that watches it, second by second.
type floor struct {
	t       *testing.T
	world   world
	tracker *Tracker
	rng     *rand.Rand
	nowMs   float64
	maxIn   int  // prompts are cut or grown to it when above 0
	closed  bool // each answer brings a new request
}

func newFloor(t *testing.T, m Model, k int, s Service) *floor {
	t.Helper()
	tracker, err := NewTracker(m, Default())
	if err != nil {
		t.Fatal(err)
	}
	f := &floor{t: t, tracker: tracker, rng: rand.New(rand.NewPCG(4, 4))}
	f.world = world{service: s, engines: make([]engine, k), done: func(sample Sample, atMs float64) {
		tracker.Finished(sample, int64(atMs))
		if f.closed {
			f.arrive(atMs)
		}
	}}
	return f
}

func (f *floor) arrive(atMs float64) {
	j := request(f.rng, int64(atMs))
	if f.maxIn > 0 {
		j.InputTokens = f.maxIn
	}
	f.tracker.Arrived(int64(atMs))
	f.world.queue = append(f.world.queue, j)
	f.world.dispatch(atMs)
}

// second offers rps for one second and asks.
func (f *floor) second(rps float64, horizonMs int64) Headroom {
	end := f.nowMs + 1000
	for rps > 0 {
		f.nowMs += f.rng.ExpFloat64() * 1000 / rps
		if f.nowMs >= end {
			break
		}
		f.world.advance(f.nowMs)
		f.arrive(f.nowMs)
	}
	f.nowMs = end
	f.world.advance(end)
	f.tracker.SetQueue(len(f.world.queue))
	return f.tracker.Headroom(int64(end), horizonMs, len(f.world.engines))
}

var chat = Model{Name: "chat", MaxInFlight: 64, MinReplicas: 1, Objectives: []Objective{{TTFT, 0.9, 2000}, {ITL, 0.9, 100}}}

func TestTrackerLearnsTheEngine(t *testing.T) {
	truth := typical(64)
	for _, rps := range []float64{1, 4, 7} { // light, half, near capacity of two replicas
		f := newFloor(t, chat, 2, truth)
		var h Headroom
		for range 300 {
			h = f.second(rps, 5000)
		}
		got := f.tracker.Service()
		want := CapacityRps(2, truth, chat.Objectives)
		t.Logf("%v rps: prefill(1000) %.0f ms (%.0f), decode(10) %.1f ms (%.1f), capacity %.1f (%.1f), need %d of 2, %s",
			rps, got.PrefillMs(1000), truth.PrefillMs(1000), got.DecodeMs(10), truth.DecodeMs(10), h.CapacityRps, want, h.NeedReplicas, h.Reason)
		if math.Abs(got.PrefillMs(1000)/truth.PrefillMs(1000)-1) > 0.35 {
			t.Errorf("%v rps: prefill of 1,000 tokens learned as %.0f ms, is %.0f", rps, got.PrefillMs(1000), truth.PrefillMs(1000))
		}
		// Near capacity the batch hardly varies, and only its own size can be told.
		if rps < 7 && math.Abs(got.DecodeMs(10)/truth.DecodeMs(10)-1) > 0.2 {
			t.Errorf("%v rps: a step of 10 learned as %.1f ms, is %.1f", rps, got.DecodeMs(10), truth.DecodeMs(10))
		}
		if rps >= 4 && math.Abs(h.CapacityRps/want-1) > 0.3 {
			t.Errorf("%v rps: capacity learned as %.2f rps, is %.2f", rps, h.CapacityRps, want)
		}
		if h.HeadroomReplicas != 2-h.NeedReplicas || math.Abs(h.HeadroomRps-(h.CapacityRps-h.DemandRps)) > 1e-9 {
			t.Errorf("headroom does not add up: %+v", h)
		}
	}
}

func TestCase_SLO_04_QueueIsPartOfTheEstimate(t *testing.T) {
	truth := typical(64)
	truth.PrefillBaseMs, truth.PrefillMsPerToken = 13, 0.04 // 8,000 tokens: a third of a second
	f := newFloor(t, chat, 1, truth)
	f.maxIn = 8000
	missedAt, askedAt := -1, -1
	for s := range 900 {
		rps := 1 + 23*(1-math.Cos(2*math.Pi*float64(s)/900))/2
		h := f.second(rps, 5000)
		if waiting := len(f.world.queue) + len(f.world.engines[0].waiting); missedAt < 0 && float64(waiting)*333 > 2000 {
			missedAt = s
		}
		if askedAt < 0 && s > 30 && h.NeedReplicas > 1 {
			askedAt = s
			t.Logf("asked at %d s, %.1f rps: %s", s, rps, h.Reason)
		}
		if missedAt >= 0 && askedAt >= 0 {
			break
		}
	}
	if missedAt < 0 || askedAt < 0 || askedAt > missedAt+5 {
		t.Errorf("a wait of 2 s began at %d s, more was asked for at %d s", missedAt, askedAt)
	}
}

func TestCase_SLO_05_DemandIsMeasuredAtTheEntrance(t *testing.T) {
	f := newFloor(t, chat, 1, typical(64))
	f.closed = true
	for range 200 {
		f.arrive(0)
	}
	for s := range 60 {
		h := f.second(0, 5000)
		if s >= 10 && h.NeedReplicas <= 1 {
			t.Fatalf("after %d s %d is needed for 200 clients: %s", s+1, h.NeedReplicas, h.Reason)
		}
	}
}

func TestCase_SLO_06_NoTrafficIsAReading(t *testing.T) {
	f := newFloor(t, chat, 7, typical(64))
	for range 300 {
		f.second(20, 5000)
	}
	if h := f.second(20, 5000); h.NeedReplicas < 5 || h.NeedReplicas > 10 {
		t.Errorf("20 rps need %d: %s", h.NeedReplicas, h.Reason)
	}
	for s := range 400 {
		h := f.second(0, 5000)
		if s == 45 && h.NeedReplicas > 1 {
			t.Errorf("45 s after the last arrival %d are needed: %s", h.NeedReplicas, h.Reason)
		}
		if s == 399 && (h.NeedReplicas != 0 || h.NeedNow != 0 || !strings.Contains(h.Reason, "no request")) {
			t.Errorf("long after: need %d, now %d, %s", h.NeedReplicas, h.NeedNow, h.Reason)
		}
		for _, v := range []float64{h.DemandRps, h.CapacityRps, h.HeadroomRps, h.HeadroomTokensPerS, h.ArrivalRps} {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Fatalf("second %d: %+v", s, h)
			}
		}
	}
}

func TestNoDataKeepsTheMinimum(t *testing.T) {
	m := chat
	m.MinReplicas = 3
	tracker, err := NewTracker(m, Default())
	if err != nil {
		t.Fatal(err)
	}
	tracker.Arrived(10)
	if h := tracker.Headroom(1000, 5000, 1); h.NeedReplicas != 3 || h.NeedNow != 3 {
		t.Errorf("without data %d are needed: %s", h.NeedReplicas, h.Reason)
	}
	tracker.SetPrior(typical(64))
	if h := tracker.Headroom(1001, 5000, 1); h.NeedReplicas != 1 || h.PerReplicaRps <= 0 {
		t.Errorf("with a prior %d are needed: %s", h.NeedReplicas, h.Reason)
	}
}

// Whatever the formula says, an objective that burns asks for one more, within netLimit, on fresh evidence only.
func TestSafetyNet(t *testing.T) {
	tracker, err := NewTracker(chat, Default())
	if err != nil {
		t.Fatal(err)
	}
	in, out := tokensOf(2)
	second := func(now int64, ready int) Headroom {
		for i := range int64(5) {
			at := now*1000 + i*100
			tracker.Arrived(at)
			tracker.Finished(Sample{
				ArrivalMs: at, TTFTMs: 3000, QueueMs: 2950, ITLMs: 30, E2EMs: 9000,
				InputTokens: int(in[i*3]), OutputTokens: int(out[i*3]),
			}, at)
		}
		return tracker.Headroom((now+1)*1000, 5000, ready)
	}
	for now := range int64(100) {
		h := second(now, 2)
		if fresh := now >= 30; h.Burning != fresh || fresh && h.NeedReplicas != 3 {
			t.Fatalf("second %d: burning %v, need %d, %s", now, h.Burning, h.NeedReplicas, h.Reason)
		}
	}
	if h := second(100, 3); h.Burning || h.NeedReplicas > 2 {
		t.Errorf("right after a replica came: burning %v, need %d; the evidence is old", h.Burning, h.NeedReplicas)
	}
	var h Headroom
	for now := int64(101); now < 200; now++ {
		h = second(now, 8)
	}
	if !h.Burning || h.NeedReplicas > netLimit*h.NeedNow+1 {
		t.Errorf("8 replicas do not cure it: burning %v, need %d, by formula %d", h.Burning, h.NeedReplicas, h.NeedNow)
	}
}

func TestTrackerRefuses(t *testing.T) {
	bad := chat
	bad.Objectives = []Objective{{TTFT, 2, 3}}
	if _, err := NewTracker(bad, Default()); !errors.Is(err, ErrObjective) {
		t.Errorf("bad objective: %v", err)
	}
	bad.Objectives = make([]Objective, MaxObjectives+1)
	if _, err := NewTracker(bad, Default()); !errors.Is(err, ErrObjective) {
		t.Errorf("too many: %v", err)
	}
	if _, err := NewTracker(chat, Config{}); !errors.Is(err, ErrConfig) {
		t.Errorf("zero config: %v", err)
	}
	tracker, err := NewTracker(chat, Default())
	if err != nil {
		t.Fatal(err)
	}
	if err := tracker.SetModel(bad); !errors.Is(err, ErrObjective) {
		t.Errorf("SetModel: %v", err)
	}
}

func TestForecastCovers(t *testing.T) {
	if raceEnabled {
		t.Skip("12,000 forecasts, with one goroutine")
	}
	const seed = 8
	for _, horizonMs := range []int64{3000, 20_000} {
		f, err := NewForecast(Default())
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(seed, seed))
		poisson := func(mean float64) int {
			n := 0
			for at := rng.ExpFloat64(); at < mean; at += rng.ExpFloat64() {
				n++
			}
			return n
		}
		var over float64
		for s := range int64(6000) {
			rate := 5 + 4*math.Sin(float64(s)/300)
			if s%701 < 40 {
				rate *= 2 // bursts
			}
			f.Arrived(s*1000+500, poisson(rate))
			over += f.DemandRps((s+1)*1000, horizonMs) / rate
		}
		share, scored := f.Coverage()
		t.Logf("horizon %d: coverage %.3f of %d, demand over rate %.2f", horizonMs, share, scored, over/6000)
		if target := Default().Quantile; share < target-0.06 || share > target+0.04 || scored < 5000 || over/6000 > 2 {
			t.Errorf("horizon %d: coverage %.3f of %d forecasts, demand %.2f times the rate (seed %d)", horizonMs, share, scored, over/6000, seed)
		}
	}
}

func TestForecastStart(t *testing.T) {
	f, err := NewForecast(Default())
	if err != nil {
		t.Fatal(err)
	}
	if d := f.DemandRps(0, 5000); d != 0 {
		t.Errorf("nothing seen, %v forecast", d)
	}
	for s := range int64(5) {
		f.Arrived(s*1000, 10)
	}
	if d := f.DemandRps(5000, 5000); math.Abs(d-10*firstGrowth) > 1e-9 {
		t.Errorf("10 rps without history: %v", d)
	}
	if d := f.Dispersion(5000, 300); d != 1 {
		t.Errorf("dispersion without history %v", d)
	}
	f.Arrived(1<<50, 1) // the ring is walked once round at most
	if d := f.DemandRps(1<<50+1000, 5000); math.IsNaN(d) || d > 1 {
		t.Errorf("after ages: %v", d)
	}
}

// A client that gives less time than an objective promises cannot make the model miss it; one that gives more can.
func TestTrackerImpatientClients(t *testing.T) {
	burn := func(outcome Outcome, patienceMs float64) float64 {
		tracker, err := NewTracker(chat, Default())
		if err != nil {
			t.Fatal(err)
		}
		for i := range int64(50) {
			tracker.Arrived(1000 + i)
			tracker.Finished(Sample{Model: "chat", Outcome: outcome, ArrivalMs: 1000 + i, E2EMs: 5, PatienceMs: patienceMs}, 1005+i)
		}
		return tracker.Headroom(2000, 1000, 1).Objectives[0].BurnSlow
	}
	for _, c := range []struct {
		outcome    Outcome
		patienceMs float64
		counts     bool
	}{
		{Timeout, 5, false}, {RefusedDeadline, 1999, false}, {Timeout, 2000, true}, {RefusedDeadline, 30_000, true}, {Timeout, 0, true}, {UpstreamLost, 5, true},
	} {
		if got := burn(c.outcome, c.patienceMs); got > 0 != c.counts {
			t.Errorf("%v within %v ms burns %v", c.outcome, c.patienceMs, got)
		}
	}
}
