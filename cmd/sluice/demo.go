package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// errDemoBroken makes the demo exit with status 1 after its report.
var errDemoBroken = errors.New("the demo broke an invariant or its books do not balance; see the report")

// demoOptions are the flags of `sluice demo`.
type demoOptions struct {
	Trace   string
	Speed   float64
	From    float64 // minutes of the trace
	Minutes float64
	Thin    float64 // 0: chosen so that need peaks at demoPeakNeed
	Seed    uint64
	Keep    bool
	DataDir string
	Output  string
}

func newDemoCmd() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the whole loop on this machine, without a GPU",
		Long: `Start a server and two agents with four simulated GPUs each (each stands for a
pair of A100s), two models, and three training jobs; play a slice of a public
trace of real requests, faster than it was recorded; show who holds what while
bursts take GPUs back and training gets them again; and end with a report.
Everything runs in a temporary directory and is ended at the end.`,
		Example: `  sluice demo
  sluice demo -o json
  sluice demo --trace my-requests.csv --speed 10 --minutes 20
  sluice demo --keep`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Output != "table" && o.Output != "json" {
				return &usageError{text: fmt.Sprintf("-o %q: must be table or json", o.Output), see: cmd.CommandPath()}
			}
			ctx, cancel := untilSignal(cmd.Context())
			defer cancel()
			return runDemo(ctx, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Trace, "trace", "", "request trace, CSV or JSONL, plain or gzip (default: the built-in Azure 2023 conversation trace)")
	f.Float64Var(&o.Speed, "speed", 6.5, "how many times faster than recorded")
	f.Float64Var(&o.From, "from", 27, "minute of the trace to start at")
	f.Float64Var(&o.Minutes, "minutes", 15, "minutes of the trace to play")
	f.Float64Var(&o.Thin, "thin", 0, "share of the requests to play (default: chosen so that need peaks at 6 of 8 GPUs)")
	f.Uint64Var(&o.Seed, "seed", 7, "seed of the thinning")
	f.BoolVar(&o.Keep, "keep", false, "leave everything running at the end")
	f.StringVar(&o.DataDir, "data", "", "directory to use and keep (default: a temporary one)")
	f.StringVarP(&o.Output, "output", "o", "table", "report as table or json")
	return cmd
}

func runDemo(ctx context.Context, o demoOptions) (err error) {
	load, err := demoLoad(o)
	if err != nil {
		return err
	}
	say := func(format string, args ...any) {
		if o.Output == "table" {
			fmt.Printf(format+"\n", args...)
		} else {
			fmt.Fprintf(os.Stderr, format+"\n", args...)
		}
	}
	say("trace: %s", load.Text)
	floor, err := startFloor(o)
	if err != nil {
		return err
	}
	defer func() {
		if o.Keep && err == nil || o.Keep && errors.Is(err, errDemoBroken) {
			say("left running; applications at http://%s/v1, `%s --server %s top` shows it, stop it with: kill %s",
				floor.dataAddr, floor.exe, floor.server, floor.pids())
			return
		}
		stopErr := floor.stop()
		switch {
		case ctx.Err() != nil && stopErr == nil:
			say("interrupted; everything that the demo started is ended")
		case err == nil:
			err = stopErr
		}
	}()
	begin := time.Now()
	if err := floor.ready(ctx); err != nil {
		return err
	}
	say("floor: server, 2 agents, 8 simulated GPUs, 2 models, 3 jobs up in %.1f s", time.Since(begin).Seconds())
	live := o.Output == "table" && term.IsTerminal(int(os.Stdout.Fd()))
	run, err := playDemo(ctx, floor, load, live, say)
	if err != nil {
		return err
	}
	report, err := floor.report(ctx, load, run)
	if err != nil {
		return err
	}
	if err := printReport(os.Stdout, o.Output, report); err != nil {
		return err
	}
	if len(report.InvariantsBroken) > 0 || report.Books.Balance != 0 {
		return errDemoBroken
	}
	return nil
}
