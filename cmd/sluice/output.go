package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
)

// output is the value of -o.
type output struct {
	format string
	also   string // one more format, which the command writes itself
}

var outputFormats = []string{"table", "json", "yaml"}

// outputFlag adds -o to a command that prints.
func outputFlag(c *cobra.Command) *output {
	o := &output{}
	c.Flags().StringVarP(&o.format, "output", "o", "table", "table, json or yaml")
	// Errors: the flag was defined on the line above.
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputFormats, cobra.ShellCompDirectiveNoFileComp))
	return o
}

func (o *output) check(c *cobra.Command) error {
	known := outputFormats
	if o.also != "" {
		known = append(slices.Clone(known), o.also)
	}
	if slices.Contains(known, o.format) {
		return nil
	}
	last := len(known) - 1
	return &usageError{text: fmt.Sprintf("-o %s is no format; use %s or %s", o.format, strings.Join(known[:last], ", "), known[last]), see: c.CommandPath()}
}

// print writes v as JSON or YAML, or lets rows write it as a table.
func (o *output) print(c *cobra.Command, v any, rows func(*table)) error {
	if err := o.check(c); err != nil {
		return err
	}
	w := c.OutOrStdout()
	if o.format == "table" {
		t := &table{w: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
		rows(t)
		return t.flush()
	}
	return o.document(w, v)
}

// document writes one JSON document (indented) or YAML document.
func (o *output) document(w io.Writer, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err == nil && o.format == "yaml" {
		raw, err = yaml.JSONToYAML(raw)
	}
	if err != nil {
		return fmt.Errorf("printing the answer: %w", err)
	}
	_, err = fmt.Fprintln(w, strings.TrimRight(string(raw), "\n"))
	return err
}

// line writes one document of a stream: JSON on one line, YAML behind "---".
func (o *output) line(w io.Writer, v any) error {
	if o.format == "yaml" {
		if _, err := fmt.Fprintln(w, "---"); err != nil {
			return err
		}
		return o.document(w, v)
	}
	return json.NewEncoder(w).Encode(v)
}

// table writes rows in columns.
type table struct {
	w   *tabwriter.Writer
	err error
}

func (t *table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = clean(fmt.Sprint(c), false)
		if texts[i] == "" {
			texts[i] = "-"
		}
	}
	if _, err := fmt.Fprintln(t.w, strings.Join(texts, "\t")); err != nil && t.err == nil {
		t.err = err
	}
}

// text writes a line outside the columns.
func (t *table) text(format string, args ...any) {
	if _, err := fmt.Fprintln(t.w, clean(fmt.Sprintf(format, args...), false)); err != nil && t.err == nil {
		t.err = err
	}
}

func (t *table) flush() error {
	if err := t.w.Flush(); err != nil {
		return err
	}
	return t.err
}

// clean replaces control characters: text from jobs and engines must not move
// the cursor or forge a line.
func clean(s string, keepLines bool) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' && keepLines {
			return r
		}
		if r < 0x20 || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
}

// ago writes a duration in ms the short way: 850ms, 12s, 3m20s, 5h.
func ago(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", ms)
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}

// bytesText writes a size the way spec files take it.
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") + units[i]
}

func list(items []string) string { return strings.Join(items, ",") }
