package engine

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"
)

func (e *engine) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { e.generate(w, r, true) })
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { e.generate(w, r, false) })
	mux.HandleFunc("POST /v1/embeddings", e.embeddings)
	mux.HandleFunc("POST /v1/responses", e.responses)
	mux.HandleFunc("GET /v1/responses/{id}", e.getResponse)
	mux.HandleFunc("DELETE /v1/responses/{id}", e.deleteResponse)
	mux.HandleFunc("POST /v1/responses/{id}/cancel", e.cancelResponse)
	for _, path := range []string{"/rerank", "/v1/rerank"} {
		mux.HandleFunc("POST "+path, e.rerank)
	}
	for _, path := range []string{"/score", "/v1/score"} {
		mux.HandleFunc("POST "+path, e.score)
	}
	mux.HandleFunc("POST /tokenize", e.tokenize)
	mux.HandleFunc("POST /detokenize", e.detokenize)
	mux.HandleFunc("POST /v1/audio/transcriptions", e.transcribe)
	mux.HandleFunc("POST /v1/audio/translations", e.transcribe)
	if e.cfg.Messages {
		mux.HandleFunc("POST /v1/messages", e.messages)
		mux.HandleFunc("POST /v1/messages/count_tokens", e.countTokens)
	}
	mux.HandleFunc("GET /v1/models", e.models)
	mux.HandleFunc("GET /health", e.health)
	mux.HandleFunc("GET /metrics", e.metrics)
	mux.HandleFunc("POST /sleep", e.handleSleep)
	mux.HandleFunc("POST /wake_up", e.handleWake)
	mux.HandleFunc("GET /is_sleeping", e.isSleeping)
	return mux
}

// writeError answers with err; a plain error is one of ours about the engine's state.
func (e *engine) writeError(w http.ResponseWriter, err error) {
	a := e.asAPIError(err)
	var param any // null without one
	if a.param != "" {
		param = a.param
	}
	if a.retryS > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(a.retryS))
	}
	writeJSON(w, a.status, map[string]any{"error": map[string]any{
		"message": a.message, "type": a.kind, "param": param, "code": a.status,
	}})
}

// asAPIError is err as it is told; a plain error is one of ours about the
// engine's state.
func (e *engine) asAPIError(err error) *apiError {
	var a *apiError
	switch {
	case errors.As(err, &a):
		return a
	case errors.Is(err, errQueueFull):
		e.stats.refused.Add(1)
		return &apiError{status: 503, kind: "ServiceUnavailableError", message: "the waiting queue is full", retryS: 1}
	case errors.Is(err, errStopped):
		return &apiError{status: 503, kind: "ServiceUnavailableError", message: "the engine is stopping", retryS: 1}
	case errors.Is(err, errAsleep), errors.Is(err, errLoading):
		return &apiError{status: 503, kind: "ServiceUnavailableError", message: "the engine is " + e.phase().String(), retryS: 1}
	case errors.Is(err, errLevel):
		return badRequest("%v", err)
	}
	return &apiError{status: 500, kind: "InternalServerError", message: err.Error()}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic("engine: our own answer cannot be encoded: " + err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func (e *engine) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, 200, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": e.cfg.ServedModel, "object": "model", "created": time.Now().Unix(), "owned_by": "sluice",
		"root": e.cfg.Model, "parent": nil, "max_model_len": e.cfg.MaxModelTokens,
	}}})
}

// health is 200 while requests are accepted.
func (e *engine) health(w http.ResponseWriter, _ *http.Request) {
	if e.phase() != awake {
		e.writeError(w, errAsleep)
		return
	}
	w.WriteHeader(200)
}

func (e *engine) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	e.writeMetrics(w)
}

// handleSleep goes on to its end even if the caller leaves: half asleep is
// no state to stay in.
func (e *engine) handleSleep(w http.ResponseWriter, r *http.Request) {
	level := 1
	if text := r.URL.Query().Get("level"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			e.writeError(w, badRequest("level must be 1 or 2, not %q", text))
			return
		}
		level = n
	}
	if err := e.sleep(level); err != nil {
		e.writeError(w, err)
		return
	}
	w.WriteHeader(200)
}

func (e *engine) handleWake(w http.ResponseWriter, _ *http.Request) {
	if err := e.wake(); err != nil {
		e.writeError(w, err)
		return
	}
	w.WriteHeader(200)
}

func (e *engine) isSleeping(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, 200, map[string]bool{"is_sleeping": e.asleepNow()})
}
