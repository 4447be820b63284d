package rank

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"
)

// Limits of a Client, each with its answer when reached.
const (
	// BackoffMinMs doubles to BackoffMaxMs between tries to reach the agent;
	// there is no last try, and training goes on meanwhile.
	BackoffMinMs = 20
	BackoffMaxMs = 1_000
	// LingerMs is how long Stopped and Finished wait for the agent to take the
	// last messages; after it the rank exits all the same, and the files and the
	// exit status have to speak for it.
	LingerMs = 10_000
	// MaxAnswers that wait to be sent; one more drops the connection, and the
	// next one starts from the Machine's state.
	MaxAnswers = 64
)

// VerdictKind is what BeginStep wants of the training loop.
type VerdictKind uint8

// The verdicts.
const (
	// Continue: the step has begun.
	Continue VerdictKind = iota
	// Resumed: the step has begun, after a yield; clocks have to be set anew.
	Resumed
	// SaveAndStop: save the state after Verdict.Step, call Stopped, exit.
	SaveAndStop
)

// Verdict is the answer of BeginStep.
type Verdict struct {
	Kind VerdictKind
	// Step that has begun, or after which to save.
	Step int64
}

// Options of a Client; the zero value is fine.
type Options struct {
	// OnYield synchronises the device and leaves it quiet, memory kept; OnResume
	// makes it active again. Called from BeginStep; an error comes back from
	// there, and the rank has to exit.
	OnYield, OnResume func() error
	// LingerMs replaces the constant when above 0.
	LingerMs int64
}

// Client is a rank's end. BeginStep, EndStep, Stopped and Finished belong to the
// training loop's goroutine; the rest may be called from anywhere. Without a
// socket it is a no-op: every step begins at once.
type Client struct {
	env    Env
	opts   Options
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu         sync.Mutex
	m          *Machine      // guarded by mu
	conn       net.Conn      // guarded by mu; nil while away
	out        []Message     // guarded by mu; answers not yet written
	stepDirty  bool          // guarded by mu; newest state wins, so one pending is enough
	phaseDirty bool          // guarded by mu
	changed    chan struct{} // guarded by mu; closed and replaced at each change
	wake       chan struct{} // one token for the writer
}

// Dial returns at once; the connection is made, and made again for ever, in the
// background until Close or the end of ctx. Only a malformed env is an error.
func Dial(ctx context.Context, env Env) (*Client, error) { return DialWith(ctx, env, Options{}) }

// DialWith is Dial with options.
func DialWith(ctx context.Context, env Env, opts Options) (*Client, error) {
	hello := env.hello()
	if err := hello.Validate(); err != nil {
		return nil, err
	}
	if opts.LingerMs <= 0 {
		opts.LingerMs = LingerMs
	}
	c := &Client{env: env, opts: opts, m: NewMachine(hello), changed: make(chan struct{}), wake: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancel(ctx)
	if env.Socket != "" {
		c.done.Go(c.run)
	}
	return c, nil
}

// Close ends the connection and waits for the background work.
func (c *Client) Close() error {
	c.cancel()
	c.done.Wait()
	return nil
}

// BeginStep asks to begin step, the one after the last. It blocks while an order
// holds the rank. Errors: the context's, a hook's, or ErrStep for a wrong step.
func (c *Client) BeginStep(step int64) (Verdict, error) {
	v := Verdict{Kind: Continue, Step: step}
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.ctx.Err(); err != nil {
			return v, err
		}
		d, err := c.m.Begin(step)
		if err != nil {
			return v, err
		}
		switch d {
		case Proceed:
			c.stepDirty = true
			c.notify()
			return v, nil
		case Save:
			return Verdict{Kind: SaveAndStop, Step: step - 1}, nil
		case Wait:
			c.waitLocked()
		case Yield:
			if err := c.hookLocked(c.opts.OnYield); err != nil {
				return v, err
			}
			c.sendLocked(c.m.Yielded()...)
		case Resume:
			if err := c.hookLocked(c.opts.OnResume); err != nil {
				return v, err
			}
			c.sendLocked(c.m.Resumed()...)
			v.Kind = Resumed
		}
	}
}

// EndStep ends the step begun. Samples is cumulative, see Message.
func (c *Client) EndStep(step int64, loss float64, samples int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.m.Done(step, loss, samples); err != nil {
		return err
	}
	c.stepDirty = true
	c.notify()
	return nil
}

// Phase tells the agent what the rank is doing.
func (c *Client) Phase(p Phase) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.m.SetPhase(p)
	c.phaseDirty = true
	c.notify()
}

// Shard reports a shard that is safely on disk. Step, File, Bytes, Digest, Scope
// and Samples count; ErrMessage and ErrTooLong say that they cannot be sent.
func (c *Client) Shard(s Message) error {
	s.Type = TypeShard
	if err := s.Validate(); err != nil {
		return err
	}
	if _, err := s.Append(nil); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sendLocked(c.m.Shard(s))
	return nil
}

// Stopped follows the save after SaveAndStop. It returns when the agent has
// taken everything, at the latest after the linger time; the rank then exits 0.
func (c *Client) Stopped(step int64) { c.last(func() Message { return c.m.Stopped(step) }) }

// Finished says that the last step of the job is done and saved; as Stopped.
func (c *Client) Finished(step int64) { c.last(func() Message { return c.m.Finished(step) }) }

func (c *Client) last(make func() Message) {
	limit := time.NewTimer(time.Duration(c.opts.LingerMs) * time.Millisecond)
	defer limit.Stop()
	c.mu.Lock()
	c.sendLocked(make())
	for c.env.Socket != "" && c.m.Unacked() > 0 {
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-limit.C:
			return
		case <-c.ctx.Done():
			return
		}
		c.mu.Lock()
	}
	c.mu.Unlock()
}

// hookLocked runs a hook outside the lock: orders are answered meanwhile.
func (c *Client) hookLocked(hook func() error) error {
	if hook == nil {
		return nil
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	return hook()
}

// waitLocked waits for a change of the Machine by an order, outside the lock.
func (c *Client) waitLocked() {
	changed := c.changed
	c.mu.Unlock()
	defer c.mu.Lock()
	select {
	case <-changed:
	case <-c.ctx.Done():
	}
}

// sendLocked queues messages if there is a connection; without one the Machine's
// Replay will carry what matters.
func (c *Client) sendLocked(ms ...Message) {
	if c.conn == nil {
		return
	}
	if len(c.out)+len(ms) > MaxAnswers+MaxUnacked { // a Replay alone may hold MaxUnacked
		c.conn.Close()
		return
	}
	c.out = append(c.out, ms...)
	c.notify()
}

func (c *Client) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run owns the connection: one at a time, for ever.
func (c *Client) run() {
	backoffMs := int64(BackoffMinMs)
	for c.ctx.Err() == nil {
		var d net.Dialer
		conn, err := d.DialContext(c.ctx, "unix", c.env.Socket)
		if err == nil {
			if c.talk(conn) { // the agent spoke: it was a real connection
				backoffMs = BackoffMinMs
			}
		}
		select {
		case <-time.After(time.Duration(backoffMs) * time.Millisecond):
		case <-c.ctx.Done():
		}
		backoffMs = min(2*backoffMs, BackoffMaxMs)
	}
}

// talk serves one connection until it ends and says whether anything was heard.
func (c *Client) talk(conn net.Conn) (heard bool) {
	stop := context.AfterFunc(c.ctx, func() { conn.Close() })
	defer stop()
	c.mu.Lock()
	c.conn, c.out = conn, c.m.Replay()
	c.stepDirty, c.phaseDirty = false, false
	c.notify()
	c.mu.Unlock()

	ended := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { c.write(conn, ended) })
	lines := bufio.NewScanner(conn)
	lines.Buffer(make([]byte, 0, 4096), MaxLineBytes)
	for {
		m, err := next(lines)
		if err != nil {
			break
		}
		heard = heard || m.Type != TypeRefused
		c.mu.Lock()
		c.sendLocked(c.m.On(m)...)
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
	}
	c.mu.Lock()
	c.conn, c.out = nil, nil
	c.mu.Unlock()
	close(ended)
	conn.Close()
	writer.Wait()
	return heard
}

// write sends what is queued: the newest progress first, since an answer speaks
// of it.
func (c *Client) write(conn net.Conn, ended <-chan struct{}) {
	var buf []byte
	for {
		select {
		case <-ended:
			return
		case <-c.wake:
		}
		c.mu.Lock()
		batch := c.out
		c.out = nil
		step, phase := c.m.Progress(), c.m.PhaseMessage()
		stepDirty, phaseDirty := c.stepDirty, c.phaseDirty
		c.stepDirty, c.phaseDirty = false, false
		c.mu.Unlock()
		buf = buf[:0]
		// A fresh connection's batch starts with hello, which has to come first.
		if len(batch) > 0 && batch[0].Type == TypeHello {
			buf = appendAll(buf, batch)
			batch = nil
		}
		if phaseDirty {
			buf = appendAll(buf, []Message{phase})
		}
		if stepDirty {
			buf = appendAll(buf, []Message{step})
		}
		buf = appendAll(buf, batch)
		conn.SetWriteDeadline(time.Now().Add(WriteTimeoutMs * time.Millisecond))
		if _, err := conn.Write(buf); err != nil {
			conn.Close() // the reader ends, and with it this connection
			return
		}
	}
}

func appendAll(buf []byte, ms []Message) []byte {
	for _, m := range ms {
		// A message too long for the line is our caller's file name; the rest goes.
		buf, _ = m.Append(buf)
	}
	return buf
}
