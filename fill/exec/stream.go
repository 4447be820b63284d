package exec

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"sluice/nodes"
)

// maxFrameBytes bounds one line from an agent.
const maxFrameBytes = 1 << 20

// What ends an agent's stream.
var (
	errNoHello   = errors.New("the first line of an agent must be a hello")
	errReplaced  = errors.New("the agent opened a newer stream")
	errDuplicate = errors.New("another agent of the same name is connected; give each node its own --node name")
	errSilent    = errors.New("the agent was silent for its lease")
	errSlow      = errors.New("the agent does not read its orders")
	errStopping  = errors.New("the server is stopping")
)

// agentStream is one agent's connection. Its fields belong to the loop, but for
// the channels.
type agentStream struct {
	node    string
	peer    string
	out     chan nodes.Down
	kill    chan struct{} // closed by the loop to end the stream
	why     error         // written before kill is closed
	lastMs  int64
	sentMs  map[string]int64 // order id → when it was sent on this stream
	beatMs  int64
	refused int // orders answered with an error, for the log
}

func (a *agentStream) end(why error) {
	select {
	case <-a.kill:
	default:
		a.why = why
		close(a.kill)
	}
}

// inbound is what a stream's reader hands to the loop.
type inbound struct {
	stream *agentStream
	frame  *nodes.Frame
	gone   bool
}

// ServeAgent speaks with one agent until its stream, ctx or the controller
// ends. It closes conn.
func (c *Controller) ServeAgent(ctx context.Context, conn io.ReadWriteCloser, peer string) error {
	s := &agentStream{peer: peer, out: make(chan nodes.Down, outboxLines), kill: make(chan struct{}), sentMs: map[string]int64{}}
	readErr := make(chan error, 1)
	go func() { readErr <- c.readFrames(conn, s) }()
	writeErr := make(chan error, 1)
	go func() { writeErr <- writeLines(conn, s) }()
	var err error
	reading, writing := true, true
	select {
	case err = <-readErr:
		reading = false
	case err = <-writeErr:
		writing = false
	case <-s.kill:
		err = s.why
	case <-ctx.Done():
		err = ctx.Err()
	case <-c.stop:
		err = errStopping
	}
	conn.Close()
	if reading {
		<-readErr
	}
	// The reader has handed its last frame over, so gone comes after all of them.
	select {
	case c.inbox <- inbound{stream: s, gone: true}:
	case <-c.stop:
	}
	if writing {
		select {
		case <-s.kill:
		case <-c.stop:
		}
		<-writeErr
	}
	return err
}

func (c *Controller) readFrames(r io.Reader, s *agentStream) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 64<<10), maxFrameBytes)
	for sc.Scan() {
		f := new(nodes.Frame)
		if err := json.Unmarshal(sc.Bytes(), f); err != nil {
			return fmt.Errorf("a line of the agent is not a frame: %w", err)
		}
		select {
		case c.inbox <- inbound{stream: s, frame: f}:
		case <-s.kill:
			return s.why
		case <-c.stop:
			return errStopping
		}
	}
	if err := sc.Err(); err != nil {
		return err
	}
	return io.EOF
}

// writeLines writes what the loop put into the outbox, several lines a write
// when they wait.
func writeLines(w io.Writer, s *agentStream) error {
	bw := bufio.NewWriterSize(w, 32<<10)
	enc := json.NewEncoder(bw)
	for {
		select {
		case <-s.kill:
			return s.why
		case d := <-s.out:
			if err := enc.Encode(d); err != nil {
				return err
			}
		drain:
			for {
				select {
				case d = <-s.out:
					if err := enc.Encode(d); err != nil {
						return err
					}
				default:
					break drain
				}
			}
			if err := bw.Flush(); err != nil {
				return err
			}
		}
	}
}
