package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"sluice/gateway/admin"
	"sluice/nodes/registry"
)

func newUsageCmd() *cobra.Command {
	c := &cobra.Command{Use: "usage", Short: "Requests and tokens of tenants, keys and models", Args: argCount(0, ""),
		Long: `Requests and tokens of each tenant, key and model, on a day and in its month (UTC).
Tokens marked as estimated were counted by the gateway, since the engine did not tell.
What was used in the last seconds is not shown yet. Days are kept for a week, months for a year.`,
		Example: "  sluice usage\n  sluice usage --tenant research -o csv\n  sluice usage --day 2026-11-30 -o json"}
	conn, out := addClientFlags(c), outputFlag(c)
	out.also = "csv"
	c.Flags().Lookup("output").Usage = "table, json, yaml or csv"
	tenant := c.Flags().String("tenant", "", "only this tenant")
	day := c.Flags().String("day", "", "another day, as 2026-11-30 (default: today)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		q := url.Values{}
		if *tenant != "" {
			q.Set("tenant", *tenant)
		}
		if *day != "" {
			q.Set("day", *day)
		}
		var u admin.Usage
		if err := fetch(c, conn, out, apiPath("usage")+"?"+q.Encode(), &u); err != nil {
			return err
		}
		if out.format == "csv" {
			return usageCSV(c.OutOrStdout(), &u)
		}
		return out.print(c, u, func(t *table) { usageTable(t, &u) })
	}
	return c
}

// usageTable shows each tenant, key and model with its month, and its day beside it.
func usageTable(t *table, u *admin.Usage) {
	day := map[[3]string]*registry.UsageRow{}
	for i := range u.Days {
		r := &u.Days[i]
		day[[3]string{r.Tenant, r.Key, r.Model}] = r
	}
	t.row("TENANT", "KEY", "MODEL", "REQUESTS "+u.Day, "TOKENS IN", "TOKENS OUT", "REQUESTS "+u.Month, "TOKENS IN", "TOKENS OUT", "ESTIMATED")
	for i := range u.Months {
		m := &u.Months[i]
		d := day[[3]string{m.Tenant, m.Key, m.Model}]
		if d == nil {
			d = &registry.UsageRow{}
		}
		t.row(m.Tenant, m.Key, m.Model, d.Requests, d.InputTokens, d.OutputTokens, m.Requests, m.InputTokens, m.OutputTokens, m.EstimatedTokens)
	}
	if len(u.Months) == 0 {
		t.text("Nothing was used in %s.", u.Month)
	}
}

// usageCSV writes a line for each row of the day and of the month; the period tells them apart.
func usageCSV(w io.Writer, u *admin.Usage) error {
	out := csv.NewWriter(w)
	lines := [][]string{{"period", "tenant", "key", "model", "requests", "inputTokens", "outputTokens", "estimatedTokens"}}
	for _, rows := range [][]registry.UsageRow{u.Days, u.Months} {
		for i := range rows {
			r := &rows[i]
			lines = append(lines, []string{r.Period, clean(r.Tenant, false), clean(r.Key, false), clean(r.Model, false),
				strconv.FormatInt(r.Requests, 10), strconv.FormatInt(r.InputTokens, 10), strconv.FormatInt(r.OutputTokens, 10), strconv.FormatInt(r.EstimatedTokens, 10)})
		}
	}
	if err := out.WriteAll(lines); err != nil {
		return fmt.Errorf("printing the answer: %w", err)
	}
	return nil
}
