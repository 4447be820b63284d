package trace

import "math/rand/v2"

// Thin keeps each request with probability fraction. One seed keeps the same
// requests every time, and a smaller fraction keeps a subset of what a larger
// one keeps. The result is a new slice; Blocks are shared.
func Thin(requests []Request, fraction float64, seed uint64) []Request {
	rng := rand.New(rand.NewPCG(seed, 0x7468696e))
	out := make([]Request, 0, int(float64(len(requests))*min(max(fraction, 0), 1))+1)
	for _, q := range requests {
		if rng.Float64() < fraction {
			out = append(out, q)
		}
	}
	return out
}

// Slice returns the requests that arrive in [fromMs, toMs), with times from
// the beginning of the slice. Requests must be in order. A new slice.
func Slice(requests []Request, fromMs, toMs float64) []Request {
	var out []Request
	for _, q := range requests {
		if q.AtMs >= toMs {
			break
		}
		if q.AtMs >= fromMs {
			q.AtMs -= fromMs
			out = append(out, q)
		}
	}
	return out
}

// Speed returns the requests with all times divided by factor (> 0): 2 replays
// the trace in half its time. A new slice.
func Speed(requests []Request, factor float64) []Request {
	out := make([]Request, len(requests))
	for i, q := range requests {
		q.AtMs /= factor
		out[i] = q
	}
	return out
}
