package engine

import (
	"net/http"
	"slices"
	"sync"
)

// maxStored is how many responses are kept; the oldest goes first.
const maxStored = 256

// stored are the responses that can be asked for again. Safe for concurrent use.
type stored struct {
	mu    sync.Mutex
	byID  map[string]*responseAnswer // guarded by mu
	order []string                   // guarded by mu; the oldest first
	ended map[string]string          // guarded by mu; id → "cancelled"
}

func (s *stored) put(a *responseAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID, s.ended = map[string]*responseAnswer{}, map[string]string{}
	}
	if len(s.order) >= maxStored {
		s.dropLocked(s.order[0])
	}
	s.byID[a.id] = a
	s.order = append(s.order, a.id)
}

func (s *stored) dropLocked(id string) {
	delete(s.byID, id)
	delete(s.ended, id)
	s.order = slices.DeleteFunc(s.order, func(o string) bool { return o == id })
}

// get returns a response and its status.
func (s *stored) get(id string) (*responseAnswer, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.byID[id]
	if a == nil {
		return nil, ""
	}
	if status := s.ended[id]; status != "" {
		return a, status
	}
	return a, a.status()
}

// response finds the response of a path, or answers 404.
func (e *engine) response(w http.ResponseWriter, r *http.Request) (*responseAnswer, string) {
	a, status := e.stored.get(r.PathValue("id"))
	if a == nil {
		e.writeError(w, &apiError{status: 404, kind: "NotFoundError", message: "there is no response of this id", param: "response_id"})
	}
	return a, status
}

// getResponse serves GET /v1/responses/{id}: the response as it is, or with
// stream=true its events once more, after its end.
func (e *engine) getResponse(w http.ResponseWriter, r *http.Request) {
	a, status := e.response(w, r)
	if a == nil {
		return
	}
	if r.URL.Query().Get("stream") != "true" {
		writeJSON(w, 200, a.object(status))
		return
	}
	if status == "in_progress" {
		select {
		case <-a.sequence.finished:
		case <-r.Context().Done():
			return
		}
	}
	if a, status = e.stored.get(a.id); a == nil || status == "failed" || status == "cancelled" {
		e.writeError(w, badParam("stream", "the response has ended without events"))
		return
	}
	again := &responseAnswer{job: a.job, id: a.id, model: a.model, createdS: a.createdS, background: a.background}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	_, _ = w.Write(again.lastEvents(again.events(nil, 0, a.outTokens)))
}

// cancelResponse ends one that runs in the background.
func (e *engine) cancelResponse(w http.ResponseWriter, r *http.Request) {
	a, status := e.response(w, r)
	if a == nil {
		return
	}
	if !a.background {
		e.writeError(w, badParam("response_id", "only a response in the background can be cancelled"))
		return
	}
	if status == "in_progress" {
		e.batch.cancel(a.sequence)
		status = "cancelled"
		e.stored.mu.Lock()
		e.stored.ended[a.id] = status
		e.stored.mu.Unlock()
	}
	writeJSON(w, 200, a.object(status))
}

func (e *engine) deleteResponse(w http.ResponseWriter, r *http.Request) {
	a, _ := e.response(w, r)
	if a == nil {
		return
	}
	if a.sequence != nil {
		e.batch.cancel(a.sequence)
	}
	e.stored.mu.Lock()
	e.stored.dropLocked(a.id)
	e.stored.mu.Unlock()
	writeJSON(w, 200, fields{"id": a.id, "object": "response", "deleted": true})
}
