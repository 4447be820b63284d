package main

import (
	"context"
	"io"

	"sluice/fill/exec"
	"sluice/gateway/admin"
	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/slo"
)

// controlled joins fill/exec to gateway/admin, which do not know each other.
type controlled struct{ c *exec.Controller }

func (a controlled) Read(f func(*registry.State, *nodes.Fleet, int64)) { a.c.Read(f) }

func (a controlled) Submit(ctx context.Context, cmd registry.Command) ([]registry.Event, error) {
	return a.c.Submit(ctx, cmd)
}

func (a controlled) Headroom() map[string]slo.Headroom { return a.c.Headroom() }

func (a controlled) Waiting() []admin.Waiting {
	in := a.c.Waiting()
	out := make([]admin.Waiting, len(in))
	for i, w := range in {
		out[i] = admin.Waiting{Object: w.Object, Cause: string(w.Cause), Text: w.Text}
	}
	return out
}

func (a controlled) ServeAgent(ctx context.Context, conn io.ReadWriteCloser, peer string) error {
	return a.c.ServeAgent(ctx, conn, peer)
}

func (a controlled) Events(sinceSeq int64, limit int) ([]admin.Recorded, int64) {
	in, next := a.c.Events(sinceSeq, limit)
	out := make([]admin.Recorded, len(in))
	for i, r := range in {
		out[i] = admin.Recorded(r)
	}
	return out, next
}

func (a controlled) WaitEvents(ctx context.Context, sinceSeq int64) { a.c.WaitEvents(ctx, sinceSeq) }
