package replog

import (
	"bytes"
	"context"
	"io"
	"log"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// hclogger writes raft's messages to slog, one level lower than raft thinks
// of them for what every election says, since those are no news to an
// operator: info becomes debug, and for a single voter warn becomes debug too
// (a lone voter "misses" a leader at each start).
type hclogger struct {
	log   *slog.Logger
	name  string
	args  []any
	alone bool
}

var _ hclog.Logger = (*hclogger)(nil)

func newHclog(to *slog.Logger, alone bool) *hclogger {
	return &hclogger{log: to, name: "raft", alone: alone}
}

func (h *hclogger) slogLevel(level hclog.Level) slog.Level {
	switch {
	case level >= hclog.Error:
		return slog.LevelError
	case level == hclog.Warn && !h.alone:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

func (h *hclogger) Log(level hclog.Level, msg string, args ...any) {
	at := h.slogLevel(level)
	if level == hclog.Off || level == hclog.Trace || !h.log.Enabled(context.Background(), at) {
		return
	}
	out := make([]any, 0, len(h.args)+len(args))
	out = append(append(out, h.args...), args...)
	for i, a := range out {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			out[i] = slog.AnyValue(f[1:])
		}
	}
	h.log.Log(context.Background(), at, h.name+": "+msg, out...)
}

func (h *hclogger) Trace(msg string, args ...any) {}
func (h *hclogger) Debug(msg string, args ...any) { h.Log(hclog.Debug, msg, args...) }
func (h *hclogger) Info(msg string, args ...any)  { h.Log(hclog.Info, msg, args...) }
func (h *hclogger) Warn(msg string, args ...any)  { h.Log(hclog.Warn, msg, args...) }
func (h *hclogger) Error(msg string, args ...any) { h.Log(hclog.Error, msg, args...) }

func (h *hclogger) enabled(level hclog.Level) bool {
	return h.log.Enabled(context.Background(), h.slogLevel(level))
}

func (h *hclogger) IsTrace() bool { return false }
func (h *hclogger) IsDebug() bool { return h.enabled(hclog.Debug) }
func (h *hclogger) IsInfo() bool  { return h.enabled(hclog.Info) }
func (h *hclogger) IsWarn() bool  { return h.enabled(hclog.Warn) }
func (h *hclogger) IsError() bool { return h.enabled(hclog.Error) }

func (h *hclogger) ImpliedArgs() []any { return h.args }

func (h *hclogger) With(args ...any) hclog.Logger {
	c := *h
	c.args = append(append([]any(nil), h.args...), args...)
	return &c
}

func (h *hclogger) Name() string { return h.name }

func (h *hclogger) Named(name string) hclog.Logger { return h.ResetNamed(h.name + "." + name) }

func (h *hclogger) ResetNamed(name string) hclog.Logger {
	c := *h
	c.name = name
	return &c
}

// SetLevel does nothing: slog's handler decides.
func (h *hclogger) SetLevel(hclog.Level) {}

func (h *hclogger) GetLevel() hclog.Level { return hclog.Debug }

func (h *hclogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(h.StandardWriter(nil), "", 0)
}

func (h *hclogger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return lines{h} }

// lines takes a standard logger's output: one Write is one line.
type lines struct{ h *hclogger }

func (w lines) Write(p []byte) (int, error) {
	w.h.Info(string(bytes.TrimSpace(p)))
	return len(p), nil
}
