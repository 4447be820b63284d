package gateway

import "sync/atomic"

// budget bounds retries to a share of requests, with a burst for the moment a replica dies. Safe for concurrent use.
type budget struct {
	milli atomic.Int64 // thousandths of a retry
	gain  int64
	limit int64
}

func newBudget(ratio float64, burst int) *budget {
	b := &budget{gain: int64(ratio * 1000), limit: int64(burst) * 1000}
	b.milli.Store(b.limit)
	return b
}

// request raises the budget by one request's share.
func (b *budget) request() {
	if b.milli.Load() < b.limit {
		b.milli.Add(b.gain)
	}
}

// spend takes one retry out, if there is one.
func (b *budget) spend() bool {
	if b.milli.Add(-1000) >= 0 {
		return true
	}
	b.milli.Add(1000)
	return false
}
