//go:build race

package rank

// raceEnabled makes long seed loops shorter: the detector is ten times slower.
const raceEnabled = true
