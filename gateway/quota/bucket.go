package quota

// minuteMs is the time in which a full bucket drains.
const minuteMs = 60_000

// maxDebt bounds how far a bucket is filled beyond its limit, in minutes: one request that used far more than was
// estimated does not lock a key for the day.
const maxDebt = 60

// bucket is what a limit a minute has been charged. The zero value is empty: all of the limit is there.
type bucket struct {
	used int64 // in 60,000ths of a request or token, so that a millisecond drains `limit` of them
	atMs int64 // up to when it has drained
	// promisedMs is the last time that was told to somebody who was refused.
	promisedMs int64
}

// drain takes out what time has given back. Without a limit nothing is kept.
func (b *bucket) drain(limit, nowMs int64) {
	d := nowMs - b.atMs
	switch {
	case limit <= 0 || d > 0 && b.used/limit < d:
		b.used = 0
	case d > 0:
		b.used -= limit * d
	}
	b.atMs = max(b.atMs, nowMs)
}

// add charges n, or gives back -n. The bucket has been drained.
func (b *bucket) add(limit, n int64) {
	if limit > 0 {
		b.used = min(max(b.used+n*minuteMs, 0), limit*minuteMs*maxDebt)
	}
}

// waitMs is how long from now n has no room. The bucket has been drained; n is at most limit.
func (b *bucket) waitMs(limit, n int64) int64 {
	if limit <= 0 {
		return 0
	}
	return max(0, ceilDiv(b.used+(n-limit)*minuteMs, limit))
}

// promise returns when somebody who was refused n should come back, not before waitMs and behind those who were told a
// time before.
func (b *bucket) promise(limit, n, waitMs, nowMs int64) int64 {
	step := ceilDiv(n*minuteMs, limit)
	if n >= limit-limit*roundMs/minuteMs {
		// It needs nearly all of the bucket, which no longer drains when it is empty: by coming up to roundMs late,
		// the one before takes that time away.
		step += roundMs
	}
	return queued(&b.promisedMs, waitMs, step, nowMs)
}

// queued finds the next free time in a line of promises and notes it in last.
func queued(last *int64, waitMs, stepMs, nowMs int64) int64 {
	if *last > nowMs {
		waitMs = min(max(waitMs, *last+stepMs-nowMs), waitMs+spreadMs)
	}
	*last = nowMs + waitMs
	return waitMs
}

// standing is the bucket as a client is told it. The bucket has been drained.
func (b *bucket) standing(limit int64) Mark {
	return Mark{Limit: limit, Remaining: max(0, limit*minuteMs-b.used) / minuteMs, ResetMs: ceilDiv(b.used, limit)}
}

// ceilDiv is a/b rounded up, for b above 0.
func ceilDiv(a, b int64) int64 {
	if a <= 0 {
		return a / b
	}
	return (a + b - 1) / b
}
