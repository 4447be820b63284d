package sink

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"sluice/gateway/record"
)

// Limits of the file.
const (
	// writeBytes is how much is put together for one write.
	writeBytes = 64 << 10
	logMode    = 0o600
)

// logFile is the access log. The sink's goroutine owns it.
type logFile struct {
	path  string
	out   io.WriteCloser
	open  func(path string) (io.WriteCloser, error)
	buf   []byte
	lines int  // in buf
	torn  bool // the last write ended within a line
	sick  bool // the last write failed
	fail  func(what string, err error)
}

func openLog(path string, fail func(string, error)) (*logFile, error) {
	l := &logFile{path: path, open: openAppend, fail: fail}
	out, err := l.open(path)
	if err != nil {
		return nil, err
	}
	l.out = out
	return l, nil
}

// openAppend opens the path for lines at its end.
func openAppend(path string) (io.WriteCloser, error) {
	if path == Stdout {
		return keptOpen{os.Stdout}, nil
	}
	// Opening a pipe that nobody reads would wait for a reader, for ever.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_NONBLOCK, logMode)
	if errors.Is(err, syscall.ENXIO) {
		return nil, fmt.Errorf("open the access log: nobody reads the pipe; start its reader first: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open the access log: %w", err)
	}
	return f, nil
}

// keptOpen is a file that is not ours to close.
type keptOpen struct{ *os.File }

func (keptOpen) Close() error { return nil }

// add appends a line; a full buffer is written. It returns how many lines were written and lost.
func (l *logFile) add(r *record.Record) (written, lost int) {
	l.buf = r.AppendLine(l.buf)
	l.lines++
	if len(l.buf) < writeBytes {
		return 0, 0
	}
	return l.flush()
}

// flush writes what is there.
func (l *logFile) flush() (written, lost int) {
	if l.lines == 0 {
		return 0, 0
	}
	lines, out := l.lines, l.buf
	if l.torn { // the rest of a torn line is lost; what follows must stay readable
		out = append([]byte{'\n'}, out...)
	}
	n, err := l.out.Write(out)
	l.buf, l.lines = l.buf[:0], 0
	if n > 0 {
		l.torn = err != nil && out[n-1] != '\n'
	}
	switch {
	case err != nil && !l.sick:
		l.fail("the access log cannot be written; lines are dropped", pathless(err))
	case err == nil && l.sick:
		l.fail("the access log is written again", nil)
	}
	if l.sick = err != nil; l.sick {
		return 0, lines
	}
	return lines, 0
}

// reopen goes on in a new file; the old one stays when it cannot be opened.
func (l *logFile) reopen() error {
	out, err := l.open(l.path)
	if err != nil {
		return err
	}
	_ = l.out.Close() // nothing of ours is in it that was not written
	l.out, l.torn = out, false
	return nil
}

func (l *logFile) close() { _ = l.out.Close() }
