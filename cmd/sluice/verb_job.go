package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice/gateway/admin"
)

func newJobCmd() *cobra.Command {
	want := func(verb string) func(string) (string, string) {
		return func(name string) (string, string) { return http.MethodPost, apiPath("jobs", name, verb) }
	}
	return group("job", "Train models", "  sluice job submit bert --world 1-4 -- python train.py\n  sluice job logs -f bert",
		newJobSubmitCmd(), newJobListCmd(), newJobDescribeCmd(), newJobLogsCmd(),
		changeCmd("pause NAME", "Checkpoint a job and free its GPUs", "  sluice job pause bert", "a job's name", want("pause")),
		changeCmd("resume NAME", "Let a paused job run again", "  sluice job resume bert", "a job's name", want("resume")),
		changeCmd("cancel NAME", "End a job for good", "  sluice job cancel bert", "a job's name", want("cancel")))
}

func newJobListCmd() *cobra.Command {
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List jobs", Example: "  sluice job list\n  sluice job list -o yaml", Args: argCount(0, "")}
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		var jobs []admin.JobStatus
		if err := fetch(c, conn, out, apiPath("jobs"), &jobs); err != nil {
			return err
		}
		return out.print(c, jobs, func(t *table) {
			t.row("JOB", "TENANT", "PHASE", "FOR", "WORLD", "STEP", "LOSS", "SAVED", "LOST", "WAITS FOR")
			for _, j := range jobs {
				waits := ""
				if j.Waiting != nil {
					waits = j.Waiting.Cause
				}
				t.row(j.Name, j.Spec.Tenant, j.Phase, ago(j.ForMs), worldText(&j), j.Step, lossText(&j), savedText(&j), j.LostSteps, waits)
			}
		})
	}
	return c
}

func worldText(j *admin.JobStatus) string {
	if j.Spec.MinWorld == j.Spec.MaxWorld {
		return fmt.Sprintf("%d/%d", j.World, j.Spec.MaxWorld)
	}
	return fmt.Sprintf("%d/%d-%d", j.World, j.Spec.MinWorld, j.Spec.MaxWorld)
}

func lossText(j *admin.JobStatus) string {
	if j.Loss == nil {
		return "-"
	}
	return strconv.FormatFloat(*j.Loss, 'g', 5, 64)
}

func savedText(j *admin.JobStatus) string {
	if j.SavedStep == nil {
		return "-"
	}
	return fmt.Sprint(*j.SavedStep)
}

func newJobDescribeCmd() *cobra.Command {
	c := &cobra.Command{Use: "describe NAME", Aliases: []string{"get"}, Short: "Show one job, its spec and its generations", Example: "  sluice job describe bert\n  sluice job describe bert -o json", Args: argCount(1, "a job's name")}
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		var j admin.JobStatus
		if err := fetch(c, conn, out, apiPath("jobs", args[0]), &j); err != nil {
			return err
		}
		return out.print(c, j, func(t *table) { describeJob(t, &j) })
	}
	return c
}

func describeJob(t *table, j *admin.JobStatus) {
	t.row("name:", j.Name)
	t.row("tenant:", j.Spec.Tenant)
	t.row("phase:", fmt.Sprintf("%s for %s", j.Phase, ago(j.ForMs)))
	if j.Reason != "" {
		t.row("reason:", j.Reason)
	}
	if j.Want != "" {
		t.row("wanted:", j.Want)
	}
	if j.Waiting != nil {
		t.row("waits for:", j.Waiting.Cause+": "+j.Waiting.Text)
	}
	t.row("command:", strings.Join(j.Spec.Command, " "))
	t.row("world:", fmt.Sprintf("%s, a multiple of %d, %d GPU a rank, launcher %s, protocol %s", worldText(j), j.Spec.WorldMultiple, j.Spec.GPUsPerRank, j.Spec.Launcher, j.Spec.Protocol))
	if j.World > 0 {
		t.row("generation:", fmt.Sprintf("%d on %s: %s", j.Generation, list(j.Nodes), list(j.GPUs)))
	}
	t.row("progress:", fmt.Sprintf("step %d, loss %s, saved %s", j.Step, lossText(j), savedText(j)))
	t.row("work:", fmt.Sprintf("%.0f GPU-seconds trained, %.0f unsaved, %.0f lost (%d steps), %d restarts", j.TrainGPUS, j.UnsavedGPUS, j.LostGPUS, j.LostSteps, j.Restarts))
	if j.Stop != nil {
		t.row("stopping:", fmt.Sprintf("%s for %s: %s", j.Stop.Rung, j.Stop.Beneficiary, j.Stop.Reason))
	}
	for _, e := range j.Ledger {
		steps := "no step"
		if e.LastStep >= e.FirstStep {
			steps = fmt.Sprintf("steps %d to %d", e.FirstStep, e.LastStep)
		}
		t.row("ended:", fmt.Sprintf("generation %d, %d ranks, %s, saved %d, lost %d (%s): %s", e.Generation, e.World, steps, e.SavedStep, e.LostSteps, e.Rung, e.Reason))
	}
}

func newJobLogsCmd() *cobra.Command {
	c := &cobra.Command{Use: "logs NAME", Aliases: []string{"log"}, Short: "Print what a job's ranks wrote", Example: "  sluice job logs bert\n  sluice job logs -f --rank 0 bert", Args: argCount(1, "a job's name"),
		Long: "Prints the end of the log of every rank of the job's present generation, or of its\nlast when it has none, each line led by its rank. The text is the job's own, as it\nis. Nodes keep the logs of a job's last three generations there, within limits."}
	conn := addClientFlags(c)
	follow := c.Flags().BoolP("follow", "f", false, "go on as the ranks write")
	rank := c.Flags().Int("rank", -1, "only this rank")
	previous := c.Flags().BoolP("previous", "p", false, "of the generation that ended last, though another runs")
	tail := c.Flags().String("tail", "64KiB", "how much of each rank's log to begin with")
	c.RunE = func(c *cobra.Command, args []string) error {
		bytes, err := parseSize(*tail)
		if err != nil {
			return &usageError{text: "--tail: " + err.Error(), see: c.CommandPath()}
		}
		cl, err := conn.open()
		if err != nil {
			return err
		}
		q := url.Values{"tailBytes": {fmt.Sprint(bytes)}, "follow": {strconv.FormatBool(*follow)}}
		if *previous {
			q.Set("previous", "true")
		}
		if *rank >= 0 {
			q.Set("rank", fmt.Sprint(*rank))
		}
		body, err := cl.stream(c.Context(), apiPath("jobs", args[0], "log")+"?"+q.Encode())
		if err != nil {
			return err
		}
		defer body.Close()
		if _, err := io.Copy(c.OutOrStdout(), body); err != nil && c.Context().Err() == nil {
			return fmt.Errorf("the log broke off; look at the server: %w", err)
		}
		return nil
	}
	return c
}
