package main

import "github.com/spf13/cobra"

// addProcesses adds the verbs that run servers, agents and the demo.
func addProcesses(root *cobra.Command) {
	addGroup(root, "run", newUpCmd(), newServeCmd(), newAgentCmd(), newDemoCmd())
}
