package main

import (
	"os"
	"path/filepath"
	"testing"
)

// A line that a crash cut short does not spoil the next one.
func TestOpenLinesEndsTheLastLine(t *testing.T) {
	for before, want := range map[string]string{"": "next\n", "whole\n": "whole\nnext\n", "cut": "cut\nnext\n"} {
		path := filepath.Join(t.TempDir(), "lines")
		if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := openLines(path)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString("next\n")
		f.Close()
		if got, _ := os.ReadFile(path); string(got) != want {
			t.Errorf("%q became %q, want %q", before, got, want)
		}
	}
}
