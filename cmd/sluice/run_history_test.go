package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLineFileIsBoundedAndEndsTornLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lines.jsonl")
	if err := os.WriteFile(path, []byte("whole\ncut sho"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := openLineFile(path, 256)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	line := []byte(strings.Repeat("x", 63) + "\n")
	if _, err := l.Write(line); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, append([]byte("whole\ncut sho\n"), line...)) {
		t.Fatalf("%q, %v", got, err)
	}
	for range 40 {
		if _, err := l.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{path, path + ".1"} {
		st, err := os.Stat(p)
		if err != nil || st.Size() > 256+2*int64(len(line)) || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", filepath.Base(p), st, err)
		}
	}
	if all, err := filepath.Glob(path + "*"); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
}
