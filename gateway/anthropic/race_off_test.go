//go:build !race

package anthropic

const raceOn = false
