package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// version is set by the build: -ldflags "-X main.version=v0.1.0".
var version = "dev"

// newRootCmd builds the whole command tree. Nothing is shared between trees.
func newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Serve LLM inference and train models on the same GPUs",
		Long: `sluice serves models behind an OpenAI-compatible gateway, gives every GPU
that inference does not need to training jobs, and takes it back before a burst
hurts anyone.`,
		Example: `  sluice up                                  # server and agent on this machine
  sluice model apply -f model.yaml           # serve a model
  sluice job submit bert --world 1-4 -- python train.py
  sluice top                                 # who holds each GPU, live
  sluice why bert                            # why a job does not run`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          groupRun,
	}
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run:"},
		&cobra.Group{ID: "use", Title: "Models, jobs, people:"},
		&cobra.Group{ID: "see", Title: "See:"},
		&cobra.Group{ID: "part", Title: "Parts (started by sluice, or to try it out):"},
	)
	addGroup(root, "use", newModelCmd(), newJobCmd(), newTenantCmd(), newKeyCmd(), newTokenCmd(), newNodeCmd(), newApplyCmd())
	addGroup(root, "see", newTopCmd(), newDashboardCmd(), newStatusCmd(), newGPUCmd(), newReplicaCmd(), newEventsCmd(), newWhyCmd(), newBooksCmd(), newUsageCmd())
	addGroup(root, "part", newHoldCmd(), newEngineCmd(), newTrainerCmd())
	root.AddCommand(newVersionCmd())
	addProcesses(root)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &usageError{text: err.Error(), see: c.CommandPath()}
	})
	return root
}

func addGroup(root *cobra.Command, group string, cmds ...*cobra.Command) {
	for _, c := range cmds {
		c.GroupID = group
		root.AddCommand(c)
	}
}

// groupRun is the action of a command that only holds others.
func groupRun(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	return &usageError{text: fmt.Sprintf("%q is no command of `%s`", args[0], c.CommandPath()), see: c.CommandPath()}
}

// group makes such a command.
func group(use, short, example string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Example: example, RunE: groupRun, Args: cobra.ArbitraryArgs}
	c.AddCommand(subs...)
	return c
}

// markEntered notes that a verb began, which tells errors of use from others.
func markEntered(root *cobra.Command, entered *bool) {
	for _, c := range root.Commands() {
		markEntered(c, entered)
	}
	if run := root.RunE; run != nil {
		root.RunE = func(c *cobra.Command, args []string) error {
			*entered = true
			return run(c, args)
		}
	}
}

// argCount wraps cobra's check so that its error names the command.
func argCount(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		if n == 0 {
			return &usageError{text: fmt.Sprintf("`%s` takes no argument, not %q", c.CommandPath(), args[0]), see: c.CommandPath()}
		}
		return &usageError{text: fmt.Sprintf("`%s` needs %s", c.CommandPath(), what), see: c.CommandPath()}
	}
}

func newVersionCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "version", Short: "Print the version", Example: "  sluice version\n  sluice version -o json", Args: argCount(0, ""),
	}
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return out.print(c, map[string]string{"version": version}, func(t *table) { t.row("sluice " + version) })
	}
	return c
}
