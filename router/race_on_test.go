//go:build race

package router

// raceEnabled: the race detector allocates, so allocation tests are skipped.
const raceEnabled = true
