package rig

import (
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Target is what clients ask, and whom.
type Target struct {
	Addr    string // host:port, IPv4
	Request []byte // as it goes over the wire
}

func (t Target) sockaddr() (unix.SockaddrInet4, error) {
	ap, err := netip.ParseAddrPort(t.Addr)
	if err != nil || !ap.Addr().Is4() {
		return unix.SockaddrInet4{}, fmt.Errorf("rig: the address %q must be an IPv4 address and a port", t.Addr)
	}
	return unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}, nil
}

// owner decides what a client does next.
type owner interface {
	// answered: a whole answer has come.
	answered(c *client)
	// body: a piece of one has.
	body(c *client, p []byte)
	// lost: the connection ended, with asked while an answer was outstanding.
	lost(c *client, asked bool)
}

// client is one connection of a client.
type client struct {
	r       *Rig
	own     owner
	fd      int // -1: closed
	in      reader
	pending []byte // of the request
	asked   bool
	begun   bool  // bytes of the answer have come
	sentNs  int64 // when the request went out, or should have
	scan    scanner
	index   int
	open    bool // connected
}

// dial opens a connection; the request that ask sends waits for it.
func (r *Rig) dial(to *unix.SockaddrInet4, own owner, index int) (*client, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("rig: make a socket: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if r.sources > 0 {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		src := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, byte(2 + r.nextSrc%r.sources)}}
		r.nextSrc++
		if err := unix.Bind(fd, src); err != nil {
			unix.Close(fd)
			return nil, fmt.Errorf("rig: bind a client to %v: %w", net.IP(src.Addr[:]), err)
		}
	}
	c := &client{r: r, own: own, fd: fd, index: index}
	if err := unix.Connect(fd, to); err != nil && err != unix.EINPROGRESS {
		unix.Close(fd)
		return nil, fmt.Errorf("rig: connect to port %d: %w", to.Port, err)
	}
	if err := r.add(fd, c); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return c, nil
}

// ask sends a request whose time counts from ns.
func (c *client) ask(request []byte, ns int64) {
	c.asked, c.begun, c.sentNs = true, false, ns
	if !c.open {
		c.pending = request
		return
	}
	c.push(request)
}

func (c *client) push(p []byte) {
	rest, gone := c.r.write(c.fd, p)
	if gone {
		c.lose()
		return
	}
	c.pending = rest
}

func (c *client) ready(events uint32) {
	if events&unix.EPOLLOUT != 0 {
		c.open = true
		if len(c.pending) > 0 {
			c.push(c.pending)
		}
	}
	if events&^unix.EPOLLOUT == 0 {
		return
	}
	over := events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	for more := true; (more || over) && c.fd >= 0; {
		var p []byte
		var gone bool
		p, more, gone = c.r.read(c.fd)
		if len(p) > 0 {
			c.take(p)
			continue
		}
		if gone || over && !more {
			c.lose()
			return
		}
	}
}

// take hands on what has come.
func (c *client) take(p []byte) {
	c.begun = true
	for len(p) > 0 && c.fd >= 0 {
		body, rest, done := c.in.next(p)
		if c.in.broken {
			c.lose()
			return
		}
		if len(body) > 0 {
			c.own.body(c, body)
		}
		p = rest
		if done {
			c.finish()
		}
	}
}

func (c *client) finish() {
	c.asked = false
	last := c.in.head.close
	if last {
		c.close()
	}
	c.own.answered(c)
}

// lose ends a connection that the other side ended, or that cannot be understood. An answer without a length ends so.
func (c *client) lose() {
	asked, whole := c.asked, c.in.state == untilClose && !c.in.broken
	c.close()
	c.asked = false
	if asked && whole {
		c.own.answered(c)
		return
	}
	c.own.lost(c, asked)
}

func (c *client) close() {
	if c.fd >= 0 {
		c.r.drop(c.fd)
		c.fd = -1
	}
}
