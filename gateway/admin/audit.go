package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// AuditEntry is one line of the audit log. A change has two: "asked", written
// before anything is done, and "done" or "refused". A call without the right
// has one, "denied". No entry holds a body, a header or a secret.
type AuditEntry struct {
	At        string `json:"at"` // RFC 3339, UTC
	RequestID string `json:"requestId"`
	Who       string `json:"who,omitempty"`
	Role      Role   `json:"role,omitempty"`
	Peer      string `json:"peer"`
	Action    string `json:"action"` // "model.apply"
	Object    string `json:"object"`
	Result    string `json:"result"`         // asked, done, refused, denied
	Code      string `json:"code,omitempty"` // of the refusal
}

// auditLog writes entries one at a time.
type auditLog struct {
	now func() time.Time

	mu   sync.Mutex
	w    io.Writer // guarded by mu
	torn bool      // guarded by mu: the last line has no end, since the disk was full in the middle of it
}

func (a *auditLog) write(e AuditEntry) error {
	e.At = a.now().UTC().Format(time.RFC3339Nano)
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("audit entry: %w", err)
	}
	line = append(line, '\n')
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := a.w.Write(line)
	if err != nil {
		a.torn = a.torn || n > 0
		return fmt.Errorf("audit log: %w", err)
	}
	a.torn = false
	return nil
}

func (a *auditLog) denied(r *http.Request, who Actor) {
	// A failure to record a denial changes nothing: the call is refused anyway.
	_ = a.write(AuditEntry{RequestID: requestID(r), Who: who.Name, Role: who.Role, Peer: peerOf(r), Action: r.Method, Object: clip(r.URL.Path), Result: "denied"})
}

func peerOf(r *http.Request) string {
	if name, ok := LocalPeer(r); ok {
		return "unix " + name
	}
	return r.RemoteAddr
}
