package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"sluice/nodes/agent"
	"sluice/nodes/gossip"
	"sluice/nodes/trust"
)

// agentOptions are what `sluice agent` and `sluice up` decide about an agent.
type agentOptions struct {
	DataDir string
	Node    string
	Host    string
	Listen  string
	Rack    string
	Block   string
	GPUs    string
	// Join are control addresses (host:port), with Token; or Socket is the
	// control socket of a server in the same process or machine.
	Join   []string
	Token  string
	Socket string
	// Gossip is the address to gossip on; empty means no gossip.
	Gossip string
	Seeds  []string
	// UsesTLS says where the agent's listener speaks TLS. nil means
	// trust.AgentUsesTLS; servers must be told the same.
	UsesTLS func(addr string) bool
	Log     *slog.Logger
}

const joinRetry = 2 * time.Second

// runAgent runs an agent until ctx ends.
func runAgent(ctx context.Context, o agentOptions) error {
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	devices, err := devicesOf(o.GPUs, o.DataDir, o.Node)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the sluice program: %w", err)
	}
	cfg := agent.Default()
	cfg.NodeID, cfg.DataDir, cfg.Host, cfg.Listen = o.Node, filepath.Join(o.DataDir, "agent"), o.Host, o.Listen
	cfg.Rack, cfg.Block, cfg.Devices, cfg.Log, cfg.Version = o.Rack, o.Block, devices, o.Log, version
	cfg.HoldCommand = []string{exe, "hold"}
	if o.Socket != "" {
		cfg.Dial = &agent.HTTPDialer{Addrs: func() []string { return []string{"unix:" + o.Socket} }}
		return agent.Run(ctx, cfg)
	}
	token, err := trust.ParseToken(o.Token)
	if err != nil {
		return err
	}
	welcome, renew, err := enter(ctx, &o, &cfg, token)
	if err != nil {
		return err
	}
	g, err := startGossip(o.Node, o.Gossip, o.Seeds, welcome, gossip.Meta{Role: "agent", Version: version}, o.Log)
	if err != nil {
		return err
	}
	if g != nil {
		defer g.Close()
	}
	cfg.Dial = &pinnedDialer{addrs: func() []string { return controlAddrs(o.Join, g) }, token: token}
	ctx, cancel := context.WithCancel(ctx)
	var fresh sync.WaitGroup
	fresh.Go(func() { renew(ctx) })
	defer fresh.Wait()
	defer cancel()
	return agent.Run(ctx, cfg)
}

// startGossip starts this node's part of gossip; nil when addr is empty.
func startGossip(node, addr string, seeds []string, w trust.Welcome, meta gossip.Meta, log *slog.Logger) (*gossip.Gossip, error) {
	if addr == "" {
		return nil, nil
	}
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("--gossip %q must be host:port: %w", addr, err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, fmt.Errorf("--gossip %q must be host:port: %w", addr, err)
	}
	// A server and an agent of one machine have one name by default.
	g, err := gossip.Start(gossip.Config{NodeID: meta.Role + "." + node, Bind: host, Port: port, Key: w.GossipKey, Cluster: w.Label, Seeds: seeds, Meta: meta}, log)
	if err != nil {
		return nil, fmt.Errorf("start gossip: %w", err)
	}
	go drainEvents(g)
	return g, nil
}

// drainEvents keeps gossip's event channel empty where only Members is read.
// It ends when gossip ends.
func drainEvents(g *gossip.Gossip) {
	for range g.Events() {
	}
}

// controlAddrs are the servers known by flag and by gossip, each once.
func controlAddrs(join []string, g *gossip.Gossip) []string {
	out := append([]string(nil), join...)
	if g == nil {
		return out
	}
	for _, m := range g.Members() {
		if a := m.Meta.ControlAddr; a != "" && !strings.Contains("\n"+strings.Join(out, "\n")+"\n", "\n"+a+"\n") {
			out = append(out, a)
		}
	}
	return out
}
