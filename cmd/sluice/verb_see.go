package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/gateway/admin"
	"sluice/nodes/registry"
)

// maxEventLine bounds one line of the event stream.
const maxEventLine = 1 << 20

func newEventsCmd() *cobra.Command {
	c := &cobra.Command{Use: "events", Short: "What happened, and why", Args: argCount(0, ""),
		Example: "  sluice events\n  sluice events -f -o json\n  sluice events --since 1042"}
	conn, out := addClientFlags(c), outputFlag(c)
	follow := c.Flags().BoolP("follow", "f", false, "go on as things happen")
	since := c.Flags().Int64("since", -1, "events behind this sequence number (default: the last 100)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := out.check(c); err != nil {
			return err
		}
		cl, err := conn.open()
		if err != nil {
			return err
		}
		q := url.Values{}
		if *follow {
			q.Set("follow", "true")
		}
		if *since >= 0 {
			q.Set("since", fmt.Sprint(*since))
		}
		body, err := cl.stream(c.Context(), apiPath("events")+"?"+q.Encode())
		if err != nil {
			return err
		}
		defer body.Close()
		lines := bufio.NewScanner(body)
		lines.Buffer(nil, maxEventLine)
		for lines.Scan() {
			if len(lines.Bytes()) == 0 {
				continue // beat
			}
			var e admin.Recorded
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				return fmt.Errorf("an event is not understood; use a client of the server's version: %w", err)
			}
			if err := printEvent(c, out, &e); err != nil {
				return err
			}
		}
		if c.Context().Err() != nil {
			return nil
		}
		if err := lines.Err(); err != nil {
			return fmt.Errorf("the events broke off; look at the server: %w", err)
		}
		return nil
	}
	return c
}

func printEvent(c *cobra.Command, out *output, e *admin.Recorded) error {
	if out.format != "table" {
		return out.line(c.OutOrStdout(), e)
	}
	_, err := fmt.Fprintf(c.OutOrStdout(), "%6d  %s  %s\n", e.Seq, clock(e.AtMs), clean(eventText(&e.Event), false))
	return err
}

// clock is the time of day here of an event.
func clock(atMs int64) string { return time.UnixMilli(atMs).Format("15:04:05.000") }

// eventText is one event in one line, without its time.
func eventText(e *registry.Event) string {
	text := e.Kind + " " + e.Object
	if e.From != "" || e.To != "" {
		text += " " + transition(e.From, e.To)
	}
	if e.Rung != "" {
		text += fmt.Sprintf(" (%s)", e.Rung)
	}
	if e.Kind == "manifest" {
		text += fmt.Sprintf(" step %d of %d ranks", e.Steps, e.World)
	}
	switch n := len(e.GPUs); n {
	case 0:
	case 1:
		text += " 1 GPU"
	default:
		text += fmt.Sprintf(" %d GPUs", n)
	}
	if e.TookMs > 0 {
		text += " in " + ago(e.TookMs)
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

func newWhyCmd() *cobra.Command {
	c := &cobra.Command{Use: "why OBJECT", Short: "Why a job, model, replica, node or GPU is as it is", Args: argCount(1, "the name of a job, model, replica, node or GPU"),
		Example: "  sluice why bert\n  sluice why model/chat\n  sluice why GPU-6d1f…"}
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		var w admin.Why
		segments := strings.SplitN(args[0], "/", 2)
		if err := fetch(c, conn, out, apiPath(append([]string{"why"}, segments...)...), &w); err != nil {
			return err
		}
		return out.print(c, w, func(t *table) {
			head := fmt.Sprintf("%s %s: %s", w.Kind, w.Object, w.State)
			if w.ForMs > 0 {
				head += " for " + ago(w.ForMs)
			}
			t.text("%s", head)
			for _, l := range w.Lines {
				t.text("  %s", l)
			}
			if len(w.Events) > 0 {
				t.text("Lately:")
			}
			for i := range w.Events {
				t.text("  %s  %s", clock(w.Events[i].AtMs), eventText(&w.Events[i].Event))
			}
		})
	}
	return c
}

func newBooksCmd() *cobra.Command {
	c := &cobra.Command{Use: "books", Short: "Where every GPU-second went", Example: "  sluice books\n  sluice books -o json", Args: argCount(0, "")}
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		var b admin.BooksStatus
		if err := fetch(c, conn, out, apiPath("books"), &b); err != nil {
			return err
		}
		return out.print(c, b, func(t *table) { booksTable(t, &b) })
	}
	return c
}

func booksTable(t *table, b *admin.BooksStatus) {
	t.row("STATE", "GPU-SECONDS", "SHARE")
	share := func(v float64) string {
		if b.CapacitySeconds <= 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f%%", 100*v/b.CapacitySeconds)
	}
	for _, state := range registry.BookStates() {
		v := b.GPUSeconds[state.String()]
		t.row(state, fmt.Sprintf("%.1f", v), share(v))
	}
	t.row("capacity", fmt.Sprintf("%.1f", b.CapacitySeconds), share(b.CapacitySeconds))
	t.row("balance", fmt.Sprintf("%.3f", b.BalanceSeconds), "0 when the books are exact")
	t.row("resident", fmt.Sprintf("%.1f", b.ResidentSeconds), "memory kept beside a holder, a second book")
	for _, tenant := range slices.Sorted(maps.Keys(b.Tenants)) {
		var parts []string
		for _, state := range slices.Sorted(maps.Keys(b.Tenants[tenant])) {
			parts = append(parts, fmt.Sprintf("%s %.1f", state, b.Tenants[tenant][state]))
		}
		t.row("tenant "+tenant, strings.Join(parts, ", "), "")
	}
}

func newStatusCmd() *cobra.Command {
	c := &cobra.Command{Use: "status", Short: "The whole picture, once", Example: "  sluice status\n  sluice status -o json", Args: argCount(0, "")}
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		var s admin.Status
		if err := fetch(c, conn, out, apiPath("status"), &s); err != nil {
			return err
		}
		return out.print(c, s, func(t *table) {
			for _, l := range statusLines(&s) {
				t.text("%s", l)
			}
		})
	}
	return c
}
