package slo

import (
	"errors"
	"fmt"
)

// ErrObjective is wrapped by every error of Objective.Validate.
var ErrObjective = errors.New("slo: objective out of range")

// Metric is what an objective speaks of. The zero value is TTFT.
type Metric uint8

// The metrics, all in milliseconds.
const (
	TTFT Metric = iota // arrival at the gateway to the first token, waiting included
	ITL                // mean time between tokens of one request
	E2E                // arrival to the last byte
	// NumMetrics is the size of an array with one place a metric.
	NumMetrics = 3
)

var metricNames = [NumMetrics]string{"ttft", "itl", "e2e"}

// String returns the name, or "metric(n)" for a value out of range.
func (m Metric) String() string {
	if int(m) < NumMetrics {
		return metricNames[m]
	}
	return fmt.Sprintf("metric(%d)", uint8(m))
}

// ParseMetric turns a name into a metric; an unknown one returns an error that wraps ErrUnknownName.
func ParseMetric(name string) (Metric, error) {
	for i, n := range metricNames {
		if n == name {
			return Metric(i), nil
		}
	}
	return TTFT, fmt.Errorf("%w: metric %q; use ttft, itl or e2e", ErrUnknownName, name)
}

// MarshalText returns the name; a value out of range is an error.
func (m Metric) MarshalText() ([]byte, error) {
	if int(m) >= NumMetrics {
		return nil, fmt.Errorf("%w: metric number %d", ErrUnknownName, uint8(m))
	}
	return []byte(metricNames[m]), nil
}

// UnmarshalText is ParseMetric.
func (m *Metric) UnmarshalText(text []byte) error {
	got, err := ParseMetric(string(text))
	if err != nil {
		return err
	}
	*m = got
	return nil
}

// Objective says that the given quantile of a metric stays at or below a threshold, as in
// "p90 of ttft within 2,000 ms". The zero value is not valid.
type Objective struct {
	Metric      Metric  `json:"metric"`
	Quantile    float64 `json:"quantile"`    // inside (0, 1), as 0.9
	ThresholdMs float64 `json:"thresholdMs"` // above 0
}

// Validate returns nil, or an error that wraps ErrObjective and says what to write instead.
func (o Objective) Validate() error {
	if int(o.Metric) >= NumMetrics {
		return fmt.Errorf("%w: metric number %d; use ttft, itl or e2e", ErrObjective, o.Metric)
	}
	if !(o.Quantile > 0 && o.Quantile < 1) {
		return fmt.Errorf("%w: quantile %v; write a fraction between 0 and 1, as 0.9", ErrObjective, o.Quantile)
	}
	if !(o.ThresholdMs > 0 && o.ThresholdMs <= HistogramMaxMs) {
		return fmt.Errorf("%w: thresholdMs %v; write milliseconds above 0 and up to %v", ErrObjective, o.ThresholdMs, HistogramMaxMs)
	}
	return nil
}

// String reads as "p90 ttft <= 2000ms".
func (o Objective) String() string {
	return fmt.Sprintf("p%g %s <= %gms", o.Quantile*100, o.Metric, o.ThresholdMs)
}

// Sample is one finished request as the gateway saw it. Times are float64 milliseconds, zero when there was none
// (no first token, no second token). Safe to copy.
type Sample struct {
	Model     string  `json:"model"`
	Tenant    string  `json:"tenant,omitempty"`
	Replica   string  `json:"replica,omitempty"`
	Class     Class   `json:"class"`
	Outcome   Outcome `json:"outcome"`
	ArrivalMs int64   `json:"arrivalMs"` // fleet time at which the gateway had read the request
	QueueMs   float64 `json:"queueMs"`   // waiting in the router before a replica was chosen
	TTFTMs    float64 `json:"ttftMs"`    // arrival to first token, QueueMs included
	ITLMs     float64 `json:"itlMs"`     // mean between tokens
	E2EMs     float64 `json:"e2eMs"`     // arrival to last byte
	// PatienceMs is the time that the client itself allowed for the request, shorter than the model's; 0: it did not say.
	PatienceMs  float64 `json:"patienceMs,omitempty"`
	InputTokens int     `json:"inputTokens"`

	OutputTokens int `json:"outputTokens"`
}
