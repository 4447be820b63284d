//go:build race

package sink

const raceOn = true
