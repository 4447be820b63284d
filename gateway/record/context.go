package record

// Context names a trace and one span in it, as traceparent does. The zero value is none.
type Context struct {
	TraceID [16]byte
	SpanID  [8]byte
	Flags   byte
}

// Flags of a trace.
const (
	// Sampled: who wrote the header records this trace.
	Sampled byte = 1
	// knownFlags are passed on; what later versions may add is not, as the recommendation wants.
	knownFlags = Sampled
)

// Limits of tracestate: the recommendation wants 512 bytes and 32 members to be passed on.
const (
	maxStateBytes   = 512
	maxStateMembers = 32
)

// parentBytes is the length of a traceparent of version 00.
const parentBytes = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")

// Valid reports that c names a trace.
func (c Context) Valid() bool { return c.TraceID != [16]byte{} && c.SpanID != [8]byte{} }

// IsSampled reports that the trace is being recorded.
func (c Context) IsSampled() bool { return c.Flags&Sampled != 0 }

// ParseContext reads a traceparent. A later version than 00 is read as far as 00 goes.
func ParseContext(b []byte) (Context, bool) {
	var c Context
	var version, flags [1]byte
	if len(b) < parentBytes || b[2] != '-' || b[35] != '-' || b[52] != '-' ||
		!readHex(version[:], b[:2]) || !readHex(c.TraceID[:], b[3:35]) || !readHex(c.SpanID[:], b[36:52]) || !readHex(flags[:], b[53:55]) {
		return Context{}, false
	}
	switch {
	case version[0] == 0xff, version[0] == 0 && len(b) > parentBytes, len(b) > parentBytes && b[parentBytes] != '-':
		return Context{}, false
	}
	c.Flags = flags[0] & knownFlags
	if !c.Valid() {
		return Context{}, false
	}
	return c, true
}

// Append appends c as a traceparent of version 00.
func (c Context) Append(dst []byte) []byte {
	dst = append(dst, "00-"...)
	dst = appendHex(dst, c.TraceID[:])
	dst = append(dst, '-')
	dst = appendHex(dst, c.SpanID[:])
	dst = append(dst, '-')
	return appendHex(dst, []byte{c.Flags})
}

// ValidState reports that a tracestate header may be passed on: printable, within the limits, and not empty.
func ValidState(b []byte) bool {
	if len(b) == 0 || len(b) > maxStateBytes {
		return false
	}
	members := 1
	for _, ch := range b {
		switch {
		case ch == ',':
			members++
		case (ch < ' ' || ch > '~') && ch != '\t':
			return false
		}
	}
	return members <= maxStateMembers
}

const hexDigits = "0123456789abcdef"

func appendHex(dst, b []byte) []byte {
	for _, ch := range b {
		dst = append(dst, hexDigits[ch>>4], hexDigits[ch&15])
	}
	return dst
}

// readHex reads lower-case digits, two for each byte of dst.
func readHex(dst, b []byte) bool {
	for i := range dst {
		high, low := nibble(b[2*i]), nibble(b[2*i+1])
		if high > 15 || low > 15 {
			return false
		}
		dst[i] = high<<4 | low
	}
	return true
}

func nibble(ch byte) byte {
	switch {
	case ch-'0' <= 9:
		return ch - '0'
	case ch-'a' <= 5:
		return ch - 'a' + 10
	}
	return 0xff
}
