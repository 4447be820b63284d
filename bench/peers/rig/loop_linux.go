package rig

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// never is the due time of nothing.
	never = math.MaxInt64
	// batch is how many events are taken from the kernel at once.
	batch = 256
	// scratchBytes is read at once at most; a connection with more is read again.
	scratchBytes = 256 << 10
	// stopTry is how late Stop may be noticed.
	stopTry = 200_000_000
	// spinNs is the rest of a wait below which the kernel's timer is not asked.
	spinNs = 2_000
)

// handler is one end of a connection, or a listener.
type handler interface {
	ready(events uint32)
}

// timer is a source of things to do at a time.
type timer interface {
	// due is when fire wants to be called, or never.
	due() int64
	fire(nowNs int64)
}

type slot struct {
	h   handler
	gen int32
}

// Rig is the loop with all its connections. Make it with New.
type Rig struct {
	epfd    int
	start   time.Time
	slots   []slot // by file descriptor
	timers  []timer
	events  [batch]unix.EpollEvent
	scratch []byte
	sources int // how many loopback addresses clients use in turn; 0: the kernel's choice
	nextSrc int
	fault   error
	stopped atomic.Bool
	spin    bool
}

// ErrStopped: Stop was called.
var ErrStopped = errors.New("rig: stopped")

// Stop ends the run under way, and every later one, with ErrStopped. It alone may be called from anywhere.
func (r *Rig) Stop() { r.stopped.Store(true) }

// New returns a rig without connections.
func New() (*Rig, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("rig: make an epoll set: %w", err)
	}
	return &Rig{epfd: fd, start: time.Now(), scratch: make([]byte, scratchBytes)}, nil
}

// Now is the rig's clock, in nanoseconds.
func (r *Rig) Now() int64 { return int64(time.Since(r.start)) }

// Sources makes clients use n addresses 127.0.0.2 and up in turn, when one address has too few ports.
func (r *Rig) Sources(n int) { r.sources = n }

// Spin makes Run ask for events without sleeping. Being woken takes a virtual machine's core longer than a gateway takes
// over a request, and would be counted as the gateway's latency.
func (r *Rig) Spin(on bool) { r.spin = on }

// Run serves connections and timers for d. Its error is the first fault of the rig itself, not of a gateway.
func (r *Rig) Run(d time.Duration) error {
	return r.RunUntil(d, func() bool { return false })
}

// RunUntil is Run that also ends as soon as done says so; it is asked after each batch of events.
func (r *Rig) RunUntil(d time.Duration, done func() bool) error {
	end := r.Now() + int64(d)
	for {
		if r.stopped.Load() {
			return ErrStopped
		}
		now := r.Now()
		if now >= end || r.fault != nil || done() {
			return r.fault
		}
		next := end
		for _, t := range r.timers {
			next = min(next, t.due())
		}
		n, err := r.wait(min(next-now, stopTry))
		if err != nil {
			return err
		}
		for i := range r.events[:n] {
			ev := &r.events[i]
			if s := r.slots[ev.Fd]; s.h != nil && s.gen == ev.Pad {
				s.h.ready(ev.Events)
			}
		}
		now = r.Now()
		for _, t := range r.timers {
			if t.due() <= now {
				t.fire(now)
			}
		}
	}
}

// wait asks the kernel for events, for at most the given time.
func (r *Rig) wait(ns int64) (int, error) {
	if r.spin || ns < spinNs {
		ns = 0
	}
	ts := unix.NsecToTimespec(ns)
	n, _, e := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(r.epfd), uintptr(unsafe.Pointer(&r.events)), batch,
		uintptr(unsafe.Pointer(&ts)), 0, 0)
	switch e {
	case 0:
		return int(n), nil
	case unix.EINTR:
		return 0, nil
	case unix.ENOSYS:
		return 0, errors.New("rig: Linux 5.11 or newer is needed (epoll_pwait2)")
	}
	return 0, fmt.Errorf("rig: wait for events: %w", e)
}

// add watches fd, edge-triggered.
func (r *Rig) add(fd int, h handler) error {
	for len(r.slots) <= fd {
		r.slots = append(r.slots, slot{})
	}
	s := &r.slots[fd]
	s.h = h
	s.gen++
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET&math.MaxUint32, Fd: int32(fd), Pad: s.gen}
	if err := unix.EpollCtl(r.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("rig: watch a connection: %w", err)
	}
	return nil
}

// drop closes fd and forgets it.
func (r *Rig) drop(fd int) {
	r.slots[fd].h = nil
	unix.Close(fd)
}

// fail notes the first fault of the rig itself; Run returns it.
func (r *Rig) fail(err error) {
	if r.fault == nil {
		r.fault = err
	}
}

func (r *Rig) removeTimer(t timer) {
	for i, have := range r.timers {
		if have == t {
			r.timers = append(r.timers[:i], r.timers[i+1:]...)
			return
		}
	}
}

// read takes what has come into the scratch buffer. more says that the connection may hold further bytes.
func (r *Rig) read(fd int) (p []byte, more, gone bool) {
	n, err := unix.Read(fd, r.scratch)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return nil, err == unix.EINTR, false
	case err != nil || n == 0:
		return nil, false, true
	}
	return r.scratch[:n], n == len(r.scratch), false
}

// write sends p and returns what the kernel had no room for.
func (r *Rig) write(fd int, p []byte) (rest []byte, gone bool) {
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return p, false
		case err != nil:
			return nil, true
		}
		p = p[n:]
	}
	return nil, false
}
