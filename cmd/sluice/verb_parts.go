package main

import (
	"github.com/spf13/cobra"

	"sluice/nodes/agent/hold"
)

// newHoldCmd is the shim that an agent starts around each holder.
func newHoldCmd() *cobra.Command {
	c := &cobra.Command{Use: "hold --dir DIR", Short: "Run one holder (started by the agent)", Hidden: true, Args: argCount(0, ""),
		Example: "  sluice hold --dir /var/lib/sluice/holders/chat-1"}
	dir := c.Flags().String("dir", "", "the holder's directory, made by the agent")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *dir == "" {
			return &usageError{text: "--dir is missing; the agent gives it", see: c.CommandPath()}
		}
		if code := hold.Main(*dir); code != 0 {
			return exitCode(code)
		}
		return nil
	}
	return c
}
