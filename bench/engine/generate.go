package engine

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A client that takes nothing for stallLimit is cut off. The deadline is moved
// on every stallLimit/2, not at every write, which would cost a timer a token.
const stallLimit = 60 * time.Second

// generate serves /v1/chat/completions and /v1/completions.
func (e *engine) generate(w http.ResponseWriter, r *http.Request, chat bool) {
	body, err := readBody(w, r)
	if err != nil {
		e.writeError(w, err)
		return
	}
	j, err := e.parseGenerate(body, chat)
	if err != nil {
		e.writeError(w, err)
		return
	}
	prefix := "cmpl-"
	if chat {
		prefix = "chatcmpl-"
	}
	e.run(w, r, &j, &answer{job: j, id: e.newID(prefix), createdS: time.Now().Unix(), model: e.cfg.ServedModel}, e.writeError)
}

// run takes a job through the batch and writes its answer with out, refusals
// with fail.
func (e *engine) run(w http.ResponseWriter, r *http.Request, j *job, out renderer, fail func(http.ResponseWriter, error)) {
	interval := e.cfg.StreamInterval * j.choices
	switch {
	case !j.stream:
		interval = j.totalTokens() + 1 // nobody reads before the end
	case j.fault != "":
		interval = 1
	}
	s := newSequence(j.promptTokens, j.totalTokens(), interval)
	s.cut = j.finish == "length"
	if err := e.batch.submit(s); err != nil {
		fail(w, err)
		return
	}
	defer e.batch.cancel(s) // frees the slot of a client that left; else nothing
	if j.stream {
		e.stream(w, r, s, j.fault, out, interval, fail)
		return
	}
	select {
	case <-s.finished:
	case <-r.Context().Done():
		return
	}
	if s.stopped.Load() {
		fail(w, errStopped)
		return
	}
	if j.fault != "" {
		if strings.HasPrefix(string(j.fault), errorKind) {
			fail(w, &apiError{status: 500, kind: "InternalServerError", message: "engine died"})
			return
		}
		goWrong(w, r, j.fault, out)
		return
	}
	whole := out.whole()
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(whole)))
	_, _ = w.Write(whole)
}

func (e *engine) newID(prefix string) string {
	return fmt.Sprintf("%s%016x", prefix, mix(e.cfg.Seed^uint64(time.Now().UnixNano()))+uint64(e.ids.Add(1)))
}

// stream writes events as tokens appear. Several that appeared since the last
// write go out together, each still an event of its own. The head of the answer
// goes out with the first of them, so that up to then a refusal can be told.
func (e *engine) stream(w http.ResponseWriter, r *http.Request, s *sequence, wrong fault, out renderer, interval int, fail func(http.ResponseWriter, error)) {
	control := http.NewResponseController(w)
	// The server does not, and the connection may serve the next request.
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	var buf []byte
	var deadline time.Time
	sent, ended := 0, false
	for !ended {
		select {
		case <-s.notify:
		case <-s.finished:
			ended = true
		case <-r.Context().Done():
			return
		}
		if s.stopped.Load() {
			if sent == 0 {
				fail(w, errStopped)
				return
			}
			// A cut connection, as from a process that died: the stream must
			// not look complete.
			panic(http.ErrAbortHandler)
		}
		if sent == 0 {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			w.Header().Set("Cache-Control", "no-cache")
		}
		buf = buf[:0]
		n := int(s.produced.Load())
		if wrong != "" {
			n = min(n, faultTokens)
		}
		for sent < n {
			// The first token alone, then whole intervals, then the rest.
			to := 1
			if sent > 0 {
				to = sent + interval
			}
			if to > n {
				if !ended {
					break
				}
				to = n
			}
			buf = out.events(buf, sent, to)
			sent = to
		}
		if ended && wrong == "" {
			buf = out.lastEvents(buf)
		}
		if len(buf) == 0 {
			continue
		}
		if now := time.Now(); deadline.Sub(now) < stallLimit/2 {
			deadline = now.Add(stallLimit)
			_ = control.SetWriteDeadline(deadline)
		}
		if _, err := w.Write(buf); err != nil {
			return
		}
		if control.Flush() != nil {
			return
		}
		if wrong != "" && (ended || sent >= faultTokens) {
			goWrong(w, r, wrong, out)
			return
		}
	}
}
