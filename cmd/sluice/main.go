// Command sluice is the whole program: server, agent, both in one, the shim
// around holders, and the client verbs. Flags and files are read here, once;
// everything else lives in the packages it wires together.
//
// Reading order: root.go (the command tree), client.go (how verbs reach the
// control port), output.go (table, json, yaml), spec.go (model.yaml and
// friends), then one file a verb. wire.go lists the verbs that run processes.
//
// Exit codes: 0 done, 1 refused or failed, 2 used wrongly.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// Exit codes.
const (
	exitOK      = 0
	exitRefused = 1
	exitUsage   = 2
)

func main() {
	ctx := context.Background()
	if len(os.Args) < 2 || !slices.Contains(ownSignals, os.Args[1]) {
		// The first signal asks for an orderly end; a second one ends at once.
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		context.AfterFunc(ctx, stop)
	}
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// ownSignals are verbs to which a signal means something else: the shim drops
// them, the trainer saves.
var ownSignals = []string{"hold", "trainer"}

// run is main with everything given: it returns the exit code.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	root := newRootCmd()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	entered := false
	markEntered(root, &entered)
	err := root.ExecuteContext(ctx)
	return report(err, entered, errOut)
}

// report prints err for people and chooses the exit code. Errors from before
// a verb began are errors of use.
func report(err error, entered bool, errOut io.Writer) int {
	var usage *usageError
	var code exitCode
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	case errors.Is(err, context.Canceled) && entered:
		return exitRefused // interrupted: the person knows
	case !entered || errors.As(err, &usage):
		fmt.Fprintf(errOut, "sluice: %s\n", strings.TrimSpace(err.Error()))
		if usage == nil || usage.see == "" {
			fmt.Fprintln(errOut, "See `sluice --help`.")
		} else {
			fmt.Fprintf(errOut, "See `%s --help`.\n", usage.see)
		}
		return exitUsage
	}
	fmt.Fprintf(errOut, "sluice: %s\n", clean(strings.TrimSpace(err.Error()), true))
	return exitRefused
}

// usageError is a wrong use that a verb finds out itself.
type usageError struct {
	text string
	see  string // the command whose help tells more
}

func (e *usageError) Error() string { return e.text }

// exitCode ends the program with this code and prints nothing more.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit %d", int(e)) }
