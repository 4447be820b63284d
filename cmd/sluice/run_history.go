package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"sluice/fill/exec"
)

// history is the append-only file of events, with one older file kept when it
// grows beyond its bound.
type history struct {
	path     string
	maxBytes int64
	mu       sync.Mutex
	f        *os.File // guarded by mu
	bytes    int64    // guarded by mu
	torn     bool     // guarded by mu: the last line has no end
}

func openHistory(path string, maxBytes int64) (*history, error) {
	h := &history{path: path, maxBytes: maxBytes}
	return h, h.openLocked()
}

func (h *history) openLocked() error {
	f, err := openLines(h.path)
	if err != nil {
		return fmt.Errorf("open the history: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open the history: %w", err)
	}
	h.f, h.bytes = f, st.Size()
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

func (h *history) add(events []exec.Recorded) error {
	if len(events) == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bytes > h.maxBytes {
		h.f.Close()
		if err := os.Rename(h.path, h.path+".1"); err != nil {
			return fmt.Errorf("turn the history over: %w", err)
		}
		if err := h.openLocked(); err != nil {
			return err
		}
	}
	var lines []byte
	for i := range events {
		line, err := json.Marshal(&events[i])
		if err != nil {
			return fmt.Errorf("write the history: %w", err)
		}
		lines = append(append(lines, line...), '\n')
	}
	if h.torn {
		lines = append([]byte{'\n'}, lines...)
	}
	n, err := h.f.Write(lines)
	h.bytes += int64(n)
	h.torn = err != nil && (h.torn || n > 0)
	if err != nil {
		return fmt.Errorf("write the history: %w", err)
	}
	return nil
}

func (h *history) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.f.Close()
}
