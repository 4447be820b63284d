package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"sluice/gateway/admin"
)

// newApplyCmd takes files of mixed kinds.
func newApplyCmd() *cobra.Command {
	return applyCmd("", "Apply models, tenants and jobs from one file",
		"  sluice apply -f examples/floor.yaml\n  cat model.yaml | sluice apply -f -",
		"Each document of the file names its kind: Model, Tenant or Job. Tenants and models\nare set; a job is submitted, which is refused when one of its name exists.")
}

// applyCmd makes `X apply -f FILE` for one kind, or for all ("").
func applyCmd(kind, short, example, long string) *cobra.Command {
	c := &cobra.Command{Use: "apply -f FILE", Short: short, Long: long, Example: example, Args: argCount(0, "")}
	file := c.Flags().StringP("file", "f", "", "spec file; - reads standard input")
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *file == "" {
			return &usageError{text: "which file? write -f FILE, or -f - for standard input", see: c.CommandPath()}
		}
		if err := out.check(c); err != nil {
			return err
		}
		specs, err := readSpecs(*file, c.InOrStdin(), kind)
		if err != nil {
			return err
		}
		cl, err := conn.open()
		if err != nil {
			return err
		}
		return applyAll(c, cl, out, specs)
	}
	return c
}

// applyAll sends specs in the file's order, tenants first as others name them,
// and stops at the first refusal.
func applyAll(c *cobra.Command, cl *client, out *output, specs []spec) error {
	var done []admin.Changed
	for _, tenants := range []bool{true, false} {
		for i := range specs {
			if (specs[i].Tenant != nil) != tenants {
				continue
			}
			var changed admin.Changed
			if err := applyOne(c.Context(), cl, &specs[i], &changed); err != nil {
				for _, d := range done {
					fmt.Fprintf(c.ErrOrStderr(), "%s was applied before\n", d.Object)
				}
				return fmt.Errorf("%s: %w", specs[i].where, err)
			}
			done = append(done, changed)
		}
	}
	return printChanged(c, out, done...)
}

func applyOne(ctx context.Context, cl *client, s *spec, changed *admin.Changed) error {
	switch {
	case s.Tenant != nil:
		return inFileNames(cl.call(ctx, http.MethodPut, apiPath("tenants", s.Tenant.Name), s.Tenant, changed))
	case s.Model != nil:
		return inFileNames(cl.call(ctx, http.MethodPut, apiPath("models", s.Model.Name), s.Model, changed))
	}
	return inFileNames(cl.call(ctx, http.MethodPost, apiPath("jobs"), s.Job, changed))
}

// printChanged tells what became of each object.
func printChanged(c *cobra.Command, out *output, changed ...admin.Changed) error {
	var v any = changed
	if len(changed) == 1 {
		v = changed[0]
	}
	return out.print(c, v, func(t *table) {
		for _, ch := range changed {
			if len(ch.Events) == 0 {
				t.text("%s: nothing to change", ch.Object)
			}
			for _, e := range ch.Events {
				t.text("%s: %s", ch.Object, transition(e.From, e.To))
			}
		}
	})
}

func transition(from, to string) string {
	switch {
	case from == "want" && to == "run": // its owner's wish, which its phase follows
		return "is to go on"
	case from == "want":
		return "is to be " + to
	}
	if from != "" && from != to {
		return from + " → " + to
	}
	if to == "" {
		return "changed"
	}
	return to
}
