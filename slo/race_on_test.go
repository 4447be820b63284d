//go:build race

package slo

// raceEnabled: the race detector allocates, so allocation tests are skipped.
const raceEnabled = true
