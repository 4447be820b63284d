package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// defaultEvents are sent to who names no sequence number.
const defaultEvents = 100

var errBusy = &Error{Status: http.StatusServiceUnavailable, Code: "busy", Message: fmt.Sprintf("%d streams are open already", maxStreams), Remedy: "close some, or try again"}

// enter takes a place for a stream; leave gives it back.
func (s *Server) enter() error {
	select {
	case s.streams <- struct{}{}:
		return nil
	default:
		return errBusy
	}
}

func (s *Server) leave() { <-s.streams }

// getEvents answers with recorded events as NDJSON, oldest first:
// ?since=SEQ (default: the last 100), ?max=N, ?follow=true.
func (s *Server) getEvents(w http.ResponseWriter, r *http.Request, _ Actor) error {
	q := r.URL.Query()
	limit, err := queryInt(q.Get("max"), maxEventsPage, 1, maxEventsPage)
	if err != nil {
		return &Error{Status: http.StatusBadRequest, Code: "bad_request", Field: "max", Message: "is no number in range", Remedy: fmt.Sprintf("write 1 to %d", maxEventsPage)}
	}
	since, err := queryInt(q.Get("since"), -1, 0, 1<<62)
	if err != nil {
		return &Error{Status: http.StatusBadRequest, Code: "bad_request", Field: "since", Message: "is no sequence number", Remedy: "write the seq of the last event you have"}
	}
	follow := q.Get("follow") == "true"
	_, newest := s.ctl.Events(1<<62, 0)
	switch {
	case since < 0:
		since = max(0, newest-min(limit, defaultEvents))
	case since > newest:
		since = 0 // a number of before the server's restart: all it has is new
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	events, next := s.ctl.Events(since, int(limit))
	if !follow {
		return writeLines(w, events)
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	rc := lift(w)
	w.WriteHeader(http.StatusOK)
	for {
		rc.SetWriteDeadline(time.Now().Add(writeTimeout))
		if len(events) == 0 {
			if _, err := w.Write([]byte("\n")); err != nil { // beat: readers skip empty lines
				return nil
			}
		} else if err := writeLines(w, events); err != nil {
			return nil
		}
		if rc.Flush() != nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(r.Context(), beatInterval)
		s.ctl.WaitEvents(ctx, next)
		cancel()
		if r.Context().Err() != nil || s.ctx.Err() != nil {
			return nil
		}
		var after int64
		if events, after = s.ctl.Events(next, maxEventsPage); len(events) > 0 {
			next = after
		}
	}
}

func writeLines(w http.ResponseWriter, events []Recorded) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for i := range events {
		if err := enc.Encode(&events[i]); err != nil {
			return err
		}
	}
	return nil
}

// queryInt parses s within [lo, hi]; empty gives def.
func queryInt(s string, def, lo, hi int64) (int64, error) {
	if s == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < lo || n > hi {
		return 0, fmt.Errorf("%q: out of range", clip(s))
	}
	return n, nil
}
