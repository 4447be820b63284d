package admin

import (
	"context"
	"net/http"
	"time"

	"sluice/nodes/registry"
)

// Changed answers every change.
type Changed struct {
	Object string           `json:"object"`
	Events []registry.Event `json:"events"`
}

// change records the wish, submits the command, and records what came of it.
func (s *Server) change(r *http.Request, who Actor, action, object string, c registry.Command) ([]registry.Event, error) {
	entry := AuditEntry{RequestID: requestID(r), Who: who.Name, Role: who.Role, Peer: peerOf(r), Action: action, Object: object, Result: "asked"}
	if err := s.audit.write(entry); err != nil {
		s.log.Error("control port: change refused, as it cannot be recorded", "requestId", entry.RequestID, "err", err)
		return nil, &Error{Status: http.StatusServiceUnavailable, Code: "audit_unavailable", Message: "the change cannot be recorded and was not made",
			Remedy: "make room for the audit log on the server"}
	}
	c.Author = who.Name
	ctx, cancel := context.WithTimeout(r.Context(), submitTimeout)
	defer cancel()
	events, err := s.ctl.Submit(ctx, c)
	entry.Result = "done"
	if err != nil {
		entry.Result, entry.Code = "refused", shape(err).Code
	}
	if werr := s.audit.write(entry); werr != nil {
		// The change stands and its asking is on record: only the log can tell more.
		s.log.Error("control port: result of a change not recorded", "requestId", entry.RequestID, "result", entry.Result, "err", werr)
	}
	return nonNil(events), err
}

// apply is change with the usual answer.
func (s *Server) apply(w http.ResponseWriter, r *http.Request, who Actor, action, object string, c registry.Command) error {
	events, err := s.change(r, who, action, object, c)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, Changed{Object: object, Events: events})
	return nil
}

// lift takes the deadlines off a request that becomes a stream.
func lift(w http.ResponseWriter) *http.ResponseController {
	rc := http.NewResponseController(w)
	rc.SetReadDeadline(time.Time{})
	rc.SetWriteDeadline(time.Time{})
	return rc
}
