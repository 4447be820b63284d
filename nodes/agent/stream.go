package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"sluice/nodes"
)

const (
	// defaultLeaseMs is how long a silent stream is kept before a welcome names
	// the lease.
	defaultLeaseMs = 10_000
	redialMinMs    = 50
	redialMaxMs    = 5000
)

var errSilent = errors.New("agent: stream silent for its lease")

// link is one connection of the stream. The owner puts frames in by push; the
// link's goroutines write them, and give every line from the leader to down.
type link struct {
	rwc  io.ReadWriteCloser
	out  chan nodes.Frame
	once sync.Once
	done chan struct{} // closed by close
}

func newLink(rwc io.ReadWriteCloser) *link {
	return &link{rwc: rwc, out: make(chan nodes.Frame, maxOutbox), done: make(chan struct{})}
}

// push never blocks. A leader that does not read loses the connection.
func (l *link) push(f nodes.Frame) {
	select {
	case l.out <- f:
	default:
		l.close()
	}
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.done)
		l.rwc.Close()
	})
}

// write sends frames until the link is closed.
func (l *link) write() error {
	defer l.close()
	w := bufio.NewWriterSize(l.rwc, 32<<10)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for {
		select {
		case <-l.done:
			return nil
		case f := <-l.out:
			if err := enc.Encode(f); err != nil {
				return err
			}
			if len(l.out) == 0 {
				if err := w.Flush(); err != nil {
					return err
				}
			}
		}
	}
}

// read gives lines to down until the stream ends or is silent for its lease.
func (l *link) read(down func(nodes.Down)) error {
	defer l.close()
	lease := int64(defaultLeaseMs)
	silent := make(chan struct{})
	watchdog := time.AfterFunc(time.Duration(lease)*time.Millisecond, func() {
		close(silent)
		l.close()
	})
	defer watchdog.Stop()
	lines := bufio.NewScanner(l.rwc)
	lines.Buffer(make([]byte, 0, 16<<10), MaxLineBytes)
	for lines.Scan() {
		var d nodes.Down
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			return fmt.Errorf("agent: line from the leader is not readable: %w", err)
		}
		if d.Welcome != nil && d.Welcome.LeaseMs > 0 {
			lease = d.Welcome.LeaseMs
		}
		// Stop is false when the watchdog has fired: the connection is closed.
		if watchdog.Stop() {
			watchdog.Reset(time.Duration(lease) * time.Millisecond)
		}
		down(d)
	}
	select {
	case <-silent:
		return errSilent
	default:
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.EOF
}

// keepStream dials for ever, with a pause that doubles from redialMinMs to
// redialMaxMs and begins anew after a welcome.
func (o *owner) keepStream(ctx context.Context) {
	pauseMs := int64(redialMinMs)
	for ctx.Err() == nil {
		rwc, err := o.cfg.Dial.Dial(ctx)
		if err == nil {
			var welcomed bool
			welcomed, err = o.serveLink(ctx, newLink(rwc))
			if welcomed {
				pauseMs = redialMinMs
			}
		}
		if ctx.Err() != nil {
			return
		}
		o.cfg.Log.Warn("stream to the leader ended, dialling again", "error", err, "pauseMs", pauseMs)
		if !wait(ctx, pauseMs) {
			return
		}
		pauseMs = min(2*pauseMs, redialMaxMs)
	}
}

// serveLink runs one connection to its end.
func (o *owner) serveLink(ctx context.Context, l *link) (welcomed bool, err error) {
	stop := context.AfterFunc(ctx, l.close)
	defer stop()
	defer l.close()
	if !o.do(ctx, func() { o.attach(l) }) {
		return false, ctx.Err()
	}
	defer o.do(ctx, func() { o.detach(l) })
	wrote := make(chan error, 1)
	go func() { wrote <- l.write() }()
	err = l.read(func(d nodes.Down) {
		welcomed = welcomed || d.Welcome != nil
		o.do(ctx, func() { o.onDown(l, d) })
	})
	l.close()
	if werr := <-wrote; werr != nil && !errors.Is(err, errSilent) {
		err = werr
	}
	return welcomed, err
}

// wait sleeps; false when ctx ended.
func wait(ctx context.Context, ms int64) bool {
	t := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
