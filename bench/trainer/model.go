package trainer

import (
	"errors"
	"math"
)

// Shape of the task: inputs a sample, classes to tell apart.
const (
	inputs  = 16
	classes = 8
)

// fixedOne is 1.0 in the fixed point of exchanged sums. A gradient is cut at
// ±gradLimit, so that MaxMicroBatches of them stay far below 2^63.
const (
	fixedOne  = 1 << 32
	gradLimit = 1 << 18
)

// ErrDiverged says that the loss is no number any more: a smaller learning rate
// is needed.
var ErrDiverged = errors.New("trainer: loss is not a number; lower the learning rate")

// mix is splitmix64: a well spread function of its argument.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}

// noise is a value in [-1, 1) made from a seed and a place.
func noise(seed, stream, i uint64) float64 {
	return float64(mix(mix(seed^mix(stream))+i)>>11)/(1<<52) - 1
}

const (
	streamTeacher = 1 + iota
	streamParams
	streamData
)

// model is the perceptron with its optimizer state. params holds W1 [hidden ×
// inputs], b1, W2 [classes × hidden], b2, one after the other; so does velocity.
type model struct {
	cfg      Config
	params   []float64
	velocity []float64
	teacher  []float64 // classes × inputs: the rule behind the labels

	x, hid, out, dhid []float64 // scratch of one sample
	grad              []float64 // of one micro-batch
}

func newModel(cfg Config) *model {
	h := cfg.Hidden
	n := h*inputs + h + classes*h + classes
	m := &model{
		cfg: cfg, params: make([]float64, n), velocity: make([]float64, n), grad: make([]float64, n),
		teacher: make([]float64, classes*inputs),
		x:       make([]float64, inputs), hid: make([]float64, h), out: make([]float64, classes), dhid: make([]float64, h),
	}
	for i := range m.teacher {
		m.teacher[i] = noise(cfg.Seed, streamTeacher, uint64(i))
	}
	for i := range m.params {
		m.params[i] = 0.5 * noise(cfg.Seed, streamParams, uint64(i))
	}
	return m
}

// sample fills x and returns the label of sample number i.
func (m *model) sample(i uint64) int {
	for d := range m.x {
		m.x[d] = 2 * noise(m.cfg.Seed, streamData, i*inputs+uint64(d))
	}
	best, label := math.Inf(-1), 0
	for c := range classes {
		s := 0.0
		for d, x := range m.x {
			s += m.teacher[c*inputs+d] * x
		}
		if s > best {
			best, label = s, c
		}
	}
	return label
}

// microBatch adds the gradient of one micro-batch to sums, in fixed point; the
// last entry of sums is the loss. Micro-batch b of step s is the same whichever
// rank computes it.
func (m *model) microBatch(step int64, b int, sums []int64) error {
	clear(m.grad)
	loss := 0.0
	first := (uint64(step-1)*uint64(m.cfg.MicroBatches) + uint64(b)) * uint64(m.cfg.MicroBatchSamples)
	for i := range uint64(m.cfg.MicroBatchSamples) {
		loss += m.backward(m.sample(first + i))
	}
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return ErrDiverged
	}
	for i, g := range m.grad {
		sums[i] += int64(math.RoundToEven(max(-gradLimit, min(gradLimit, g)) * fixedOne))
	}
	sums[len(sums)-1] += int64(math.RoundToEven(min(loss, gradLimit) * fixedOne))
	return nil
}

// backward adds one sample's gradient to grad and returns its loss
// (cross-entropy of a softmax).
func (m *model) backward(label int) float64 {
	h := m.cfg.Hidden
	w1, b1 := m.params[:h*inputs], m.params[h*inputs:h*inputs+h]
	w2, b2 := m.params[h*inputs+h:h*inputs+h+classes*h], m.params[h*inputs+h+classes*h:]
	g1, gb1 := m.grad[:h*inputs], m.grad[h*inputs:h*inputs+h]
	g2, gb2 := m.grad[h*inputs+h:h*inputs+h+classes*h], m.grad[h*inputs+h+classes*h:]

	for j := range h {
		s := b1[j]
		for d, x := range m.x {
			s += w1[j*inputs+d] * x
		}
		m.hid[j] = max(0, s)
		m.dhid[j] = 0
	}
	peak := math.Inf(-1)
	for c := range classes {
		s := b2[c]
		for j, v := range m.hid {
			s += w2[c*h+j] * v
		}
		m.out[c] = s
		peak = max(peak, s)
	}
	total := 0.0
	for c, s := range m.out {
		m.out[c] = math.Exp(s - peak)
		total += m.out[c]
	}
	loss := math.Log(total) - math.Log(m.out[label])
	for c := range classes {
		d := m.out[c] / total
		if c == label {
			d--
		}
		gb2[c] += d
		for j, v := range m.hid {
			g2[c*h+j] += d * v
			m.dhid[j] += d * w2[c*h+j]
		}
	}
	for j, d := range m.dhid {
		if m.hid[j] <= 0 {
			continue
		}
		gb1[j] += d
		for k, x := range m.x {
			g1[j*inputs+k] += d * x
		}
	}
	return loss
}

// update takes the sums over all micro-batches and returns the mean loss. Every
// rank does the same arithmetic on the same integers.
func (m *model) update(sums []int64) float64 {
	scale := 1 / (fixedOne * float64(m.cfg.MicroBatches*m.cfg.MicroBatchSamples))
	for i := range m.params {
		// The explicit conversion keeps a compiler from fusing the two operations.
		m.velocity[i] = float64(m.cfg.Momentum*m.velocity[i]) - float64(m.cfg.LearningRate*float64(float64(sums[i])*scale))
		m.params[i] += m.velocity[i]
	}
	return float64(sums[len(sums)-1]) * scale
}
