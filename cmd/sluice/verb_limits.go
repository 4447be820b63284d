package main

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"sluice/gateway/admin"
	"sluice/nodes/registry"
)

// addLimitFlags adds the flags that set limits. What is not given stays as it is in l.
func addLimitFlags(c *cobra.Command, l *registry.Limits) {
	f := c.Flags()
	f.IntVar(&l.RequestsPerMin, "rpm", 0, "requests a minute; 0 is no limit")
	f.IntVar(&l.TokensPerMin, "tpm", 0, "tokens a minute, of prompts and answers; 0 is no limit")
	f.IntVar(&l.Concurrent, "concurrent", 0, "requests at once; 0 is no limit")
	f.Int64Var(&l.TokensPerDay, "tokens-per-day", 0, "budget of tokens of a UTC day; 0 is no limit")
	f.Int64Var(&l.TokensPerMonth, "tokens-per-month", 0, "budget of tokens of a UTC month; 0 is no limit")
}

// limitFlags are the names of those flags, and what each changes.
var limitFlags = map[string]func(to, from *registry.Limits){
	"rpm":              func(to, from *registry.Limits) { to.RequestsPerMin = from.RequestsPerMin },
	"tpm":              func(to, from *registry.Limits) { to.TokensPerMin = from.TokensPerMin },
	"concurrent":       func(to, from *registry.Limits) { to.Concurrent = from.Concurrent },
	"tokens-per-day":   func(to, from *registry.Limits) { to.TokensPerDay = from.TokensPerDay },
	"tokens-per-month": func(to, from *registry.Limits) { to.TokensPerMonth = from.TokensPerMonth },
}

// limitsText is the limits on one line; "none" without any.
func limitsText(l *registry.Limits) string {
	var parts []string
	for _, x := range []struct {
		n    int64
		unit string
	}{
		{int64(l.RequestsPerMin), "requests/min"}, {int64(l.TokensPerMin), "tokens/min"}, {int64(l.Concurrent), "at once"},
		{l.TokensPerDay, "tokens/day"}, {l.TokensPerMonth, "tokens/month"},
	} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.unit))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func newKeyLimitCmd() *cobra.Command {
	return limitCmd("limit ID", "Change a key's limits; running requests go on", "  sluice key limit key-1a2b3c4d --rpm 600 --tpm 0", "keys", "a key's id, key-…",
		func(c *cobra.Command, cl *client, id string) (*registry.Limits, error) {
			var keys []admin.Key
			if err := cl.call(c.Context(), http.MethodGet, apiPath("keys"), nil, &keys); err != nil {
				return nil, err
			}
			for i := range keys {
				if keys[i].ID == id {
					return &keys[i].Limits, nil
				}
			}
			return &registry.Limits{}, nil // the server will say that there is none
		})
}

func newTenantLimitCmd() *cobra.Command {
	return limitCmd("limit NAME", "Change the limits of all keys of a tenant together", "  sluice tenant limit research --tokens-per-month 50000000", "tenants", "a tenant's name",
		func(c *cobra.Command, cl *client, name string) (*registry.Limits, error) {
			var t admin.TenantStatus
			err := cl.call(c.Context(), http.MethodGet, apiPath("tenants", name), nil, &t)
			return &t.Limits, err
		})
}

// limitCmd changes the limits that are given as flags and leaves the others.
func limitCmd(use, short, example, collection, what string, now func(*cobra.Command, *client, string) (*registry.Limits, error)) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Example: example, Args: argCount(1, what),
		Long: short + ".\nLimits that are not named stay as they are; 0 takes one away. What was used before counts."}
	var given registry.Limits
	addLimitFlags(c, &given)
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := out.check(c); err != nil {
			return err
		}
		cl, err := conn.open()
		if err != nil {
			return err
		}
		next, err := now(c, cl, args[0])
		if err != nil {
			return err
		}
		changed := false
		for name, set := range limitFlags {
			if c.Flags().Changed(name) {
				set(next, &given)
				changed = true
			}
		}
		if !changed {
			return &usageError{text: "no limit is given; name at least one, as --rpm 600", see: c.CommandPath()}
		}
		var done admin.Changed
		if err := cl.call(c.Context(), http.MethodPut, apiPath(collection, args[0], "limits"), next, &done); err != nil {
			return err
		}
		return out.print(c, done, func(t *table) { t.text("%s: %s", done.Object, limitsText(next)) })
	}
	return c
}
