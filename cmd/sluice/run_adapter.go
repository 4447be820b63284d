package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"sluice/fill/exec"
	"sluice/gateway/admin"
	"sluice/nodes"
	"sluice/nodes/registry"
	"sluice/nodes/replog"
	"sluice/slo"
)

// controlled joins fill/exec to gateway/admin, which do not know each other.
type controlled struct{ c *exec.Controller }

func (a controlled) Read(f func(*registry.State, *nodes.Fleet, int64)) { a.c.Read(f) }

func (a controlled) Submit(ctx context.Context, cmd registry.Command) ([]registry.Event, error) {
	ev, err := a.c.Submit(ctx, cmd)
	return ev, passing(err)
}

// passing marks the errors that pass by themselves, or on another server, as
// such: the control port answers 503 then, and its clients try again.
func passing(err error) error {
	for _, known := range []error{exec.ErrNotLeader, replog.ErrNotLeader, replog.ErrBusy, replog.ErrDiskFull, replog.ErrDisk, replog.ErrUncertain, replog.ErrClosed} {
		if errors.Is(err, known) {
			return fmt.Errorf("%w: %w", admin.ErrUnavailable, err)
		}
	}
	return err
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
