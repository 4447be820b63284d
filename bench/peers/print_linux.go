package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"time"

	"sluice/bench/peers/peer"
)

// report prints the tables and writes the file.
func (b *bench) report() error {
	fmt.Println()
	printTables(b.got, b.notes)
	if b.o.out == "" {
		return nil
	}
	return b.save()
}

func printTables(got results, notes []string) {
	names := []string{nameDirect}
	for _, p := range peer.All() {
		names = append(names, p.Name)
	}
	for _, p := range pages {
		if t := got.table(p, names, nameNginx); t != "" {
			fmt.Println(t)
		}
	}
	if t := got.judge(); t != "" {
		fmt.Println(t)
	}
	for _, n := range notes {
		fmt.Println("- " + n)
	}
}

// printFile prints what an earlier run has written.
func printFile(path string) error {
	var doc struct {
		Runs  results  `json:"runs"`
		Notes []string `json:"notes"`
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read an earlier run: %w", err)
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return fmt.Errorf("read an earlier run from %s: %w", path, err)
	}
	printTables(doc.Runs, doc.Notes)
	return nil
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
