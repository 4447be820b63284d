//go:build race

package own

// raceEnabled: the race detector allocates, so allocation tests are skipped.
const raceEnabled = true
