package slo

import "math"

// Range and resolution of a Histogram. Buckets grow by 5 %, so the geometric middle of a bucket is within 2.5 % of
// every value inside it.
const (
	HistogramMinMs  = 0.1
	HistogramMaxMs  = 1e7
	histogramGrowth = 1.05
	// histogramBuckets = ceil(ln(HistogramMaxMs/HistogramMinMs)/ln(histogramGrowth)) = 378, and one for what lies below.
	histogramBuckets = 379
)

var invLogGrowth = 1 / math.Log(histogramGrowth)

// Histogram counts durations in logarithmic buckets. Two of them merge exactly, so shards add up. The zero value is
// empty and ready. It holds no pointer: assignment copies it. Not safe for concurrent use; it never allocates.
type Histogram struct {
	counts [histogramBuckets]uint32
	total  uint64
	sumMs  float64
}

func bucketOf(ms float64) int {
	if !(ms > HistogramMinMs) { // also NaN
		return 0
	}
	if ms >= HistogramMaxMs { // also +Inf, which no integer holds
		return histogramBuckets - 1
	}
	i := int(math.Log(ms/HistogramMinMs)*invLogGrowth) + 1
	return min(i, histogramBuckets-1)
}

// bucketMs is the geometric middle of bucket i.
func bucketMs(i int) float64 {
	if i == 0 {
		return HistogramMinMs
	}
	return HistogramMinMs * math.Pow(histogramGrowth, float64(i)-0.5)
}

// Observe counts one duration. Values outside the range land in the first or last bucket.
func (h *Histogram) Observe(ms float64) {
	h.counts[bucketOf(ms)]++
	h.total++
	if ms > 0 {
		h.sumMs += min(ms, HistogramMaxMs)
	}
}

// Merge adds other to h.
func (h *Histogram) Merge(other *Histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.total += other.total
	h.sumMs += other.sumMs
}

// Reset empties h.
func (h *Histogram) Reset() { *h = Histogram{} }

// Count returns how many durations were observed.
func (h *Histogram) Count() uint64 { return h.total }

// MeanMs returns the mean, exact for values inside the range; 0 when empty.
func (h *Histogram) MeanMs() float64 {
	if h.total == 0 {
		return 0
	}
	return h.sumMs / float64(h.total)
}

// Quantile returns the duration below or at which a fraction q of the observations lies, within 2.5 %;
// 0 when empty.
func (h *Histogram) Quantile(q float64) float64 {
	if h.total == 0 {
		return 0
	}
	rank := uint64(math.Ceil(q * float64(h.total)))
	rank = max(1, min(rank, h.total))
	var seen uint64
	for i, n := range h.counts {
		seen += uint64(n)
		if seen >= rank {
			return bucketMs(i)
		}
	}
	return HistogramMaxMs
}

// FractionBelow returns the fraction of observations at or below ms (the bucket of ms counted by the share of it that
// lies below, on a logarithmic scale); 1 when empty, as no observation broke the bound.
func (h *Histogram) FractionBelow(ms float64) float64 {
	if h.total == 0 {
		return 1
	}
	at := bucketOf(ms)
	var below uint64
	for _, n := range h.counts[:at] {
		below += uint64(n)
	}
	part := 1.0
	if at > 0 && at < histogramBuckets-1 {
		part = math.Log(ms/HistogramMinMs)*invLogGrowth - float64(at-1)
	}
	return min(1, (float64(below)+part*float64(h.counts[at]))/float64(h.total))
}
