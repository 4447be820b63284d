package wire

// Types of errors, as official SDKs know them. They follow the status, the code says the cause.
const (
	TypeInvalidRequest = "invalid_request_error" // 400, 404, 413, 415
	TypeAuthentication = "authentication_error"  // 401
	TypePermission     = "permission_error"      // 403
	TypeRateLimit      = "rate_limit_error"      // 429
	TypeOverloaded     = "overloaded_error"      // 503
	TypeServer         = "server_error"          // 500, 502, 504
)

// Error is what a client is told. Param and Code are null when empty.
type Error struct {
	Message string
	Type    string
	Param   string
	Code    string
}

// AppendError appends the usual error body of the OpenAI API.
func AppendError(dst []byte, e Error) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = AppendQuoted(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = AppendQuoted(dst, e.Type)
	dst = append(dst, `,"param":`...)
	dst = appendQuotedOrNull(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = appendQuotedOrNull(dst, e.Code)
	return append(dst, "}}"...)
}

func appendQuotedOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return AppendQuoted(dst, s)
}

// AppendErrorEvent appends the event that ends a stream whose head has been sent already. Official SDKs raise on a
// data event with an error member; no [DONE] follows, so no reader takes the end for a good one.
func AppendErrorEvent(dst []byte, e Error) []byte {
	dst = append(dst, "data: "...)
	dst = AppendError(dst, e)
	return append(dst, "\n\n"...)
}

// AppendTypedErrorEvent is AppendErrorEvent for streams of typed events, as those of OpenAI's responses. Its error
// member is what official SDKs raise on; the rest is the event that the API describes.
func AppendTypedErrorEvent(dst []byte, e Error) []byte {
	dst = append(dst, "event: error\ndata: {\"type\":\"error\",\"message\":"...)
	dst = AppendQuoted(dst, e.Message)
	dst = append(dst, `,"param":`...)
	dst = appendQuotedOrNull(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = appendQuotedOrNull(dst, e.Code)
	dst = append(dst, ',')
	from := len(dst)
	dst = AppendError(dst, e)
	dst = append(dst[:from], dst[from+1:]...) // the brace: it is one object
	return append(dst, "\n\n"...)
}

// DoneEvent is the end marker of a stream in the OpenAI API.
const DoneEvent = "data: [DONE]\n\n"
