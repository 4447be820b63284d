package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"

	"github.com/valyala/fasthttp"

	"sluice/gateway/wire"
	"sluice/router"
	"sluice/router/own"
	"sluice/router/prefix"
	"sluice/slo"
)

// handle is fasthttp's way in.
func (s *Server) handle(ctx *fasthttp.RequestCtx) {
	c, ok := ctx.Conn().(*clientConn)
	if !ok {
		ctx.SetStatusCode(fasthttp.StatusInternalServerError) // not one of our listener's connections: our own fault
		return
	}
	k := s.calls.Get().(*call)
	k.begin(ctx, c)
	defer k.end()
	k.route()
}

// route sends the request where its path says. Paths are compared as they were sent: what is spelled otherwise does
// not exist, so no spelling gets around a check.
func (k *call) route() {
	ctx := k.ctx
	if !k.sound() {
		return
	}
	path := ctx.Request.Header.RequestURI()
	if q := bytes.IndexByte(path, '?'); q >= 0 {
		path = path[:q]
	}
	if k.preflight(path) {
		return
	}
	get := ctx.IsGet() || ctx.IsHead()
	switch string(path) {
	case "/livez":
		k.probe(get, true)
	case "/health", "/healthz", "/readyz":
		k.probe(get, k.srv.ready())
	case "/v1/models":
		k.listModels(get)
	default:
		if e := endpointOf(path); e != nil {
			if k.endpoint = e; e.path != "" {
				k.infer()
				return
			}
		}
		if name, ok := bytes.CutPrefix(path, []byte("/v1/models/")); ok {
			k.describeModel(get, name)
			return
		}
		if rest, ok := bytes.CutPrefix(path, []byte("/v1/responses/")); ok {
			k.keptResponse(rest)
			return
		}
		k.refuse(fasthttp.StatusNotFound, slo.BadRequest, "not_found", noPath, 0)
	}
}

func (s *Server) ready() bool {
	return !s.draining.Load() && (s.deps.Ready == nil || s.deps.Ready())
}

func (k *call) probe(get, good bool) {
	switch {
	case !get:
		k.notAllowed("GET")
	case good:
		k.answer(fasthttp.StatusOK, []byte(`{"status":"ok"}`))
	default:
		k.answer(fasthttp.StatusServiceUnavailable, []byte(`{"status":"not ready"}`))
	}
}

func (k *call) notAllowed(allow string) {
	k.ctx.Response.Header.Set("Allow", allow)
	k.refuse(fasthttp.StatusMethodNotAllowed, slo.BadRequest, "method_not_allowed", "Use "+allow+" here.", 0)
}

// answer sends a small body of our own.
func (k *call) answer(status int, body []byte) {
	k.moveDeadline() // a refusal may come after a long wait
	h := &k.ctx.Response.Header
	k.ctx.Response.SetStatusCode(status)
	h.SetContentType("application/json")
	h.SetBytesV("X-Request-Id", k.id)
	k.tellLimits(h)
	if k.endpoint.dialect == dialectAnthropic {
		h.SetBytesV("Request-Id", k.id)
	}
	k.srv.setCORS(k.ctx)
	k.ctx.Response.SetBody(body)
	k.told.status, k.told.sent = status, k.told.sent+int64(len(body))
	if k.srv.draining.Load() {
		k.ctx.SetConnectionClose()
	}
}

const (
	wantKey = "Send a valid key: as Authorization: Bearer KEY, or as x-api-key."
	noPath  = "There is nothing at this path. Those of the API begin with /v1 and end without a slash, as /v1/chat/completions."
)

// refuse answers with an error of our own and notes the outcome. retryAfterMs counts for 429 and 503 only.
func (k *call) refuse(status int, outcome slo.Outcome, code, message string, retryAfterMs int64) {
	k.outcome = outcome
	k.refuseParam(status, code, message, "", retryAfterMs)
}

func (k *call) refuseParam(status int, code, message, param string, retryAfterMs int64) {
	if status == fasthttp.StatusTooManyRequests || status == fasthttp.StatusServiceUnavailable {
		seconds := max(1, (retryAfterMs+999)/1000)
		k.ctx.Response.Header.Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
	k.told.code = code
	k.out = k.endpoint.dialect.appendError(k.out[:0], status, wire.Error{Message: message, Type: errorType(status), Param: param, Code: code}, k.id)
	k.answer(status, k.out)
}

// errorType is the type of an error with this status.
func errorType(status int) string {
	switch {
	case status == 401:
		return wire.TypeAuthentication
	case status == 403:
		return wire.TypePermission
	case status == 429:
		return wire.TypeRateLimit
	case status == 503:
		return wire.TypeOverloaded
	case status >= 500:
		return wire.TypeServer
	}
	return wire.TypeInvalidRequest
}

// keyHash is a secret's SHA-256 in hexadecimal.
type keyHash [2 * sha256.Size]byte

// keyOf finds the key of a request. Without any keys everybody on this machine may pass.
func (s *Server) keyOf(h *fasthttp.RequestHeader, hash *keyHash) (Key, bool) {
	if s.deps.Keys.Empty() {
		return Key{Tenant: "default"}, s.loopback.Load()
	}
	secret := h.Peek("Authorization")
	if len(secret) > 7 && bytes.EqualFold(secret[:7], []byte("Bearer ")) {
		secret = bytes.TrimSpace(secret[7:])
	} else {
		secret = h.Peek("X-Api-Key")
	}
	if len(secret) == 0 {
		return Key{}, false
	}
	sum := sha256.Sum256(secret)
	hex.Encode(hash[:], sum[:])
	return s.deps.Keys.Lookup(hash[:])
}

// authenticate finds the key, or answers 401.
func (k *call) authenticate() bool {
	var ok bool
	if k.key, ok = k.srv.keyOf(&k.ctx.Request.Header, &k.hash); !ok {
		k.ctx.Response.Header.Set("Www-Authenticate", "Bearer")
		k.refuse(fasthttp.StatusUnauthorized, slo.RefusedAuth, "invalid_api_key", wantKey, 0)
	}
	return ok
}

// infer serves one inference request. Each step answers and stops when it refuses.
func (k *call) infer() {
	if !k.ctx.IsPost() {
		k.notAllowed("POST")
		return
	}
	k.books = k.srv.books.of(unknownModel)
	k.ask.Class = k.srv.cfg.DefaultClass
	if !k.authenticate() || !k.scan() || !k.permit() || !k.times() || !k.pinPrevious() || !k.translate() || !k.charge() {
		return
	}
	if !k.endpoint.free {
		k.observed = true
		k.books.inFlight.Add(1)
		k.srv.deps.Observer.Arrived(k.model.Name, k.ask.Class, k.srv.deps.NowMs())
	}
	k.srv.budget.request()
	if k.ask.Class == slo.Interactive {
		k.srv.hedges.request()
	}
	k.dispatch()
}

// scan reads the head of the body and of what concerns it.
func (k *call) scan() bool {
	if !k.inflate() {
		return false
	}
	if err := k.scanHead(); err != nil {
		k.unusable(err)
		return false
	}
	if len(k.head.Model) == 0 {
		k.outcome = slo.BadRequest
		k.refuseParam(fasthttp.StatusBadRequest, "missing_model", "Say which model: the field is missing or empty.", "model", 0)
		return false
	}
	k.head.Stream = k.head.Stream && k.endpoint.streams
	if k.endpoint.vectors && k.head.Encoding == wire.EncodingOther {
		k.outcome = slo.BadRequest
		k.refuseParam(fasthttp.StatusBadRequest, "invalid_encoding_format", "Write float or base64.", "encoding_format", 0)
		return false
	}
	return k.class()
}

func (k *call) scanHead() error {
	req := &k.ctx.Request
	if k.endpoint.form {
		return k.head.ScanForm(req.Header.ContentType(), req.Body())
	}
	return k.head.Scan(req.Body())
}

// unusable refuses a body for what err says.
func (k *call) unusable(err error) {
	k.outcome = slo.BadRequest
	var be *wire.BodyError
	param := ""
	if errors.As(err, &be) {
		param = be.Param
	}
	k.refuseParam(fasthttp.StatusBadRequest, "invalid_body", "The body cannot be used: "+err.Error()+".", param, 0)
}

// class reads the wanted class and holds it under the key's ceiling.
func (k *call) class() bool {
	if sent := k.ctx.Request.Header.Peek("X-Sluice-Class"); len(sent) > 0 {
		class, err := slo.ParseClass(string(sent))
		if err != nil {
			k.refuse(fasthttp.StatusBadRequest, slo.BadRequest, "invalid_class",
				"x-sluice-class must be interactive, standard or batch.", 0)
			return false
		}
		k.ask.Class = class
	}
	k.ask.Class = max(k.ask.Class, k.key.ClassCeiling)
	return true
}

// bytesPerToken is the usual length of a token, for estimates.
const bytesPerToken = 4

// dispatch takes the request to a replica, to another one if the first fails before the answer began, or refuses.
func (k *call) dispatch() {
	ask := &k.ask
	ask.Tenant, ask.TenantWeight = k.key.Tenant, k.key.TenantWeight
	k.hashPrompt()
	for try := 1; ; try++ { // ends: MaxTries
		if err := k.at.acquire(k.conn.gone); err != nil {
			k.notAdmitted(err)
			return
		}
		k.queueMs = max(k.queueMs, k.at.ticket.QueueMs())
		v := k.try()
		k.release()
		if v == elsewhere && (try >= k.srv.cfg.MaxTries || !k.inTime() || !k.srv.budget.spend()) {
			v = failed
		}
		switch v {
		case answered:
			return
		case failed:
			k.tellFailure()
			return
		}
		k.srv.books.retries.Inc()
		k.leaveOut(k.at.replica.ID)
	}
}

// leaveOut keeps the request from going to a replica again.
func (k *call) leaveOut(replica string) {
	tried := k.exclude[:k.excluded]
	if k.excluded == len(k.exclude) || slices.Contains(tried, replica) {
		return
	}
	k.exclude[k.excluded] = replica
	k.excluded++
	k.ask.Exclude = k.exclude[:k.excluded]
}

// hashPrompt fills in the block hashes of the prompt, for cache affinity.
func (k *call) hashPrompt() {
	block := k.srv.cfg.PrefixBlockBytes
	if block == 0 || k.head.Prompt.Len() < block {
		return
	}
	prompt := k.payload()[k.head.Prompt.Start:k.head.Prompt.End]
	prompt = prompt[:min(len(prompt), maxPrompt)]
	k.prefix = prefix.Hash(k.prefix[:0], prefix.Seed(k.model.Name, k.target.Adapter, k.key.Tenant), prompt, block)
	k.ask.Prefix, k.ask.BlockTokens = k.prefix, block/bytesPerToken
}

// notAdmitted answers when no replica takes the request. What an engine said before counts more.
func (k *call) notAdmitted(err error) {
	var no *router.Refusal
	switch {
	case errors.Is(err, own.ErrGone) || k.conn.left():
		k.clientLeft()
	case k.estimates():
		k.tellEstimate()
	case k.at.failure.status != 0:
		k.tellFailure()
	case errors.As(err, &no):
		k.refuse(fasthttp.StatusServiceUnavailable, no.Outcome, no.Code, no.Message, no.RetryAfterMs)
	case errors.Is(err, router.ErrUnknownModel):
		k.unknownModel(nil)
	default:
		k.refuse(fasthttp.StatusServiceUnavailable, slo.Internal, "unavailable", "The gateway cannot serve now.", 1000)
	}
}

// clientLeft ends a request that nobody waits for. Cut by a shutdown, the client is told.
func (k *call) clientLeft() {
	if k.conn.cut.Load() {
		k.refuse(fasthttp.StatusServiceUnavailable, slo.NoReplica, "shutting_down", "The gateway is shutting down.", 1000)
		k.ctx.SetConnectionClose()
		return
	}
	k.outcome = slo.ClientGone
	k.direct, k.closing = true, true
}
