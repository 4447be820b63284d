package gateway

import "sync/atomic"

// budget bounds retries, or second tries, to a share of requests, with a burst for the moment a replica dies. Safe for concurrent use.
type budget struct {
	milli atomic.Int64 // thousandths of a try
	gain  int64
	limit int64
}

// newBudget is full at first.
func newBudget(ratio float64, burst int) *budget {
	b := emptyBudget(ratio, burst)
	b.milli.Store(b.limit)
	return b
}

// emptyBudget has to be earned from the first request on.
func emptyBudget(ratio float64, burst int) *budget {
	return &budget{gain: int64(ratio * 1000), limit: int64(burst) * 1000}
}

// request raises the budget by one request's share.
func (b *budget) request() {
	if b.milli.Load() < b.limit {
		b.milli.Add(b.gain)
	}
}

// spend takes one try out, if there is one.
func (b *budget) spend() bool {
	if b.milli.Add(-1000) >= 0 {
		return true
	}
	b.milli.Add(1000)
	return false
}

// refund gives back what spend took for a try that was not made.
func (b *budget) refund() { b.milli.Add(1000) }
