package slo

import "fmt"

// Outcome is how a request ended. The set is closed: every request ends in exactly one of these, and metrics and
// samples use the same names. The zero value is OK.
type Outcome uint8

// The outcomes.
const (
	OK               Outcome = iota // answered whole
	ClientGone                      // the client left first
	RefusedQueueFull                // the bounded queue had no place
	RefusedDeadline                 // it could not have been served within its deadline
	RefusedLimit                    // a limit of the tenant or the key
	RefusedAuth                     // no key, or one without the right
	BadRequest                      // the request itself is wrong
	UnknownModel                    // no such model or alias
	NoReplica                       // the model is known, nothing serves it now
	UpstreamError                   // the engine answered with an error
	UpstreamLost                    // the connection to the engine broke
	Timeout                         // first byte or next byte came too late
	Internal                        // our own fault
	// NumOutcomes is the size of an array with one place an outcome.
	NumOutcomes = 13
)

var outcomeNames = [NumOutcomes]string{
	"ok", "client_gone", "refused_queue_full", "refused_deadline", "refused_limit", "refused_auth", "bad_request",
	"unknown_model", "no_replica", "upstream_error", "upstream_lost", "timeout", "internal",
}

// Outcomes returns the closed set, in order.
func Outcomes() [NumOutcomes]Outcome {
	var all [NumOutcomes]Outcome
	for i := range all {
		all[i] = Outcome(i)
	}
	return all
}

// String returns the name used in metrics, or "outcome(n)" for a value out of range.
func (o Outcome) String() string {
	if int(o) < NumOutcomes {
		return outcomeNames[o]
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// ParseOutcome turns a name into an outcome; an unknown one returns an error that wraps ErrUnknownName.
func ParseOutcome(name string) (Outcome, error) {
	for i, n := range outcomeNames {
		if n == name {
			return Outcome(i), nil
		}
	}
	return Internal, fmt.Errorf("%w: outcome %q", ErrUnknownName, name)
}

// MarshalText returns the name; a value out of range is an error.
func (o Outcome) MarshalText() ([]byte, error) {
	if int(o) >= NumOutcomes {
		return nil, fmt.Errorf("%w: outcome number %d", ErrUnknownName, uint8(o))
	}
	return []byte(outcomeNames[o]), nil
}

// UnmarshalText is ParseOutcome.
func (o *Outcome) UnmarshalText(text []byte) error {
	got, err := ParseOutcome(string(text))
	if err != nil {
		return err
	}
	*o = got
	return nil
}

// UsedCapacity reports whether a request with this outcome held a replica for its whole service time and so counts
// as served. Only such samples teach the service model.
func (o Outcome) UsedCapacity() bool { return o == OK }

// SpendsBudget reports whether this outcome counts against the error budget: the service failed the client.
// A client that left, a wrong request, a missing right and a tenant's own limit do not.
func (o Outcome) SpendsBudget() bool {
	switch o {
	case RefusedQueueFull, RefusedDeadline, NoReplica, UpstreamError, UpstreamLost, Timeout, Internal:
		return true
	}
	return false
}
