package agent

import "math"

// leaseTable is the leases of gateways on one replica. The zero value is empty.
type leaseTable struct {
	untilMs map[string]int64 // by gateway
}

// leaseAnswer is what a gateway is told.
type leaseAnswer struct {
	ttlMs int64  // 0: refused
	why   string // of a refusal: "draining", "not ready", "full"
}

// renew gives or renews a lease. While draining no new lease is given, and a
// renewal is kept but answered as refused: the gateway still has requests in
// flight there, or it would have returned the lease.
func (t *leaseTable) renew(gateway string, ready, draining bool, nowMs int64) leaseAnswer {
	t.prune(nowMs)
	_, had := t.untilMs[gateway]
	switch {
	case draining:
		if had {
			t.untilMs[gateway] = nowMs + LeaseTTLMs
		}
		return leaseAnswer{why: "draining"}
	case !ready:
		return leaseAnswer{why: "not ready"}
	case !had && len(t.untilMs) >= MaxLeases:
		return leaseAnswer{why: "full"}
	}
	if t.untilMs == nil {
		t.untilMs = make(map[string]int64)
	}
	t.untilMs[gateway] = nowMs + LeaseTTLMs
	return leaseAnswer{ttlMs: LeaseTTLMs}
}

func (t *leaseTable) giveBack(gateway string) { delete(t.untilMs, gateway) }

func (t *leaseTable) prune(nowMs int64) {
	for g, until := range t.untilMs {
		if until <= nowMs {
			delete(t.untilMs, g)
		}
	}
}

// left is the number of living leases, and when the first of them expires.
func (t *leaseTable) left(nowMs int64) (n int, firstMs int64) {
	t.prune(nowMs)
	firstMs = math.MaxInt64
	for _, until := range t.untilMs {
		firstMs = min(firstMs, until)
	}
	return len(t.untilMs), firstMs
}
