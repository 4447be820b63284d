package gateway

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/valyala/fasthttp"

	"sluice/slo"
)

// inflaters are gzip readers with what they read from; each holds about 40 KB.
var inflaters = sync.Pool{New: func() any { return new(inflater) }}

type inflater struct {
	gzip gzip.Reader
	from bytes.Reader
	room [32 << 10]byte
}

// errInflated: the body is larger than it may be.
var errInflated = errors.New("gateway: the decoded body is too large")

// inflate decodes a gzipped body, so that all that follows sees what the client meant; other codings are refused.
func (k *call) inflate() bool {
	req := &k.ctx.Request
	coding := bytes.TrimSpace(req.Header.ContentEncoding())
	switch {
	case len(coding) == 0, bytes.EqualFold(coding, []byte("identity")):
		return true
	case !bytes.EqualFold(coding, []byte("gzip")) && !bytes.EqualFold(coding, []byte("x-gzip")):
		k.refuse(fasthttp.StatusUnsupportedMediaType, slo.BadRequest, "unsupported_content_encoding",
			"Of the values of the Content-Encoding header only gzip and identity are read here.", 0)
		return false
	}
	body, err := gunzip(req.Body(), k.srv.cfg.MaxBodyBytes)
	switch {
	case errors.Is(err, errInflated):
		k.refuse(fasthttp.StatusRequestEntityTooLarge, slo.BadRequest, "body_too_large",
			fmt.Sprintf("The body is larger than %d bytes when it is decoded.", k.srv.cfg.MaxBodyBytes), 0)
		return false
	case err != nil:
		k.refuse(fasthttp.StatusBadRequest, slo.BadRequest, "invalid_body", "The body is not valid gzip, as Content-Encoding says.", 0)
		return false
	}
	req.SetBodyRaw(body)
	return true
}

// gunzip decodes p twice: the first time only to learn how large the result is, so that one of exactly that size is
// made, and none at all of what is too large.
func gunzip(p []byte, limit int) ([]byte, error) {
	z := inflaters.Get().(*inflater)
	defer inflaters.Put(z)
	size := 0
	if err := z.open(p); err != nil {
		return nil, err
	}
	for {
		n, err := z.gzip.Read(z.room[:])
		if size += n; size > limit {
			return nil, errInflated
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if err := z.open(p); err != nil {
		return nil, err
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(&z.gzip, body); err != nil {
		return nil, err
	}
	z.from.Reset(nil)
	return body, nil
}

func (z *inflater) open(p []byte) error {
	z.from.Reset(p)
	return z.gzip.Reset(&z.from)
}
