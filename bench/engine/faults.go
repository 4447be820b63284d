package engine

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
)

// fault is what a request asks to go wrong, for tests of what stands before an
// engine. With Faults set, the last message (or the prompt) may contain
//
//	fault:KIND        every time
//	fault:KIND/KEY    the first time that KEY is seen
//
// where KIND is one of the constants below.
type fault string

const (
	refuse429 fault = "refuse-429" // answer 429 with Retry-After: 1
	refuse500 fault = "refuse-500" // answer 500
	refuse503 fault = "refuse-503" // answer 503 with Retry-After: 1
	die       fault = "die"        // cut the connection after faultTokens tokens of a stream, or instead of an answer
	stall     fault = "stall"      // say faultTokens tokens, then nothing, until the client leaves

	// error-SHAPE sends an error event after faultTokens tokens and ends the
	// stream; without a stream it is a 500.
	errorKind = "error-"
)

// faultTokens are said before a stream goes wrong.
const faultTokens = 3

// maxFaultKeys bounds the keys that are remembered; after that many, faults
// with a key no longer happen.
const maxFaultKeys = 4096

// errorShapes are the ways in which engines tell an error in mid-stream.
var errorShapes = map[string]string{
	"object": `data: {"error":{"message":"engine died","type":"InternalServerError","param":null,"code":500}}` + "\n\n",
	"event":  "event: error\ndata: {\"message\":\"engine died\"}\n\n",
	"string": `data: {"error":"engine died"}` + "\n\n",
	"flat":   `data: {"object":"error","message":"engine died","code":500}` + "\n\n",
}

// faultMemory knows the keys of faults that happened.
type faultMemory struct {
	mu   sync.Mutex
	seen map[string]bool // guarded by mu
}

// first reports whether key is new, and remembers it.
func (m *faultMemory) first(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen[key] || len(m.seen) >= maxFaultKeys {
		return false
	}
	if m.seen == nil {
		m.seen = map[string]bool{}
	}
	m.seen[key] = true
	return true
}

// faultOf reads the marker in text, if faults are on and it is due.
func (e *engine) faultOf(text []byte) (fault, error) {
	if !e.cfg.Faults {
		return "", nil
	}
	_, marker, found := bytes.Cut(text, []byte("fault:"))
	if !found {
		return "", nil
	}
	if end := bytes.IndexFunc(marker, notInName); end >= 0 {
		marker = marker[:end]
	}
	kind, key, once := strings.Cut(string(marker), "/")
	if once && !e.faults.first(kind+"/"+key) {
		return "", nil
	}
	switch f := fault(kind); f {
	case refuse429:
		return "", &apiError{status: 429, kind: "RateLimitError", message: "a fault was asked for", retryS: 1}
	case refuse500:
		return "", &apiError{status: 500, kind: "InternalServerError", message: "a fault was asked for"}
	case refuse503:
		return "", &apiError{status: 503, kind: "ServiceUnavailableError", message: "a fault was asked for", retryS: 1}
	case die, stall:
		return f, nil
	default:
		if shape, ok := strings.CutPrefix(kind, errorKind); ok && errorShapes[shape] != "" {
			return f, nil
		}
		return "", badRequest("there is no fault %q", kind)
	}
}

// notInName ends a name in a marker.
func notInName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_/", r)
}

// goWrong ends a stream, whose first tokens have gone out, as f says.
func goWrong(w http.ResponseWriter, r *http.Request, f fault, out renderer) {
	switch shape, isError := strings.CutPrefix(string(f), errorKind); {
	case isError:
		_, _ = w.Write(out.failEvent(nil, shape))
	case f == stall:
		<-r.Context().Done()
	default:
		panic(http.ErrAbortHandler)
	}
}
