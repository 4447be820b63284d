package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"sluice/fill/exec"
)

// lineFile is an append-only file of lines, mode 0600, with one older file kept
// when it grows beyond its bound: twice maxBytes is the most it takes on disk.
// Safe for concurrent use.
type lineFile struct {
	path     string
	maxBytes int64
	mu       sync.Mutex
	f        *os.File // guarded by mu
	bytes    int64    // guarded by mu
	torn     bool     // guarded by mu: the last line has no end
}

func openLineFile(path string, maxBytes int64) (*lineFile, error) {
	l := &lineFile{path: path, maxBytes: maxBytes}
	return l, l.openLocked()
}

func (l *lineFile) openLocked() error {
	f, err := openLines(l.path)
	if err != nil {
		return fmt.Errorf("open %s: %w", filepath.Base(l.path), err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open %s: %w", filepath.Base(l.path), err)
	}
	l.f, l.bytes = f, st.Size()
	return nil
}

// openLines opens a file of lines to append to, 0600. A last line that was cut short (a crash, a full disk) is ended,
// so that it does not spoil the next one.
func openLines(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	var last [1]byte
	if st, err := f.Stat(); err != nil || st.Size() == 0 {
		return f, nil // what is wrong with the file, its writers will tell
	} else if _, err := f.ReadAt(last[:], st.Size()-1); err == nil && last[0] != '\n' {
		_, _ = f.WriteString("\n") // a disk that is still full will tell at the next line
	}
	return f, nil
}

// Write appends whole lines. After a write that the disk cut short, the next one
// begins with a line end, so that only the cut line is lost.
func (l *lineFile) Write(lines []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bytes > l.maxBytes {
		l.f.Close()
		if err := os.Rename(l.path, l.path+".1"); err != nil {
			return 0, fmt.Errorf("turn %s over: %w", filepath.Base(l.path), err)
		}
		if err := l.openLocked(); err != nil {
			return 0, err
		}
	}
	out := lines
	if l.torn {
		out = append([]byte{'\n'}, lines...)
	}
	n, err := l.f.Write(out)
	l.bytes += int64(n)
	l.torn = err != nil && (l.torn || n > 0)
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", filepath.Base(l.path), err)
	}
	return len(lines), nil
}

// Close closes the file.
func (l *lineFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}

// history is the file of events.
type history struct{ file *lineFile }

func openHistory(path string, maxBytes int64) (*history, error) {
	f, err := openLineFile(path, maxBytes)
	return &history{file: f}, err
}

func (h *history) add(events []exec.Recorded) error {
	if len(events) == 0 {
		return nil
	}
	var lines []byte
	for i := range events {
		line, err := json.Marshal(&events[i])
		if err != nil {
			return fmt.Errorf("write the history: %w", err)
		}
		lines = append(append(lines, line...), '\n')
	}
	_, err := h.file.Write(lines)
	return err
}

func (h *history) close() { h.file.Close() }
