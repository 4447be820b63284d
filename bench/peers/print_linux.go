package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"time"
)

// report prints the tables and writes the file.
func (b *bench) report() error {
	names := []string{nameDirect}
	for _, p := range b.peers {
		names = append(names, p.Name)
	}
	fmt.Println()
	for _, p := range pages {
		if t := b.got.table(p, names, nameNginx); t != "" {
			fmt.Println(t)
		}
	}
	if t := b.got.judge(); t != "" {
		fmt.Println(t)
	}
	for _, n := range b.notes {
		fmt.Println("- " + n)
	}
	if b.o.out == "" {
		return nil
	}
	return b.save()
}

// save writes everything as JSON. What could not be measured in a run is left out of its runs.
func (b *bench) save() error {
	runs := results{}
	for name, columns := range b.got {
		runs[name] = map[string][]float64{}
		for c, v := range columns {
			runs[name][c] = slices.DeleteFunc(slices.Clone(v), math.IsNaN)
		}
	}
	doc := map[string]any{"takenAt": time.Now().UTC().Format(time.RFC3339), "rounds": b.o.rounds, "windowS": b.o.secondsS,
		"go": runtime.Version(), "notes": b.notes, "peers": b.got.figures(), "runs": runs}
	out, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return fmt.Errorf("render the results: %w", err)
	}
	if err := os.WriteFile(b.o.out, append(out, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}
