package gateway

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// watcher learns from the kernel that clients have left, whatever their handlers are doing: one epoll set, each
// connection added once when it is accepted and removed by its closing. The set itself lies in Go's poller, so a quiet
// watcher costs neither a thread nor a wake-up.
type watcher struct {
	set  *connSet
	file *os.File
	fd   int
	done chan struct{}
}

// watchBatch is how many departures are read at once.
const watchBatch = 128

func newWatcher(set *connSet) (*watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("gateway: watch for departing clients: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("gateway: watch for departing clients: %w", err)
	}
	w := &watcher{set: set, file: os.NewFile(uintptr(fd), "clients"), fd: fd, done: make(chan struct{})}
	raw, err := w.file.SyscallConn()
	if err != nil {
		w.file.Close()
		return nil, fmt.Errorf("gateway: watch for departing clients: %w", err)
	}
	go w.run(raw)
	return w, nil
}

// run ends when the set is closed.
func (w *watcher) run(raw syscall.RawConn) {
	defer close(w.done)
	events := make([]unix.EpollEvent, watchBatch)
	_ = raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.EpollWait(int(fd), events, 0)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return true
			}
			for _, ev := range events[:n] {
				id := uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32
				if c := w.set.get(id); c != nil {
					c.leave(false)
				}
			}
			if n < len(events) {
				return false // wait in Go's poller for the set to become readable
			}
		}
	})
}

// add watches a connection until it is closed. One that cannot be watched is noticed when it is written to.
func (w *watcher) add(c *clientConn) {
	sc, ok := c.Conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		ev := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(uint32(c.id)), Pad: int32(uint32(c.id >> 32))}
		_ = unix.EpollCtl(w.fd, unix.EPOLL_CTL_ADD, int(fd), &ev)
	})
}

func (w *watcher) close() {
	w.file.Close()
	<-w.done
}
