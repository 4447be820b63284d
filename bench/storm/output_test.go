package storm

import (
	"io"
	"os"
	"syscall"
	"testing"
)

// TestNobodyReadsTheOutput lets the readers of a server's output go: it serves on, and ends in order.
func TestNobodyReadsTheOutput(t *testing.T) {
	e := newGatedEngine(t)
	close(e.gate)
	s := newSite(t, e.URL)
	s.signal(syscall.SIGTERM)
	s.exit()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.output = writer
	s.start("--access-log", "-", "--log-level", "debug")
	writer.Close()
	s.serves("chat")
	reader.Close()
	for range 20 {
		c := s.dial(post(chatBody, "Connection: close"))
		if raw, err := io.ReadAll(c); err != nil || len(raw) == 0 {
			t.Fatal(err)
		}
	}
	s.signal(syscall.SIGTERM)
	if state := s.exit(); state.ExitCode() != 0 {
		t.Error(state)
	}
}
