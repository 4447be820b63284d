package slo

import (
	"math"
	"slices"
)

// A distribution is carried as points: the middle quantile of stretches of probability that get finer toward the tail,
// so that a p99 objective still sees its tail.
const numPoints = 20

var pointMass, pointQuantile = func() (mass, q [numPoints]float64) {
	at := 0.0
	for i := range mass {
		switch {
		case i < 10:
			mass[i] = 0.08
		case i < 14:
			mass[i] = 0.04
		case i < 18:
			mass[i] = 0.0075
		default:
			mass[i] = 0.005
		}
		q[i] = at + mass[i]/2
		at += mass[i]
	}
	return mass, q
}()

// Points is a distribution in numPoints values, ascending, of fixed and unequal probability.
type Points [numPoints]float64

// PointsOf returns the points of values, which it sorts in place. Empty values give the zero Points.
func PointsOf(values []float64) Points {
	var p Points
	if len(values) == 0 {
		return p
	}
	slices.Sort(values)
	for i, q := range pointQuantile {
		p[i] = values[min(len(values)-1, int(q*float64(len(values))))]
	}
	return p
}

// Mean of the distribution.
func (p *Points) Mean() float64 {
	sum := 0.0
	for i, v := range p {
		sum += pointMass[i] * v
	}
	return sum
}

// scv is the squared coefficient of variation, 0 for a zero mean.
func (p *Points) scv() float64 {
	mean, second := p.Mean(), 0.0
	for i, v := range p {
		second += pointMass[i] * v * v
	}
	if mean <= 0 {
		return 0
	}
	return max(0, second/(mean*mean)-1)
}

// Service is what one request costs on one replica, and how variable that is. The zero value knows nothing: every
// answer computed from it is "no data". A value; safe to copy.
type Service struct {
	// Prefill of a prompt alone on the replica takes PrefillBaseMs + PrefillMsPerToken × tokens.
	PrefillBaseMs     float64 `json:"prefillBaseMs"`
	PrefillMsPerToken float64 `json:"prefillMsPerToken"`
	// One decode step of a batch of b sequences takes DecodeBaseMs + DecodeMsPerSeq × b.
	DecodeBaseMs   float64 `json:"decodeBaseMs"`
	DecodeMsPerSeq float64 `json:"decodeMsPerSeq"`
	// Tokens of a request.
	InputTokens  Points `json:"inputTokens"`
	OutputTokens Points `json:"outputTokens"`
	// ArrivalSCV is ca², the index of dispersion of arrival counts: 1 is Poisson. 0 is read as 1.
	ArrivalSCV float64 `json:"arrivalScv"`
	// MaxBatch is how many requests a replica may hold at once; 0 means without limit.
	MaxBatch int `json:"maxBatch"`
	// Samples behind the estimate; 0 when it was given, not learned.
	Samples int `json:"samples"`
}

// Known reports whether there is anything to compute with.
func (s *Service) Known() bool {
	return s.PrefillBaseMs > 0 || s.PrefillMsPerToken > 0 || s.DecodeBaseMs > 0
}

// PrefillMs is the predicted prefill time of a prompt alone on a replica.
func (s *Service) PrefillMs(inputTokens float64) float64 {
	return s.PrefillBaseMs + s.PrefillMsPerToken*inputTokens
}

// DecodeMs is the predicted decode step of a batch of b sequences.
func (s *Service) DecodeMs(b float64) float64 { return s.DecodeBaseMs + s.DecodeMsPerSeq*b }

// WorkMs is the engine time that a request takes for itself: its prefill, and its share of the decode steps of a
// batch that is half full. It is the unit of load in which the router compares replicas.
func (s *Service) WorkMs(inputTokens, outputTokens int) float64 {
	batch := float64(max(2, s.MaxBatch)) / 2
	return s.PrefillMs(float64(inputTokens)) + float64(outputTokens)*s.DecodeMs(batch)/batch
}

// prefill returns the mean and the squared coefficient of variation of prefill time over the input distribution.
func (s *Service) prefill() (meanMs, scv float64) {
	var ms Points
	for i, tokens := range s.InputTokens {
		ms[i] = s.PrefillMs(tokens)
	}
	return ms.Mean(), ms.scv()
}

func (s *Service) arrivalSCV() float64 {
	if s.ArrivalSCV > 0 {
		return s.ArrivalSCV
	}
	return 1
}

// normalQuantile is the inverse of the standard normal distribution.
func normalQuantile(q float64) float64 { return math.Sqrt2 * math.Erfinv(2*q-1) }
