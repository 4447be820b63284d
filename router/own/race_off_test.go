//go:build !race

package own

const raceEnabled = false
