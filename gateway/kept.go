package gateway

import (
	"bytes"
	"sync"

	"github.com/valyala/fasthttp"

	"sluice/gateway/wire"
	"sluice/slo"
)

// Limits of what is known about answers that engines keep.
const (
	// maxKept ids of responses are remembered; beyond it the oldest is forgotten. At most 20 MB.
	maxKept = 1 << 16
	// maxQueryBytes of a request about a response are passed on.
	maxQueryBytes = 512
)

// keptAt says where a response is and whose it is.
type keptAt struct {
	model   string
	replica string
	tenant  string
}

// keptBook knows which replica keeps which response (OpenAI's /v1/responses): an engine's store is its own, so what is
// said about a response later must reach the same replica. It lives in this gateway alone and is lost with it: a
// response it does not know is not found. Safe for concurrent use; the zero value is ready.
type keptBook struct {
	mu   sync.Mutex
	at   map[string]keptAt // guarded by mu
	ring []string          // guarded by mu; ids in the order they came
	next int               // guarded by mu; the oldest, once the ring is full
}

// note remembers a response.
func (b *keptBook) note(id []byte, at keptAt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at == nil {
		b.at = make(map[string]keptAt)
	}
	if old, ok := b.at[string(id)]; ok {
		if old.tenant == at.tenant { // else an engine gave an id twice: it stays with its first owner
			b.at[string(id)] = at
		}
		return
	}
	name := string(id)
	if len(b.ring) < maxKept {
		b.ring = append(b.ring, name)
	} else {
		delete(b.at, b.ring[b.next])
		b.ring[b.next] = name
		b.next = (b.next + 1) % maxKept
	}
	b.at[name] = at
}

// find tells where a response is. Those of other tenants do not exist.
func (b *keptBook) find(id []byte, tenant string) (at keptAt, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, known = b.at[string(id)]
	return at, known && at.tenant == tenant
}

// kept is what a call about a response sends to the engine. The zero value: it is none.
type kept struct {
	method string
	path   string
}

// keptEndpoint serves what is said about a response that an engine keeps.
var keptEndpoint = &endpoint{path: "/v1/responses/{id}", streams: true, free: true, speaks: speaksResponses, dialect: dialectResponses}

// noteKept remembers where an answer is kept, as soon as its id is known.
func (a *attempt) noteKept() {
	k := a.call
	if !k.endpoint.keeps || a.noted {
		return
	}
	id := a.stream.ID
	if !a.events {
		id = a.usage.ID()
	}
	if len(id) > 0 {
		a.noted = true
		k.srv.kept.note(id, keptAt{model: k.model.Name, replica: a.replica.ID, tenant: k.key.Tenant})
	}
}

// pinPrevious sends a request that goes on from an earlier response to the replica that keeps it. One that this gateway
// does not know is refused: it may be another tenant's, and only an engine could tell what is in it.
func (k *call) pinPrevious() bool {
	if !k.endpoint.keeps || len(k.head.Previous) == 0 {
		return true
	}
	at, known := k.srv.kept.find(k.head.Previous, k.key.Tenant)
	if !known || !k.holds(at) {
		k.outcome = slo.BadRequest
		k.refuseParam(fasthttp.StatusNotFound, "response_not_found", "The earlier response is not there any more.", "previous_response_id", 0)
		return false
	}
	if at.model == k.model.Name {
		k.ask.Only = at.replica
	}
	return true
}

// holds reports that the replica which kept a response is still there, and finds its model.
func (k *call) holds(at keptAt) bool {
	m, ok := k.srv.deps.Router.Table().Lookup(at.model)
	if !ok {
		return false
	}
	for i := range m.Replicas {
		if m.Replicas[i].ID == at.replica {
			return true
		}
	}
	return false
}

// keptResponse serves what is said about a response: GET and DELETE of it, POST …/cancel, GET …/input_items.
func (k *call) keptResponse(rest []byte) {
	k.endpoint = keptEndpoint
	id, verb, _ := bytes.Cut(rest, []byte("/"))
	method, allow := "", "GET"
	switch ctx := k.ctx; {
	case len(id) > wire.MaxResponseIDBytes || !validID(id):
	case string(verb) == "cancel":
		if allow = "POST"; ctx.IsPost() {
			method = "POST"
		}
	case string(verb) == "input_items" && ctx.IsGet(), len(verb) == 0 && ctx.IsGet():
		method = "GET"
	case len(verb) == 0 && ctx.IsDelete():
		method = "DELETE"
	case len(verb) == 0:
		allow = "GET, DELETE"
	case string(verb) != "input_items":
		id = nil
	}
	if len(id) == 0 || !validID(id) {
		k.refuse(fasthttp.StatusNotFound, slo.BadRequest, "not_found", noPath, 0)
		return
	}
	if method == "" {
		k.notAllowed(allow)
		return
	}
	k.books = k.srv.books.of(unknownModel)
	k.ask.Class = k.srv.cfg.DefaultClass
	path := "/v1/responses/" + string(id)
	if len(verb) > 0 {
		path += "/" + string(verb)
	}
	k.kept = kept{method: method, path: path + k.query()}
	if !k.authenticate() || !k.findKept(id) || !k.times() || !k.class() || !k.charge() {
		return
	}
	k.ask.Class = slo.Interactive // it is short, and what it cancels may hold the place that it waits for
	k.ask.WorkMs = 1
	k.dispatch()
}

// findKept finds the replica, or answers 404.
func (k *call) findKept(id []byte) bool {
	at, known := k.srv.kept.find(id, k.key.Tenant)
	if !known || !k.holds(at) {
		k.refuse(fasthttp.StatusNotFound, slo.BadRequest, "response_not_found",
			"This gateway knows no such response, or the replica that kept it is gone.", 0)
		return false
	}
	stream := k.head.Stream
	k.head.Scan([]byte("{}")) // of this request there is none
	k.head.Stream = stream
	k.model, _ = k.srv.deps.Router.Table().Lookup(at.model)
	if k.model == nil {
		k.unknownModel(nil)
		return false
	}
	k.target.Model, k.books = k.model, k.srv.books.of(k.model.Name)
	k.ask.Model, k.ask.Only = at.model, at.replica
	return true
}

// query is the request's query string for the engine, if it is harmless. It also tells whether a stream is asked for.
func (k *call) query() string {
	uri := k.ctx.Request.Header.RequestURI()
	at := bytes.IndexByte(uri, '?')
	if at < 0 || len(uri)-at > maxQueryBytes {
		return ""
	}
	for _, ch := range uri[at:] {
		if ch <= ' ' || ch > '~' || ch == '#' {
			return ""
		}
	}
	k.head.Stream = bytes.Contains(uri[at:], []byte("stream=true"))
	return string(uri[at:])
}
