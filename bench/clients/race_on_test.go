//go:build race

package clients

const raceOn = true
