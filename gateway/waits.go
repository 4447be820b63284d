package gateway

import (
	"math"
	"sync"
	"sync/atomic"
)

// How the usual wait for a first token is learned.
const (
	waitWindowMs   = 60_000 // samples count for one to two of these
	waitSteps      = 8      // buckets an octave: a value is known to 9 %
	waitOctaves    = 20     // from 1 ms to 17 minutes
	waitFewest     = 100    // samples, before anything is said
	waitEvery      = 32     // samples between two looks at the buckets
	hedgeQuantile  = 0.95
	hedgeFloorMs   = 50.0 // a second try costs more than such a wait
	waitNumBuckets = waitSteps * waitOctaves
)

// waits learns how long a model's answers usually let wait for their beginning. The zero value knows nothing. Safe for
// concurrent use.
type waits struct {
	lateUs atomic.Int64 // beyond which an answer is late, in microseconds; 0 while unknown

	mu     sync.Mutex
	counts [2][waitNumBuckets]uint32 // guarded by mu; this window and the one before
	n      [2]int                    // guarded by mu
	turnMs int64                     // guarded by mu; when this window began
}

// lateMs is how long a wait must be to count as late: the quantile, not below the floor. 0 while too little is known.
func (w *waits) lateMs() float64 { return float64(w.lateUs.Load()) / 1000 }

// observe takes one wait.
func (w *waits) observe(waitMs float64, nowMs int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if past := nowMs - w.turnMs; past >= waitWindowMs {
		if past < 2*waitWindowMs {
			w.counts[1], w.n[1] = w.counts[0], w.n[0]
		} else {
			w.counts[1], w.n[1] = [waitNumBuckets]uint32{}, 0
		}
		w.counts[0], w.n[0] = [waitNumBuckets]uint32{}, 0
		w.turnMs = nowMs
	}
	at := int(math.Log2(max(1, waitMs)) * waitSteps)
	w.counts[0][min(at, waitNumBuckets-1)]++
	w.n[0]++
	if w.n[0]%waitEvery == 0 || w.n[0] == 1 {
		w.lateUs.Store(int64(w.quantileLocked() * 1000))
	}
}

func (w *waits) quantileLocked() float64 {
	total := w.n[0] + w.n[1]
	if total < waitFewest {
		return 0
	}
	left := int(math.Ceil(hedgeQuantile * float64(total)))
	for i := range waitNumBuckets {
		if left -= int(w.counts[0][i] + w.counts[1][i]); left <= 0 {
			return max(hedgeFloorMs, math.Exp2(float64(i+1)/waitSteps))
		}
	}
	return hedgeFloorMs
}
