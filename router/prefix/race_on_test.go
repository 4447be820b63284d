//go:build race

package prefix

// raceEnabled: the race detector allocates, so allocation tests are skipped.
const raceEnabled = true
