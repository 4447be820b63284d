package engine

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"
)

// prefillOnly takes inputs through one prefill, as embeddings and rankings do.
// It reports false when the answer has been given or nobody waits for it.
func (e *engine) prefillOnly(w http.ResponseWriter, r *http.Request, tokens int) bool {
	if tokens > e.cfg.MaxModelTokens {
		e.writeError(w, badRequest("this model's maximum context length is %d tokens; the inputs have %d", e.cfg.MaxModelTokens, tokens))
		return false
	}
	s := newSequence(tokens, 0, 1)
	if err := e.batch.submit(s); err != nil {
		e.writeError(w, err)
		return false
	}
	defer e.batch.cancel(s)
	select {
	case <-s.finished:
	case <-r.Context().Done():
		return false
	}
	if s.stopped.Load() {
		e.writeError(w, errStopped)
		return false
	}
	return true
}

// decode reads a body into q and checks the model that name points to.
func (e *engine) decode(w http.ResponseWriter, r *http.Request, q any, name *string) bool {
	body, err := readBody(w, r)
	if err == nil {
		if err = json.Unmarshal(body, q); err != nil {
			err = badRequest("the body is not a request: %v", err)
		} else {
			err = e.checkModel(*name)
		}
	}
	if err != nil {
		e.writeError(w, err)
		return false
	}
	return true
}

// relevance is a number from 0 to 1 that Seed and the pair alone decide.
func (e *engine) relevance(a, b input) float64 {
	return float64(mix(e.cfg.Seed^mix(a.hash)^b.hash)>>11) / (1 << 53)
}

// rerank serves /v1/rerank: documents by relevance to a query, the best first.
func (e *engine) rerank(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model     string          `json:"model"`
		Query     json.RawMessage `json:"query"`
		Documents json.RawMessage `json:"documents"`
		TopN      int             `json:"top_n"`
	}
	if !e.decode(w, r, &q, &q.Model) {
		return
	}
	query, err := parseInputs(q.Query)
	if err != nil || len(query) != 1 {
		e.writeError(w, badParam("query", "query must be one text"))
		return
	}
	documents, err := parseInputs(q.Documents)
	if err != nil {
		e.writeError(w, badParam("documents", "documents %v", err))
		return
	}
	tokens := 0
	for _, d := range documents {
		tokens += query[0].tokens + d.tokens
	}
	if !e.prefillOnly(w, r, tokens) {
		return
	}
	var texts []string
	_ = json.Unmarshal(q.Documents, &texts) // token ids have no text to repeat
	type result struct {
		Index     int     `json:"index"`
		Document  any     `json:"document"`
		Relevance float64 `json:"relevance_score"`
	}
	results := make([]result, len(documents))
	for i, d := range documents {
		results[i] = result{Index: i, Relevance: e.relevance(query[0], d)}
		if i < len(texts) {
			results[i].Document = fields{"text": texts[i]}
		}
	}
	slices.SortStableFunc(results, func(a, b result) int {
		if a.Relevance > b.Relevance {
			return -1
		}
		return 1
	})
	if q.TopN > 0 && q.TopN < len(results) {
		results = results[:q.TopN]
	}
	writeJSON(w, 200, fields{"id": e.newID("rerank-"), "model": e.cfg.ServedModel, "results": results,
		"usage": fields{"prompt_tokens": tokens, "total_tokens": tokens}})
}

// score serves /v1/score: how well each text_2 fits text_1.
func (e *engine) score(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model string          `json:"model"`
		Text1 json.RawMessage `json:"text_1"`
		Text2 json.RawMessage `json:"text_2"`
	}
	if !e.decode(w, r, &q, &q.Model) {
		return
	}
	left, err := parseInputs(q.Text1)
	if err != nil || len(left) != 1 {
		e.writeError(w, badParam("text_1", "text_1 must be one text on this engine"))
		return
	}
	right, err := parseInputs(q.Text2)
	if err != nil {
		e.writeError(w, badParam("text_2", "text_2 %v", err))
		return
	}
	tokens, data := 0, make([]any, len(right))
	for i, t := range right {
		tokens += left[0].tokens + t.tokens
		data[i] = fields{"index": i, "object": "score", "score": e.relevance(left[0], t)}
	}
	if !e.prefillOnly(w, r, tokens) {
		return
	}
	writeJSON(w, 200, fields{"id": e.newID("score-"), "object": "list", "created": time.Now().Unix(), "model": e.cfg.ServedModel, "data": data,
		"usage": fields{"prompt_tokens": tokens, "total_tokens": tokens}})
}
