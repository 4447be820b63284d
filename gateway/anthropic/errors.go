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

// AppendError appends an error body of the Messages API. An empty requestID is left out.
func AppendError(dst []byte, kind, message string, requestID []byte) []byte {
	dst = append(dst, `{"type":"error","error":{"type":`...)
	dst = wire.AppendQuoted(dst, kind)
	dst = append(dst, `,"message":`...)
	dst = wire.AppendQuoted(dst, message)
	dst = append(dst, '}')
	if len(requestID) > 0 {
		dst = append(dst, `,"request_id":`...)
		dst = wire.AppendQuoted(dst, string(requestID))
	}
	return append(dst, '}')
}

// AppendErrorEvent appends the event that ends a stream whose head has been sent already.
func AppendErrorEvent(dst []byte, kind, message string, requestID []byte) []byte {
	dst = append(dst, "event: error\ndata: "...)
	dst = AppendError(dst, kind, message, requestID)
	return append(dst, "\n\n"...)
}
