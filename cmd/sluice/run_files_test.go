package main

import "testing"

func TestConnsWithin(t *testing.T) {
	for files, want := range map[uint64]int{0: 16, 64: 16, 256: 16, 1024: 384, 20_000: 9872, 1 << 20: 524_160, 1<<64 - 1: 2_097_024} {
		if got := connsWithin(files); got != want {
			t.Errorf("%d files: %d connections, want %d", files, got, want)
		}
	}
}
