package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// tokenEnv is where an agent finds its join token: never in its arguments,
// which every user of the machine can read.
const tokenEnv = "SLUICE_JOIN_TOKEN"

const gossipPort = "7946"

func newAgentCmd() *cobra.Command {
	var o agentOptions
	var logs logFlags
	var tokenFile string
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of one node",
		Long: `Run the agent of one node: the only program that starts or stops anything on
its GPUs. It joins the server with a token from "sluice token create", given by
--token-file or the environment variable ` + tokenEnv + `. Everything it started
outlives it: stop or replace the agent at any time.

Servers on other machines reach it at --host. Its listener then speaks TLS, with
a certificate that it gets with the token and renews by itself, and answers only
servers of its cluster.`,
		Example: `  SLUICE_JOIN_TOKEN=sluice-join.… sluice agent --join 10.0.0.1:7070 --host 10.0.0.2 --gossip 10.0.0.2:7946
  sluice agent --join 127.0.0.1:7070 --token-file token --gpus sim:4`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logs.open()
			if err != nil {
				return err
			}
			o.Log = log
			if o.Token, err = readToken(tokenFile); err != nil {
				return err
			}
			if len(o.Join) == 0 {
				return errors.New("--join HOST:PORT is needed: the control port of a server")
			}
			if o.Gossip != "" && len(o.Seeds) == 0 {
				host, _, err := net.SplitHostPort(o.Join[0])
				if err != nil {
					return fmt.Errorf("--join %q must be host:port", o.Join[0])
				}
				o.Seeds = []string{net.JoinHostPort(host, gossipPort)}
			}
			ctx, cancel := untilSignal(cmd.Context())
			defer cancel()
			return ignoreCanceled(ctx, runAgent(ctx, o))
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.DataDir, "data", agentDir(defaultDataDir()), "directory for the journal, holders and their logs; a local disk")
	f.StringVar(&o.Node, "node", hostName(), "name of this node, unique in the cluster")
	f.StringVar(&o.Host, "host", "127.0.0.1", "address at which this node's replicas and ranks are reached")
	f.StringVar(&o.Listen, "listen", "", "the agent's own listener, for leases and logs; TLS beyond loopback (default: --host, any port)")
	f.StringVar(&o.Rack, "rack", "", "rack of this node, for placement")
	f.StringVar(&o.Block, "block", "", "block of racks of this node, for placement")
	f.StringVar(&o.GPUs, "gpus", "nvml", "where GPUs come from: "+gpuSourceSyntax)
	f.StringSliceVar(&o.Join, "join", nil, "control ports of servers, host:port")
	f.StringVar(&tokenFile, "token-file", "", "file that holds the join token (default: "+tokenEnv+")")
	f.StringVar(&o.Gossip, "gossip", "", "address to gossip on, host:port")
	f.StringSliceVar(&o.Seeds, "seeds", nil, "gossip addresses of other nodes (default: the first server's host, port "+gossipPort+")")
	logs.add(cmd)
	return cmd
}

func readToken(file string) (string, error) {
	if file == "" {
		t := os.Getenv(tokenEnv)
		if t == "" {
			return "", fmt.Errorf("a join token is needed: make one with `sluice token create` on the server and give it by --token-file or %s", tokenEnv)
		}
		return t, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the join token: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
