package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"sluice/nodes/nvml"
)

func newUpCmd() *cobra.Command {
	var o serverOptions
	var logs logFlags
	var records recordFlags
	var gpus string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run server and agent of one machine in one process",
		Long: `Run a server and the agent of this machine in one process and stay up. State
survives a restart in --data; what runs on the GPUs survives it too. Agents of
more machines may join when --control is given.`,
		Example: `  sluice up
  sluice up --gpus sim:8 --listen 127.0.0.1:8080 --data ./state`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logs.open()
			if err != nil {
				return err
			}
			o.Log = log
			if o.Records, err = records.config(os.Getenv, o.Node, log); err != nil {
				return err
			}
			return upUntil(cmd.Context(), o, gpus)
		},
	}
	addServerFlags(cmd, &o)
	cmd.Flags().StringVar(&gpus, "gpus", "nvml", "where GPUs come from: "+gpuSourceSyntax)
	records.add(cmd)
	logs.add(cmd)
	return cmd
}

func upUntil(parent context.Context, o serverOptions, gpus string) error {
	ctx, cancel := untilSignal(parent)
	defer cancel()
	s, err := startServer(o)
	if err != nil {
		return err
	}
	defer s.close()
	agentEnd := make(chan error, 1)
	go func() {
		agentEnd <- runAgent(ctx, agentOptions{DataDir: agentDir(o.DataDir), Node: o.Node, Host: "127.0.0.1", Listen: "127.0.0.1:0",
			GPUs: gpus, Socket: socketPath(o.DataDir), Log: o.Log})
	}()
	fmt.Printf("sluice is up: applications at http://%s/v1, control socket %s\n", s.opts.Listen, socketPath(o.DataDir))
	select {
	case <-ctx.Done():
		letSignalsEnd()
		return ignoreCanceled(ctx, <-agentEnd)
	case err := <-agentEnd:
		if errors.Is(err, nvml.ErrNoLibrary) || errors.Is(err, nvml.ErrNoDriver) {
			return fmt.Errorf("the agent ended: %w; without GPUs, try it with --gpus sim:8", err)
		}
		return fmt.Errorf("the agent ended: %w", err)
	case err := <-s.failed:
		cancel()
		<-agentEnd
		return err
	}
}

// ignoreCanceled drops the error of something that ended because ctx did.
func ignoreCanceled(ctx context.Context, err error) error {
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}
