package anthropic

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"sluice/gateway/wire"
)

// TestGolden plays the files in testdata: each command translates its input and the expected output follows.
//
//	chat                 a Messages request to a chat completions request
//	count                the estimate of a count_tokens request
//	message [hide]       a chat completion to a message
//	stream [hide]        chunks, one a line, to events; "-" ends the stream without [DONE]
//	error status=N       an engine's error to one of the Messages API
func TestGolden(t *testing.T) {
	datadriven.Walk(t, "testdata/golden", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			a := Answer{ID: "req_1", Model: "big"}
			a.HideThinking = d.HasArg("hide")
			switch d.Cmd {
			case "chat":
				chat, _, err := AppendChat(nil, []byte(d.Input))
				if err != nil {
					return told(t, err)
				}
				return indented(t, chat)
			case "count":
				chat, err := AppendCountChat(nil, []byte(d.Input))
				if err != nil {
					return told(t, err)
				}
				return string(AppendCount(nil, EstimateTokens(chat))) + "\n"
			case "message":
				message, err := AppendMessage(nil, []byte(d.Input), a)
				if err != nil {
					if !errors.Is(err, ErrAnswer) {
						t.Errorf("%v is no ErrAnswer", err)
					}
					return err.Error() + "\n"
				}
				return indented(t, message)
			case "stream":
				return streamed(a, d.Input)
			case "error":
				var status int
				d.ScanArgs(t, "status", &status)
				kind, message := EngineError([]byte(d.Input), status)
				return string(AppendError(nil, Error{Type: kind, Message: message, RequestID: []byte("req_1")})) + "\n"
			}
			return "no such command\n"
		})
	})
}

func told(t *testing.T, err error) string {
	t.Helper()
	var be *wire.BodyError
	if !errors.As(err, &be) {
		t.Errorf("%v is no BodyError", err)
	}
	return "400 " + err.Error() + "\n"
}

func indented(t *testing.T, body []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, body, "", " "); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return b.String() + "\n"
}

// streamed shows the events that follow from each line.
func streamed(a Answer, input string) string {
	var s Stream
	s.Begin(a)
	var b strings.Builder
	for line := range strings.Lines(input) {
		line = strings.TrimSuffix(line, "\n")
		var out []byte
		switch {
		case line == "-":
			out = s.End(nil)
		case strings.HasPrefix(line, ":"):
			out = s.Feed(nil, []byte(line+"\n\n"))
		default:
			out = s.Feed(nil, []byte("data: "+line+"\n\n"))
		}
		shown := line
		if len(shown) > 40 {
			shown = shown[:40] + "…"
		}
		fmt.Fprintf(&b, "> %s\n", shown)
		for event := range strings.SplitSeq(strings.TrimSuffix(string(out), "\n\n"), "\n\n") {
			if _, data, ok := strings.Cut(event, "\ndata: "); ok {
				b.WriteString(data + "\n")
			}
		}
	}
	return b.String()
}
