package anthropic

import "sluice/gateway/wire"

// Types of errors that the Messages API has and chat completions has not, or names otherwise.
const (
	TypeNotFound = "not_found_error"   // 404
	TypeTooLarge = "request_too_large" // 413
	TypeAPI      = "api_error"         // 500, 502
	TypeTimeout  = "timeout_error"     // 504
)

// TypeOf is the type of an error with this HTTP status.
func TypeOf(status int) string {
	switch status {
	case 401:
		return wire.TypeAuthentication
	case 403:
		return wire.TypePermission
	case 404:
		return TypeNotFound
	case 413:
		return TypeTooLarge
	case 429:
		return wire.TypeRateLimit
	case 503, 529:
		return wire.TypeOverloaded
	case 504:
		return TypeTimeout
	}
	if status >= 500 {
		return TypeAPI
	}
	return wire.TypeInvalidRequest
}

// Error is what a client is told. An empty Code or RequestID is left out.
type Error struct {
	Type    string
	Message string
	// Code says the cause, by a name that does not change. The Messages API has no such member; its clients ignore it.
	Code      string
	RequestID []byte
}

// AppendError appends an error body of the Messages API.
func AppendError(dst []byte, e Error) []byte {
	dst = append(dst, `{"type":"error","error":{"type":`...)
	dst = wire.AppendQuoted(dst, e.Type)
	dst = append(dst, `,"message":`...)
	dst = wire.AppendQuoted(dst, e.Message)
	if e.Code != "" {
		dst = append(dst, `,"code":`...)
		dst = wire.AppendQuoted(dst, e.Code)
	}
	dst = append(dst, '}')
	if len(e.RequestID) > 0 {
		dst = append(dst, `,"request_id":`...)
		dst = wire.AppendQuoted(dst, string(e.RequestID))
	}
	return append(dst, '}')
}

// AppendErrorEvent appends the event that ends a stream whose head has been sent already.
func AppendErrorEvent(dst []byte, e Error) []byte {
	dst = append(dst, "event: error\ndata: "...)
	dst = AppendError(dst, e)
	return append(dst, "\n\n"...)
}

// IsError reports that a body is an error as the Messages API tells it.
func IsError(body []byte) bool {
	return string(member(body, "type")) == `"error"` && len(member(body, "error")) > 0
}
