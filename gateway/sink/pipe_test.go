package sink

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestPipeAsLog writes the log to a pipe: without a reader the start is refused, not held up, and so is a rotation.
func TestPipeAsLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip("no pipes here:", err)
	}
	if _, err := Open(Config{LogFile: path}); !errors.Is(err, syscall.ENXIO) || !strings.Contains(err.Error(), "start its reader first") {
		t.Fatalf("%v", err)
	}
	reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	s, err := Open(Config{LogFile: path})
	if err != nil {
		t.Fatal(err)
	}
	s.Put(s.Take())
	s.Close(t.Context())
	if line, err := bufio.NewReader(reader).ReadString('\n'); err != nil || !strings.HasPrefix(line, "{") {
		t.Errorf("%q %v", line, err)
	}
}
