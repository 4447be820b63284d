package gateway

import (
	"sync"
	"sync/atomic"

	"github.com/valyala/fasthttp"
)

// bodies bounds what the bodies of all requests hold together. fasthttp makes room for a body as soon as its length is
// told, so a few bytes of many clients would otherwise take all the memory there is. Only bodies whose length is told and
// above strangerBodyBytes count: the rest is small, or takes room as it comes. Safe for concurrent use.
type bodies struct {
	limit int64
	used  atomic.Int64

	mu   sync.Mutex
	held map[*fasthttp.RequestHeader]int64 // guarded by mu; by the request that the body is of
}

// reserve takes n bytes for a request, until release. It reports false when there is no room.
func (b *bodies) reserve(h *fasthttp.RequestHeader, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.held[h] // of a request that ended with neither an answer nor an error: its context is in use again
	used := b.used.Load() - old + n
	if used > b.limit {
		delete(b.held, h)
		b.used.Add(-old)
		return false
	}
	b.held[h] = n
	b.used.Store(used)
	return true
}

// release gives back what the request has taken, if anything.
func (b *bodies) release(h *fasthttp.RequestHeader) {
	if b.used.Load() == 0 {
		return // no large body anywhere: the usual case
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used.Add(-b.held[h])
	delete(b.held, h)
}

// holds reports that the request's body has its room, or needs none.
func (b *bodies) holds(h *fasthttp.RequestHeader) bool {
	if h.ContentLength() <= strangerBodyBytes {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.held[h]
	return ok
}
