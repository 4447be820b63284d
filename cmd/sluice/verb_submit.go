package main

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice/gateway/admin"
	"sluice/nodes"
	"sluice/nodes/registry"
)

// submitFlags are the fields of job.yaml as flags.
type submitFlags struct {
	world, launcher, grace, startTimeout, active, resident string
	env                                                    []string
	spec                                                   registry.JobSpec
}

func newJobSubmitCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "submit (NAME [flags] -- COMMAND [ARG...] | -f FILE)",
		Short: "Submit a training run",
		Long: `Submits a job that runs on whatever GPUs are free, and survives being shrunk and
paused. Without -f, the words behind -- are the command of one rank and the
flags stand for the fields of job.yaml, described in docs/job-yaml.md. A command
that does not speak the rank protocol needs --protocol none.`,
		Example: `  sluice job submit bert --world 1-4 -- python train.py
  sluice job submit big --world 8-32 --world-multiple 8 --active-memory 60GiB --resident-memory 60GiB -- python train.py --data /data
  sluice job submit old --protocol none --stop-signal SIGUSR1 --grace 2m -- python legacy.py
  sluice job submit -f examples/job.yaml`,
	}
	var f submitFlags
	file := c.Flags().StringP("file", "f", "", "spec file instead of flags; - reads standard input")
	fl := c.Flags()
	fl.StringVar(&f.world, "world", "1", "ranks: N, or MIN-MAX for a job that may be shrunk and grown")
	fl.IntVar(&f.spec.WorldMultiple, "world-multiple", 0, "the number of ranks is a multiple of this (default 1)")
	fl.IntVar(&f.spec.GPUsPerRank, "gpus-per-rank", 0, "GPUs of each rank (default 1)")
	fl.StringVar(&f.spec.Tenant, "tenant", "", "tenant who owns the job (default \"default\")")
	fl.StringVar(&f.launcher, "launcher", "", "ranks (one process a rank) or torchrun (one a node) (default ranks)")
	fl.StringVar(&f.spec.Protocol, "protocol", "", "v1 (rank protocol) or none (stopped by signal) (default v1)")
	fl.StringVar(&f.spec.StopSignal, "stop-signal", "", "SIGTERM or SIGUSR1 (default SIGTERM)")
	fl.StringVar(&f.grace, "grace", "", "time to save after the signal to stop (default 30s)")
	fl.StringVar(&f.active, "active-memory", "", "memory on each GPU while computing, as 24GiB")
	fl.StringVar(&f.resident, "resident-memory", "", "memory on each GPU while yielded, as 2GiB")
	fl.StringVar(&f.startTimeout, "start-timeout", "", "time until every rank says hello (default 5m)")
	fl.IntVar(&f.spec.Priority, "priority", 0, "higher goes first within the tenant")
	fl.IntVar(&f.spec.MaxRestarts, "max-restarts", 0, "crashes after which the job has failed (default 3)")
	fl.StringVar(&f.spec.Workdir, "workdir", "", "directory of the ranks, on the nodes (default: the present one)")
	fl.StringVar(&f.spec.CheckpointDir, "checkpoint-dir", "", "root of the job's checkpoints, on the nodes (default: the server's)")
	fl.StringVar(&f.spec.User, "user", "", "user the ranks run as (default: the agent's)")
	fl.StringVar(&f.spec.Image, "image", "", "container image, for launchers that use one")
	fl.StringArrayVar(&f.env, "env", nil, "NAME=VALUE in the ranks' environment; may be given again")
	conn, out := addClientFlags(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := out.check(c); err != nil {
			return err
		}
		specs, err := f.specs(c, *file, args)
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

// specs reads the file, or makes one spec of flags and arguments.
func (f *submitFlags) specs(c *cobra.Command, file string, args []string) ([]spec, error) {
	dash := c.ArgsLenAtDash()
	if file != "" {
		if len(args) > 0 {
			return nil, &usageError{text: "-f takes name and command from the file; leave them out", see: c.CommandPath()}
		}
		return readSpecs(file, c.InOrStdin(), kindJob)
	}
	if dash != 1 || len(args) < 2 {
		return nil, &usageError{text: "write a name, flags, then -- and the command of one rank, as `sluice job submit bert --world 1-4 -- python train.py`", see: c.CommandPath()}
	}
	s := f.spec
	s.Name, s.Command = args[0], args[1:]
	if err := f.parse(&s); err != nil {
		return nil, &usageError{text: err.Error(), see: c.CommandPath()}
	}
	s.Default()
	if faults := s.Validate(); len(faults) > 0 {
		all := make([]error, len(faults))
		for i, fault := range faults {
			all[i] = errors.New(fileNames.Replace(fault.Error()))
		}
		return nil, errors.Join(all...)
	}
	return []spec{{where: "job " + s.Name, Job: &s}}, nil
}

// parse reads the flags that have a form of their own.
func (f *submitFlags) parse(s *registry.JobSpec) (err error) {
	if s.MinWorld, s.MaxWorld, err = parseWorld(f.world); err != nil {
		return err
	}
	s.Launcher = nodes.Launcher(f.launcher)
	for _, u := range []struct {
		flag, text string
		into       *int64
		parse      func(string) (int64, error)
	}{
		{"--grace", f.grace, &s.GraceMs, parseTime}, {"--start-timeout", f.startTimeout, &s.StartTimeoutMs, parseTime},
		{"--active-memory", f.active, &s.ActiveBytes, parseSize}, {"--resident-memory", f.resident, &s.ResidentBytes, parseSize},
	} {
		if u.text == "" {
			continue
		}
		if *u.into, err = u.parse(u.text); err != nil {
			return fmt.Errorf("%s %s: %w", u.flag, u.text, err)
		}
	}
	for _, kv := range f.env {
		name, value, ok := strings.Cut(kv, "=")
		if !ok {
			return errors.New("--env takes NAME=VALUE") // without the text: it may be a secret
		}
		if s.Env == nil {
			s.Env = map[string]string{}
		}
		s.Env[name] = value
	}
	s.Workdir, err = filepath.Abs(s.Workdir) // "" is the present directory
	return err
}

// parseWorld reads N or MIN-MAX.
func parseWorld(text string) (lo, hi int, err error) {
	a, b, ranged := strings.Cut(text, "-")
	if !ranged {
		b = a
	}
	lo, err = strconv.Atoi(a)
	if err == nil {
		hi, err = strconv.Atoi(b)
	}
	if err != nil || lo < 1 || hi < lo {
		return 0, 0, fmt.Errorf("--world %s: write a number of ranks as 4, or a range as 1-4", text)
	}
	return lo, hi, nil
}

// inFileNames lets a refusal name fields as files and flags do.
func inFileNames(err error) error {
	var e *admin.Error
	if !errors.As(err, &e) {
		return err
	}
	c := *e
	c.Field, c.Message, c.Remedy = fileNames.Replace(c.Field), fileNames.Replace(c.Message), fileNames.Replace(c.Remedy)
	if c.Code == "exists" && c.Status == http.StatusConflict {
		c.Remedy = "choose another name, or cancel the old one first"
	}
	return &c
}
