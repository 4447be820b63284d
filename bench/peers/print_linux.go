package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"time"

	"sluice/bench/peers/peer"
	"sluice/bench/peers/stat"
)

// report prints the tables and writes the file.
func (b *bench) report() error {
	names := []string{direct}
	for _, p := range b.peers {
		names = append(names, p.Name)
	}
	fmt.Println()
	for _, col := range columns {
		b.table(col, names)
	}
	for _, n := range b.notes {
		fmt.Println("note:", n)
	}
	if b.o.out == "" {
		return nil
	}
	return b.save()
}

// table prints one column of all peers, with the ratio to tuned nginx.
func (b *bench) table(col string, names []string) {
	nginx := stat.Of(b.got[peer.NginxTuned][col])
	head := false
	for _, n := range names {
		f := stat.Of(b.got[n][col])
		if f.Runs == 0 {
			continue
		}
		if !head {
			fmt.Printf("%s\n", col)
			head = true
		}
		ratio := ""
		if nginx.Runs > 0 && nginx.Median > 0 {
			ratio = fmt.Sprintf("%.2f of nginx tuned", f.Median/nginx.Median)
		}
		fmt.Printf("  %-18s %-24s %s\n", n, cell(f), ratio)
	}
	if head {
		fmt.Println()
	}
}

// save writes everything as JSON.
func (b *bench) save() error {
	peers := map[string]map[string]stat.Figure{}
	for name, cols := range b.got {
		peers[name] = map[string]stat.Figure{}
		for col, v := range cols {
			peers[name][col] = stat.Of(v)
		}
	}
	doc := map[string]any{"takenAt": time.Now().UTC().Format(time.RFC3339), "rounds": b.o.rounds, "windowS": b.o.secondsS,
		"go": runtime.Version(), "notes": b.notes, "peers": peers, "runs": b.got}
	out, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return fmt.Errorf("render the results: %w", err)
	}
	if err := os.WriteFile(b.o.out, append(out, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}
