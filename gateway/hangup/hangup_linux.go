package hangup

import (
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Peer is told that the other end of its connection has closed.
type Peer interface{ Left() }

// batch is how many closings are read at once.
const batch = 128

// Watcher watches connections. Make it with New; safe for concurrent use.
type Watcher struct {
	file *os.File
	fd   int
	done chan struct{}

	mu    sync.Mutex
	next  uint64          // guarded by mu
	peers map[uint64]Peer // guarded by mu; as many as its callers have connections
}

// New returns a watcher without connections.
func New() (*Watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("hangup: make the set: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("hangup: make the set: %w", err)
	}
	w := &Watcher{file: os.NewFile(uintptr(fd), "hangup"), fd: fd, done: make(chan struct{}), peers: make(map[uint64]Peer)}
	raw, err := w.file.SyscallConn()
	if err != nil {
		w.file.Close()
		return nil, fmt.Errorf("hangup: make the set: %w", err)
	}
	go w.run(raw)
	return w, nil
}

// run ends when the set is closed.
func (w *Watcher) run(raw syscall.RawConn) {
	defer close(w.done)
	events := make([]unix.EpollEvent, batch)
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
				if p := w.peer(uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32); p != nil {
					p.Left()
				}
			}
			if n < len(events) {
				return false // wait in Go's poller for the set to become readable
			}
		}
	})
}

func (w *Watcher) peer(id uint64) Peer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.peers[id]
}

// Add watches c until it is closed. False: it cannot be watched, and nothing is kept.
func (w *Watcher) Add(c net.Conn, p Peer) (id uint64, ok bool) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return 0, false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, false
	}
	w.mu.Lock()
	w.next++
	id = w.next
	w.peers[id] = p
	w.mu.Unlock()
	added := error(unix.EBADF)
	err = raw.Control(func(fd uintptr) {
		ev := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
		added = unix.EpollCtl(w.fd, unix.EPOLL_CTL_ADD, int(fd), &ev)
	})
	if err != nil || added != nil {
		w.Remove(id)
		return 0, false
	}
	return id, true
}

// Remove forgets a connection. The kernel forgets it when it is closed.
func (w *Watcher) Remove(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.peers, id)
}

// Close ends the watching.
func (w *Watcher) Close() {
	w.file.Close()
	<-w.done
}
