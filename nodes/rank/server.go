package rank

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a Server, each with its answer when full.
const (
	// MaxConns at once on one socket; one more is closed unheard.
	MaxConns = 256
	// MaxSendQueue messages that wait for a rank to read; one more closes the
	// connection, and the rank's next one starts from its state.
	MaxSendQueue = 64
	// MaxSocketPathBytes is the kernel's limit on a Unix socket's path, less the
	// ".new" that Listen binds to first.
	MaxSocketPathBytes = 107 - 4
	// HelloTimeoutMs and WriteTimeoutMs close a connection that keeps us waiting.
	HelloTimeoutMs = 5_000
	WriteTimeoutMs = 2_000
)

// Errors of a Server and its connections.
var (
	ErrSocketPath = errors.New("rank protocol: bad socket path")
	ErrClosed     = errors.New("rank protocol: connection closed")
	ErrSlow       = errors.New("rank protocol: peer does not read")
)

// Handler is told what the ranks say. Calls about one connection come one after
// the other, from that connection's goroutine; different connections call at the
// same time. An error from Hello refuses the rank with that reason.
//
// Message must return only when m is safe from a crash of the agent: shard,
// stopped and finished are acknowledged on its return, and never sent again.
type Handler interface {
	Hello(c *Conn, m Message) error
	Message(c *Conn, m Message)
	// Gone follows an accepted Hello exactly once; err says why.
	Gone(c *Conn, err error)
}

// Peer is who is at the other end, as the kernel says.
type Peer struct{ PID, UID, GID int }

// Server is the agent's end of one gang's socket (or of a whole node's).
type Server struct {
	path string
	ln   *net.UnixListener

	mu     sync.Mutex
	conns  map[*Conn]struct{} // guarded by mu
	closed bool               // guarded by mu
	wg     sync.WaitGroup
}

// Listen makes the socket, replacing one left by a dead agent; the path is never
// connectable with a wider mode than asked. The caller changes its owner
// (os.Chown) when ranks run as another user.
func Listen(path string, mode os.FileMode) (*Server, error) {
	if path == "" || len(path) > MaxSocketPathBytes {
		return nil, fmt.Errorf("%w: %d bytes, limit %d; choose a shorter run folder", ErrSocketPath, len(path), MaxSocketPathBytes)
	}
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	ln.SetUnlinkOnClose(false) // it would remove the name bound first, not ours
	if err = os.Chmod(temp, mode); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		ln.Close()
		os.Remove(temp)
		return nil, fmt.Errorf("listening on %s: %w", path, err)
	}
	return &Server{path: path, ln: ln, conns: make(map[*Conn]struct{})}, nil
}

// Serve accepts ranks until Close and returns nil then.
func (s *Server) Serve(h Handler) error {
	for {
		nc, err := s.ln.AcceptUnix()
		if err != nil {
			s.mu.Lock()
			closed := s.closed
			s.mu.Unlock()
			if closed {
				return nil
			}
			return fmt.Errorf("accepting ranks: %w", err)
		}
		c := &Conn{nc: nc, send: make(chan Message, MaxSendQueue), gone: make(chan struct{})}
		c.peer, err = peerOf(nc)
		s.mu.Lock()
		if err != nil || s.closed || len(s.conns) >= MaxConns {
			s.mu.Unlock()
			nc.Close()
			continue
		}
		s.conns[c] = struct{}{}
		s.wg.Add(1)
		s.mu.Unlock()
		go func() {
			defer s.wg.Done()
			c.serve(h)
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		}()
	}
}

// Close ends all connections, waits for their handlers and removes the socket.
// It must not be called from a Handler.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	os.Remove(s.path)
	err := s.ln.Close()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return err
}

// Conn is one rank's connection. Its methods may be called from anywhere.
type Conn struct {
	nc    *net.UnixConn
	peer  Peer
	hello Message // set before the handler sees the Conn
	send  chan Message

	once sync.Once
	gone chan struct{}
}

// Peer is the process at the other end.
func (c *Conn) Peer() Peer { return c.peer }

// Hello is what the rank introduced itself with.
func (c *Conn) Hello() Message { return c.hello }

// Send queues an order and never blocks. ErrSlow closes the connection.
func (c *Conn) Send(m Message) error {
	if err := m.Validate(); err != nil {
		return err
	}
	select {
	case <-c.gone:
		return ErrClosed
	default:
	}
	select {
	case c.send <- m:
		return nil
	default:
		c.Close()
		return ErrSlow
	}
}

// Close ends the connection; the rank will come again.
func (c *Conn) Close() {
	c.once.Do(func() {
		close(c.gone)
		c.nc.Close()
	})
}

// serve reads until the end; the connection's one writer runs beside it.
func (c *Conn) serve(h Handler) {
	var writer sync.WaitGroup
	writer.Go(c.write)
	defer writer.Wait()
	defer c.Close()

	lines := bufio.NewScanner(c.nc)
	lines.Buffer(make([]byte, 0, 4096), MaxLineBytes)
	c.nc.SetReadDeadline(time.Now().Add(HelloTimeoutMs * time.Millisecond))
	m, err := next(lines)
	if err == nil && m.Type != TypeHello {
		err = fmt.Errorf("%w: %s before hello", ErrMessage, m.Type)
	}
	if err == nil {
		c.nc.SetReadDeadline(time.Time{})
		c.hello = m
		err = h.Hello(c, m)
	}
	if err != nil {
		c.refuseHello(err)
		return
	}
	for {
		if m, err = next(lines); err != nil {
			break
		}
		if m.Type == TypeHello {
			err = fmt.Errorf("%w: second hello", ErrMessage)
			break
		}
		h.Message(c, m)
		if m.Seq != 0 {
			c.Send(Message{Type: TypeAck, Seq: m.Seq})
		}
	}
	c.Close()
	h.Gone(c, err)
}

// refuseHello says why and leaves the writer a moment to send it: closing the
// writing half would not help a rank that is still writing to us.
func (c *Conn) refuseHello(err error) {
	if line, aerr := (Message{Type: TypeRefused, Order: TypeHello, Reason: err.Error()}).Append(nil); aerr == nil {
		c.nc.SetWriteDeadline(time.Now().Add(WriteTimeoutMs * time.Millisecond))
		c.nc.Write(line)
	}
}

func (c *Conn) write() {
	var buf []byte
	for {
		select {
		case <-c.gone:
			return
		case m := <-c.send:
			var err error
			if buf, err = m.Append(buf[:0]); err == nil {
				c.nc.SetWriteDeadline(time.Now().Add(WriteTimeoutMs * time.Millisecond))
				_, err = c.nc.Write(buf)
			}
			if err != nil {
				c.Close()
				return
			}
		}
	}
}

// next reads one message; io errors and the end of the stream are ErrClosed.
func next(lines *bufio.Scanner) (Message, error) {
	if !lines.Scan() {
		if errors.Is(lines.Err(), bufio.ErrTooLong) {
			return Message{}, fmt.Errorf("%w: limit %d", ErrTooLong, MaxLineBytes)
		}
		return Message{}, ErrClosed
	}
	return Parse(lines.Bytes())
}

func peerOf(nc *net.UnixConn) (Peer, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if cerr != nil {
		return Peer{}, cerr
	}
	if err != nil {
		return Peer{}, err
	}
	return Peer{PID: int(cred.Pid), UID: int(cred.Uid), GID: int(cred.Gid)}, nil
}
