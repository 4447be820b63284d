package admin

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"sluice/nodes/registry"
)

// Reasons for which a call is refused before it reaches the controller.
var (
	ErrUnauthenticated = errors.New("no valid credential")
	ErrForbidden       = errors.New("not allowed")
)

// ErrUnavailable is wrapped by a Controller's errors that pass: no leader, no
// quorum, a full log. The text goes to the client.
var ErrUnavailable = errors.New("the controller takes no command now")

// Error is the body of every refusal, under "error".
type Error struct {
	Status  int    `json:"-"`
	Code    string `json:"code"` // stable
	Message string `json:"message"`
	Field   string `json:"field,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
	// Fields lists all that is wrong with a spec; the first is also above.
	Fields    []registry.FieldError `json:"fields,omitempty"`
	RequestID string                `json:"requestId,omitempty"`
}

// Error is the message and what to do.
func (e *Error) Error() string {
	text := e.Message
	if e.Field != "" {
		text = e.Field + ": " + text
	}
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

var errInternal = &Error{Status: http.StatusInternalServerError, Code: "internal", Message: "the server failed on this request",
	Remedy: "look for the request id in the server's log"}

func badRequest(message, remedy string) *Error {
	return &Error{Status: http.StatusBadRequest, Code: "bad_request", Message: message, Remedy: remedy}
}

func notFound(kind, name string) *Error {
	return &Error{Status: http.StatusNotFound, Code: "not_found", Message: fmt.Sprintf("there is no %s %q", kind, clip(name)),
		Remedy: fmt.Sprintf("list them with `sluice %s list`", kind)}
}

func invalid(faults []registry.FieldError) error {
	if len(faults) == 0 {
		return nil
	}
	return &Error{Status: http.StatusBadRequest, Code: "invalid_spec", Message: faults[0].Problem, Field: faults[0].Field,
		Remedy: faults[0].Remedy, Fields: faults}
}

// shape turns any error into the body to send. Errors of unknown kind tell the
// client nothing: their text is for the log.
func shape(err error) *Error {
	var e *Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &tooLarge):
		return &Error{Status: http.StatusRequestEntityTooLarge, Code: "too_large", Message: fmt.Sprintf("the body is above %d bytes", tooLarge.Limit),
			Remedy: "put long scripts and data in files on the nodes"}
	case errors.Is(err, ErrUnauthenticated):
		return &Error{Status: http.StatusUnauthorized, Code: "unauthenticated", Message: "the call has no valid credential",
			Remedy: "give an operator's token (SLUICE_TOKEN or --token-file), made with `sluice token create --role operator`"}
	case errors.Is(err, ErrForbidden):
		return &Error{Status: http.StatusForbidden, Code: "forbidden", Message: "this credential does not allow the call",
			Remedy: "use an operator's token"}
	case errors.Is(err, registry.ErrUnknown):
		return &Error{Status: http.StatusNotFound, Code: "not_found", Message: err.Error(), Remedy: "check the name"}
	case errors.Is(err, registry.ErrExists):
		return &Error{Status: http.StatusConflict, Code: "exists", Message: err.Error(), Remedy: "choose another name"}
	case errors.Is(err, registry.ErrConflict), errors.Is(err, registry.ErrStale):
		return &Error{Status: http.StatusConflict, Code: "conflict", Message: err.Error(), Remedy: "look at the object's state and try again"}
	case errors.Is(err, ErrUnavailable):
		return &Error{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: err.Error(), Remedy: "try again, or call the leader"}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &Error{Status: http.StatusServiceUnavailable, Code: "unavailable", Message: "the controller did not take the command in time",
			Remedy: "try again; the same name has one effect"}
	}
	return errInternal
}

func writeError(w http.ResponseWriter, r *http.Request, err error) {
	e := *shape(err)
	e.RequestID = requestID(r)
	switch e.Status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, e.Status, map[string]*Error{"error": &e})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	// An error here is a client that left: there is nobody to tell.
	_ = enc.Encode(v)
}

// decode reads one JSON document into v: unknown and repeated members are
// refused, as is anything behind it. Depth is bounded by encoding/json.
func decode(r *http.Request, v any) error {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return err
		}
		return badRequest("the body could not be read", "send it again")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return jsonError(err)
	}
	if dec.Decode(&struct{}{}) != io.EOF {
		return badRequest("something follows the JSON document", "send one document")
	}
	if key := repeated(raw); key != "" {
		return &Error{Status: http.StatusBadRequest, Code: "bad_request", Field: key, Message: "is there twice", Remedy: "keep one"}
	}
	return nil
}

func jsonError(err error) error {
	var typ *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &typ):
		return &Error{Status: http.StatusBadRequest, Code: "bad_request", Field: typ.Field, Message: "a JSON " + typ.Value + " does not fit",
			Remedy: "write a " + typ.Type.Kind().String()}
	case errors.As(err, &syntax):
		return badRequest(fmt.Sprintf("the body is not JSON, at byte %d", syntax.Offset), "send one JSON document")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return badRequest("the body is empty or cut off", "send one JSON document")
	}
	// encoding/json has no type for an unknown field, and texts of our own
	// UnmarshalText methods say what to write.
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return &Error{Status: http.StatusBadRequest, Code: "bad_request", Field: strings.Trim(clip(name), `"`), Message: "is not a field of this document",
			Remedy: "check its spelling in docs/model-yaml.md or docs/job-yaml.md"}
	}
	return badRequest(clip(err.Error()), "correct the value")
}

// repeated finds a member that stands twice in one object of valid JSON; ""
// when none does. Member names compare without case, as the decoder does.
func repeated(raw []byte) string {
	type level struct {
		object bool
		key    bool // the next token is a member's name
		seen   map[string]bool
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var stack []level
	for {
		tok, err := dec.Token()
		if err != nil {
			return ""
		}
		if d, ok := tok.(json.Delim); ok && (d == '}' || d == ']') {
			stack = stack[:len(stack)-1]
			continue
		}
		if top := len(stack) - 1; top >= 0 && stack[top].object {
			if l := &stack[top]; l.key {
				name := strings.ToLower(tok.(string))
				if l.seen[name] {
					return clip(tok.(string))
				}
				l.seen[name], l.key = true, false
				continue
			}
			stack[top].key = true
		}
		if d, ok := tok.(json.Delim); ok {
			stack = append(stack, level{object: d == '{', key: true, seen: map[string]bool{}})
		}
	}
}

type requestIDKey struct{}

func requestID(r *http.Request) string {
	id, _ := r.Context().Value(requestIDKey{}).(string)
	return id
}

// randomID is 64 random bits.
func randomID() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// clip bounds text from outside that goes into a message.
func clip(s string) string {
	const limit = 120
	if len(s) > limit {
		return s[:limit] + "…"
	}
	return s
}
