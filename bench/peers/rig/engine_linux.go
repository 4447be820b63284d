package rig

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Answer is what an engine says to every request for a completion. The zero value answers nothing: a prefill without
// end.
type Answer struct {
	Body  []byte        // of a plain answer
	Delay time.Duration // before a plain answer
	// Tokens of a streamed answer, one every Pace; Pace 0 sends each as soon as there is room, in one write each.
	Tokens int
	Pace   time.Duration
	// Old answers as HTTP/1.0 does: no length, no chunks, the end is the end of the connection.
	Old bool
}

// Endless is a number of tokens that no run comes to the end of.
const Endless = 1 << 40

// turnsApart spreads the first tokens of streams over their pace: the golden ratio's multiples leave no two together.
const turnsApart = 0.6180339887498949

// Engine is a simulated engine: it listens, reads whole requests, and says its Answer. Made by Rig.Listen.
type Engine struct {
	Answer   Answer
	Requests int // completions asked for
	Sent     int // tokens
	Blocked  int // tokens that found no room in the connection and were left out
	Late     int // times that a stream was a whole pace behind, and left tokens out
	// Asked and Gone are called when a request that names a trial has come, and when its connection has ended before the
	// answer did.
	Asked func(trial int)
	Gone  func(trial int, nowNs int64)

	r     *Rig
	fd    int
	addr  unix.SockaddrInet4
	conns map[*engineConn]struct{}
	queue schedule
	turns int

	event, chunk     []byte // a token, bare and as a chunk
	eventAt, chunkAt int    // where its time goes
}

// Listen starts an engine. Port 0 takes a free one.
func (r *Rig) Listen(port int) (*Engine, error) {
	e := &Engine{r: r, conns: map[*engineConn]struct{}{}, addr: unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}}
	e.event, e.eventAt = newEvent()
	e.chunk = asChunk(e.event)
	e.chunkAt = bytes.Index(e.chunk, e.event) + e.eventAt
	if err := e.Open(); err != nil {
		return nil, err
	}
	r.timers = append(r.timers, e)
	return e, nil
}

// Open listens again after Kill, on the same port.
func (e *Engine) Open() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("rig: make a socket: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err = unix.Bind(fd, &e.addr); err == nil {
		err = unix.Listen(fd, 4096)
	}
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("rig: listen on port %d: %w", e.addr.Port, err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("rig: listen: %w", err)
	}
	e.fd, e.addr.Port = fd, sa.(*unix.SockaddrInet4).Port
	return e.r.add(fd, e)
}

// Addr is host:port.
func (e *Engine) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(e.addr.Port)) }

// Kill closes the listener and every connection, as the end of a process does.
func (e *Engine) Kill() {
	e.r.drop(e.fd)
	for c := range e.conns {
		c.end(false)
	}
}

// Close is Kill, and forgets the engine.
func (e *Engine) Close() {
	e.Kill()
	e.r.removeTimer(e)
}

// Conns is the number of open connections.
func (e *Engine) Conns() int { return len(e.conns) }

func (e *Engine) ready(uint32) {
	for {
		fd, _, err := unix.Accept4(e.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err == unix.EINTR || err == unix.ECONNABORTED {
			continue
		}
		if err != nil {
			if err != unix.EAGAIN {
				e.r.fail(fmt.Errorf("rig: the engine accepts a connection: %w", err))
			}
			return
		}
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		c := &engineConn{e: e, fd: fd, trial: -1}
		e.conns[c] = struct{}{}
		if err := e.r.add(fd, c); err != nil {
			e.r.fail(err)
			return
		}
	}
}

func (e *Engine) due() int64 { return e.queue.due() }

// fireMost is how many tokens are sent before the rig looks for events again.
const fireMost = 256

func (e *Engine) fire(nowNs int64) {
	for n := 0; e.queue.due() <= nowNs && n < fireMost; n++ {
		q := e.queue.pop()
		if q.conn.fd < 0 || q.conn.turn != q.turn {
			continue
		}
		if !q.conn.streaming {
			q.conn.plain()
			continue
		}
		q.conn.token()
		if q.conn.left > 0 {
			q.dueNs += int64(e.Answer.Pace)
			if q.dueNs < nowNs { // a whole pace late: this rig cannot keep up, and must not fall further behind
				e.Late++
				q.dueNs = nowNs + int64(e.Answer.Pace)
			}
			e.queue.push(q)
		}
	}
}

// engineConn is one connection to an engine.
type engineConn struct {
	e         *Engine
	fd        int // -1: closed
	in        reader
	pending   []byte // what the kernel had no room for
	trial     int    // named by the request under way; -1: none
	turn      int    // counts answers
	left      int    // tokens to come
	streaming bool
	usage     bool // the request wants the usage chunk
	old       bool // answered as HTTP/1.0
	last      bool // the connection ends with the answer
}

func (c *engineConn) ready(events uint32) {
	if events&unix.EPOLLOUT != 0 && len(c.pending) > 0 {
		c.flush()
	}
	if events&^unix.EPOLLOUT == 0 {
		return
	}
	for more := true; more && c.fd >= 0; {
		var p []byte
		var gone bool
		p, more, gone = c.e.r.read(c.fd)
		if gone || len(p) == 0 && !more && events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			c.end(true)
			return
		}
		for len(p) > 0 && c.fd >= 0 {
			body, rest, done := c.in.next(p)
			if c.in.broken {
				c.end(true)
				return
			}
			if len(body) > 0 && len(body) < 8<<10 {
				c.look(body)
			}
			p = rest
			if done {
				c.answer()
			}
		}
	}
	if c.fd >= 0 && events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		c.end(true)
	}
}

// look reads what a small request says beside its prompt.
func (c *engineConn) look(body []byte) {
	a := &c.e.Answer
	if len(a.Body) > 0 {
		return
	}
	c.usage = c.usage || bytes.Contains(body, []byte(`"include_usage":true`))
	if i := bytes.Index(body, trialMark); i >= 0 {
		digits, _, _ := bytes.Cut(body[i+len(trialMark):], []byte(`"`))
		c.trial = number(digits)
	}
}

const (
	eventHead = "Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
	okHead    = "HTTP/1.1 200 OK\r\nServer: engine\r\n"
	oldHead   = "HTTP/1.0 200 OK\r\nServer: engine\r\n"
	closeHead = "Connection: close\r\n"
)

// answer begins the answer to a whole request.
func (c *engineConn) answer() {
	a := &c.e.Answer
	c.turn++
	c.streaming = false
	c.old = a.Old || c.in.head.old
	c.last = c.old || c.in.head.close
	if !c.in.head.chat {
		c.send([]byte(okHead + "Content-Length: 2\r\n\r\nOK"))
		return
	}
	c.e.Requests++
	if c.e.Asked != nil && c.trial >= 0 {
		c.e.Asked(c.trial)
	}
	switch {
	case len(a.Body) > 0 && a.Delay > 0:
		c.e.queue.push(queued{c.e.r.Now() + int64(a.Delay), c, c.turn})
	case len(a.Body) > 0:
		c.plain()
	case a.Tokens > 0:
		c.stream()
	}
}

func (c *engineConn) plain() {
	if !c.last {
		c.send(c.e.Answer.Body)
		return
	}
	line, rest := cutLine(c.e.Answer.Body)
	c.send(append([]byte(string(line)+"\r\n"+closeHead), rest...))
	if len(c.pending) == 0 && c.fd >= 0 {
		c.end(false)
	}
}

func (c *engineConn) stream() {
	a := &c.e.Answer
	c.streaming, c.left = true, a.Tokens
	switch {
	case c.old:
		c.send([]byte(oldHead + eventHead + "\r\n"))
	case c.last:
		c.send([]byte(okHead + eventHead + "Transfer-Encoding: chunked\r\n" + closeHead + "\r\n"))
	default:
		c.send([]byte(okHead + eventHead + "Transfer-Encoding: chunked\r\n\r\n"))
	}
	if a.Pace == 0 {
		c.burst()
		return
	}
	c.e.turns++
	first := float64(c.e.turns) * turnsApart
	first -= float64(int(first))
	c.e.queue.push(queued{c.e.r.Now() + int64(first*float64(a.Pace)), c, c.turn})
}

// token sends one token, and the end behind the last.
func (c *engineConn) token() {
	if c.fd < 0 {
		return
	}
	c.left--
	if len(c.pending) > 0 {
		c.e.Blocked++
	} else {
		c.e.Sent++
		if c.old {
			stamp(c.e.event[c.e.eventAt:], c.e.r.Now())
			c.send(c.e.event)
		} else {
			stamp(c.e.chunk[c.e.chunkAt:], c.e.r.Now())
			c.send(c.e.chunk)
		}
	}
	if c.left == 0 && c.fd >= 0 {
		c.finish()
	}
}

// burst sends tokens while there is room.
func (c *engineConn) burst() {
	for c.left > 0 && len(c.pending) == 0 && c.fd >= 0 {
		c.token()
	}
}

func (c *engineConn) finish() {
	end := []byte(finishEvent)
	if c.usage {
		end = append(end, usageEvent...)
	}
	end = append(end, doneEvent...)
	if !c.old {
		end = append(asChunk(end), "0\r\n\r\n"...)
	}
	c.streaming, c.usage, c.trial = false, false, -1
	c.send(end)
	if c.last && len(c.pending) == 0 && c.fd >= 0 {
		c.end(false)
	}
}

func (c *engineConn) send(p []byte) {
	if c.fd < 0 {
		return
	}
	if len(c.pending) > 0 {
		c.pending = append(c.pending, p...)
		return
	}
	rest, gone := c.e.r.write(c.fd, p)
	if gone {
		c.end(true)
		return
	}
	c.pending = append(c.pending, rest...)
}

func (c *engineConn) flush() {
	rest, gone := c.e.r.write(c.fd, c.pending)
	if gone {
		c.end(true)
		return
	}
	c.pending = c.pending[:copy(c.pending, rest)]
	if len(c.pending) > 0 {
		return
	}
	switch {
	case c.streaming && c.e.Answer.Pace == 0:
		c.burst()
	case !c.streaming && c.last:
		c.end(false)
	}
}

// end closes the connection; byPeer tells whoever waits for that.
func (c *engineConn) end(byPeer bool) {
	if c.fd < 0 {
		return
	}
	c.e.r.drop(c.fd)
	c.fd = -1
	delete(c.e.conns, c)
	if byPeer && c.trial >= 0 && c.e.Gone != nil {
		c.e.Gone(c.trial, c.e.r.Now())
	}
}
