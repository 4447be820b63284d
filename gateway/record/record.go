package record

import "sluice/slo"

// Limits of what one record holds.
const (
	// MaxTries bounds the tries that are kept; further ones are counted only.
	MaxTries = 8
	// MaxIDBytes bounds ids; longer ones of engines are cut.
	MaxIDBytes = 128
)

// Record is one request. The zero value is an empty one. Not safe for concurrent use.
type Record struct {
	// StartUnixNs is when the request arrived, wall time in nanoseconds since 1970.
	StartUnixNs int64
	// QueueMs is the wait for a replica, TTFTMs the time from arrival to the first token of a stream, ITLMs the mean time
	// between its tokens, E2EMs the time from arrival to the last byte. 0: there was none.
	QueueMs, TTFTMs, ITLMs, E2EMs float64

	// Client is the address that the request came from, without its port.
	Client string
	// Method is the HTTP method if it is one of the API's, else empty. Endpoint is the path if it is one of the API's,
	// with {id} for what varies, else empty.
	Method, Endpoint string
	// Tenant and Key name whom the request is booked to; Key is the key's id, never its secret.
	Tenant, Key string
	// Model is a name of the routing table, else empty. Version and Replica are of the try that counted.
	Model, Version, Replica string
	// Class is the request's, empty for what is no inference.
	Class  string
	Stream bool
	// Probe: a health check, which is told only when it failed.
	Probe bool

	// Status is the HTTP status that the client got, 0 when it was gone before.
	Status  int
	Outcome slo.Outcome
	// Code is the code of the error that the gateway told, empty without one.
	Code string
	// InputTokens and OutputTokens are as booked.
	InputTokens, OutputTokens int
	// BytesIn is the length of the request's body, BytesOut what was written to the client, head included where it
	// went out with the answer.
	BytesIn, BytesOut int64

	// Trace is the trace that the request belongs to; without one it is the zero value. Parent is the client's span, zero
	// without one.
	Trace  Context
	Parent [8]byte

	// TellLine and TellSpan belong to package sink.
	TellLine, TellSpan bool

	id      id
	tries   [MaxTries]Try
	numTry  int
	dropped int // tries without room
}

// Try is one request to a replica.
type Try struct {
	// Replica and Version name what was asked.
	Replica, Version string
	// Status is the engine's, 0 when it gave none. Outcome is how the try ended.
	Status  int
	Outcome slo.Outcome
	// AtMs is when the try began, after the request's arrival; E2EMs how long it took.
	AtMs, E2EMs float64

	upstream id
}

// id is a short text without a character that could harm a log.
type id struct {
	text [MaxIDBytes]byte
	len  uint8
}

// set copies b, cut; whatever is not a letter, a digit or one of -_.: becomes a question mark.
func (d *id) set(b []byte) {
	d.len = uint8(min(len(b), MaxIDBytes))
	for i, ch := range b[:d.len] {
		if !PlainID(ch) {
			ch = '?'
		}
		d.text[i] = ch
	}
}

func (d *id) bytes() []byte { return d.text[:d.len] }

// PlainID reports that an id may hold the character.
func PlainID(ch byte) bool {
	return ch-'0' <= 9 || ch-'a' <= 25 || ch-'A' <= 25 || ch == '-' || ch == '_' || ch == '.' || ch == ':'
}

// Reset makes r empty.
func (r *Record) Reset() { *r = Record{} }

// SetID copies the request's id.
func (r *Record) SetID(b []byte) { r.id.set(b) }

// ID is the request's id. The slice lives until Reset.
func (r *Record) ID() []byte { return r.id.bytes() }

// Begin adds a try and returns it, to be filled; nil when there is no room for more.
func (r *Record) Begin(replica string) *Try {
	if r.numTry == MaxTries {
		r.dropped++
		return nil
	}
	t := &r.tries[r.numTry]
	*t = Try{Replica: replica}
	r.numTry++
	return t
}

// Tries are those that were kept. The slice lives until Reset.
func (r *Record) Tries() []Try { return r.tries[:r.numTry] }

// SetUpstreamID copies the request id that the engine gave in its answer.
func (t *Try) SetUpstreamID(b []byte) { t.upstream.set(b) }

// UpstreamID is the engine's id of the request. The slice lives until the record is reset.
func (t *Try) UpstreamID() []byte { return t.upstream.bytes() }
