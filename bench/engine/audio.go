package engine

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Limits of a transcription.
const (
	maxAudioBytes   = 64 << 20
	maxFieldBytes   = 64 << 10
	bytesPerSecond  = 16_000 // of audio, to tell its length
	audioTokensASec = 10     // of the prompt
)

// transcription is a checked request.
type transcription struct {
	model  string
	format string
	stream bool
	file   input
	bytes  int64
}

// transcribe serves /v1/audio/transcriptions and translations: words by Seed
// and the file's bytes, two a second of audio. Parts may come in any order.
func (e *engine) transcribe(w http.ResponseWriter, r *http.Request) {
	q, err := readTranscription(w, r)
	if err == nil {
		err = e.checkModel(q.model)
	}
	if err != nil {
		e.writeError(w, err)
		return
	}
	seconds := 1 + int(q.bytes/bytesPerSecond)
	j := job{stream: q.stream, choices: 1, promptTokens: seconds * audioTokensASec, outTokens: 2 * seconds, finish: "stop", seed: mix(e.cfg.Seed ^ q.file.hash)}
	if j.promptTokens+j.outTokens > e.cfg.MaxModelTokens {
		e.writeError(w, badParam("file", "the audio of %d s is too long for this model", seconds))
		return
	}
	out := &transcript{job: j, format: q.format, seconds: seconds}
	if q.format == "text" && !q.stream {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	e.run(w, r, &j, out, e.writeError)
}

func readTranscription(w http.ResponseWriter, r *http.Request) (transcription, error) {
	var q transcription
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		return q, badRequest("send the audio as multipart/form-data")
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	form := multipart.NewReader(http.MaxBytesReader(w, r.Body, maxAudioBytes), params["boundary"])
	for { // ends with the form, which is bounded
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return q, badRequest("the form did not arrive: %v", err)
		}
		if err := q.take(part); err != nil {
			return q, err
		}
	}
	if q.bytes == 0 {
		return q, badParam("file", "file is missing or empty")
	}
	return q, nil
}

func (q *transcription) take(part *multipart.Part) error {
	if part.FormName() == "file" {
		hash := xxhash.New()
		n, err := io.Copy(hash, part)
		if err != nil {
			return badRequest("the file did not arrive: %v", err)
		}
		q.bytes, q.file.hash = n, hash.Sum64()
		return nil
	}
	raw, err := io.ReadAll(io.LimitReader(part, maxFieldBytes))
	if err != nil {
		return badRequest("the form did not arrive: %v", err)
	}
	switch value := string(raw); part.FormName() {
	case "model":
		q.model = value
	case "stream":
		q.stream = value == "true"
	case "response_format":
		if value != "json" && value != "text" && value != "verbose_json" {
			return badParam("response_format", "response_format must be json, text or verbose_json, not %q", value)
		}
		q.format = value
	}
	return nil
}

// transcript renders transcriptions.
type transcript struct {
	job
	format  string
	seconds int
}

func (t *transcript) usage() fields {
	return fields{"type": "tokens", "input_tokens": t.promptTokens, "output_tokens": t.outTokens, "total_tokens": t.promptTokens + t.outTokens}
}

func (t *transcript) events(dst []byte, from, to int) []byte {
	for i := from; i < to; i++ {
		dst = fmt.Appendf(dst, "data: %s\n\n", encoded(fields{"type": "transcript.text.delta", "delta": t.tokenOf(i)}))
	}
	return dst
}

func (t *transcript) lastEvents(dst []byte) []byte {
	dst = fmt.Appendf(dst, "data: %s\n\n", encoded(fields{"type": "transcript.text.done", "text": t.text(0), "usage": t.usage()}))
	return append(dst, "data: [DONE]\n\n"...)
}

func (t *transcript) failEvent(dst []byte, shape string) []byte {
	return append(dst, errorShapes[shape]...)
}

func (t *transcript) whole() []byte {
	switch t.format {
	case "text":
		return []byte(t.text(0))
	case "verbose_json":
		return encoded(fields{"task": "transcribe", "language": "english", "duration": t.seconds, "text": t.text(0),
			"segments": []any{}, "usage": t.usage()})
	}
	return encoded(fields{"text": t.text(0), "usage": t.usage()})
}
