package sink

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// ErrConfig is wrapped by every error of Config.Validate.
var ErrConfig = errors.New("sink: setting out of range")

// Stdout as Config.LogFile writes the access log to standard output.
const Stdout = "-"

// Config says what is told, and where to. The zero value tells nothing.
type Config struct {
	// LogFile is the access log's path, or Stdout; empty: none. The file is appended to, and made with mode 0600.
	LogFile string
	// LogSample is the share of lines of requests that went well, above 0 to 1; 0 reads as 1. Others are always written.
	LogSample float64
	// TracesURL is where spans are posted to, whole: http://collector:4318/v1/traces. Empty: no traces.
	TracesURL string
	// TracesHeader goes with each post, with credentials maybe; it is never logged.
	TracesHeader http.Header
	// Resource describes this process, as service.name does, to whom spans are sent.
	Resource []Attribute
	// Fail is told of the first failure of each kind after things went well, and of recoveries; nil: nobody. It gets no
	// URL and no header.
	Fail func(what string, err error)
}

// Attribute is a name with a text.
type Attribute struct{ Name, Text string }

// Limits of headers and attributes, which a person writes.
const (
	maxHeaders    = 32
	maxAttributes = 64
)

// Validate returns nil, or an error that wraps ErrConfig and says what to write instead. It never quotes a URL or a
// header's value.
func (c *Config) Validate() error {
	if !(c.LogSample >= 0 && c.LogSample <= 1) {
		return fmt.Errorf("%w: the access log's sample is %v; write a number above 0 and not above 1", ErrConfig, c.LogSample)
	}
	if len(c.TracesHeader) > maxHeaders || len(c.Resource) > maxAttributes {
		return fmt.Errorf("%w: more than %d headers or %d attributes for traces; send fewer", ErrConfig, maxHeaders, maxAttributes)
	}
	for name, values := range c.TracesHeader {
		if !headerName(name) || slices.ContainsFunc(values, badValue) {
			return fmt.Errorf("%w: a header for traces has a name or a value that HTTP does not allow; write name=value, without control characters", ErrConfig)
		}
	}
	if c.TracesURL == "" {
		return nil
	}
	u, err := url.Parse(c.TracesURL)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
		return fmt.Errorf("%w: the address for traces is no URL; write http://host:4318 or https://host", ErrConfig)
	case u.User != nil, u.RawQuery != "", u.Fragment != "":
		return fmt.Errorf("%w: the address for traces holds a user, a query or a fragment; send a credential in OTEL_EXPORTER_OTLP_HEADERS", ErrConfig)
	}
	return nil
}

func headerName(s string) bool {
	for _, ch := range s {
		if ch <= ' ' || ch >= 0x7f || strings.ContainsRune(`()<>@,;:\"/[]?={}`, ch) {
			return false
		}
	}
	return s != ""
}

func badValue(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}
