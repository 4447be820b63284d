package gateway

import (
	"errors"
	"io"
	"sync"

	"github.com/valyala/fasthttp"

	"sluice/gateway/relay"
	"sluice/gateway/wire"
	"sluice/slo"
)

// converter gives the vectors of an embeddings answer the form that the client asked for. It belongs to its call.
type converter struct {
	vectors wire.Vectors
	out     []byte // at most four times what is read at once
	failed  bool   // they cannot be read
	right   bool   // they have that form already
}

var converters = sync.Pool{New: func() any { return new(converter) }}

// beginVectors makes the call ready for the vectors of another try.
func (k *call) beginVectors() {
	if !k.endpoint.vectors {
		return
	}
	if k.convert == nil {
		k.convert = converters.Get().(*converter)
	}
	c := k.convert
	c.vectors.Base64 = k.head.Encoding == wire.EncodingBase64
	c.vectors.Reset()
	c.failed, c.right = false, false
}

// giveBack lets the converter serve another call. Safe on nil.
func (c *converter) giveBack() {
	if c != nil {
		converters.Put(c)
	}
}

// needed reports that the answer must pass through the converter. Safe on nil.
func (c *converter) needed() bool { return c != nil && !c.right }

// broken reports that the answer, whose reading ended with err, cannot be given the form asked for. Safe on nil.
func (c *converter) broken(err error) bool {
	return c != nil && (c.failed || errors.Is(err, io.EOF) && c.vectors.End() != nil)
}

// unreadable ends an answer whose vectors cannot be read; a vector of another length must never reach a client.
func (k *call) unreadable() verdict {
	if !k.begun {
		k.fail(fasthttp.StatusBadGateway, slo.UpstreamError, "upstream_malformed", "The engine's vectors cannot be read.")
		return elsewhere
	}
	k.breakOff(relay.ErrProtocol)
	return answered
}

// passVectors sends what the first n bytes of the room become. As soon as the first vector shows the right form the rest
// passes as it is, with the engine's length.
func (k *call) passVectors(n int) bool {
	a, c := k.at, k.convert
	var err error
	if c.out, err = c.vectors.Feed(c.out[:0], a.body()[:n]); err != nil {
		c.failed = true
		return false
	}
	last := a.exchange.Ended()
	if last && c.vectors.End() != nil {
		c.failed = true
		return false
	}
	if !k.begun {
		length := int64(-1)
		switch {
		case last:
			length = int64(len(c.out))
		case c.vectors.Found && !c.vectors.Changed:
			length, c.right = a.exchange.Length(), true
		}
		k.appendHead(length, false)
	}
	for rest := c.out; len(rest) > 0 || last && !k.sealed; { // ends: each turn sends all or a bufferful
		m := copy(a.body(), rest)
		if rest = rest[m:]; !k.send(m, last && len(rest) == 0) {
			return false
		}
	}
	return k.inTime()
}
