package hold

import (
	"os"
	"path/filepath"
)

// logWriter writes to DIR/log and, when that has reached maxBytes, makes it
// log.1 and begins anew: at most twice maxBytes on disk. It swallows errors:
// a full disk must not end the holder. One goroutine only.
type logWriter struct {
	dir      string
	maxBytes int64
	f        *os.File
	size     int64
}

func openLog(dir string, maxBytes int64) (*logWriter, error) {
	if maxBytes <= 0 {
		maxBytes = DefaultLogMaxBytes
	}
	w := &logWriter{dir: dir, maxBytes: maxBytes}
	return w, w.open()
}

func (w *logWriter) open() error {
	f, err := os.OpenFile(filepath.Join(w.dir, LogFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	w.f, w.size = f, 0
	if st, err := f.Stat(); err == nil {
		w.size = st.Size()
	}
	return nil
}

// Write never fails and always takes all of p.
func (w *logWriter) Write(p []byte) (int, error) {
	rest := p
	for len(rest) > 0 {
		if w.size >= w.maxBytes {
			w.rotate()
		}
		n := min(int64(len(rest)), w.maxBytes-w.size)
		if w.f != nil {
			_, _ = w.f.Write(rest[:n])
		}
		w.size += n
		rest = rest[n:]
	}
	return len(p), nil
}

func (w *logWriter) rotate() {
	if w.f != nil {
		_ = w.f.Close()
	}
	_ = os.Rename(filepath.Join(w.dir, LogFile), filepath.Join(w.dir, OldLog))
	if err := w.open(); err != nil || w.size >= w.maxBytes {
		// Neither renamed nor opened: write nothing for one more length.
		w.f, w.size = nil, 0
	}
}

func (w *logWriter) close() {
	if w.f != nil {
		_ = w.f.Close()
	}
}
