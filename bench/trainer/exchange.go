package trainer

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Limits of the exchange.
const (
	keepAliveMs   = 5_000
	maxFrameBytes = 64 << 20
)

// ErrPeer says that a peer left in the middle: the generation is over.
var ErrPeer = errors.New("trainer: lost a peer")

// ring joins the ranks: a star around rank 0. It belongs to one goroutine;
// ending ctx closes every connection, so that nothing can hang in it.
type ring struct {
	rank, world int
	limit       time.Duration
	peers       []*peer // rank 0: of ranks 1..; others: of rank 0 alone
	sum         []int64
	in          []int64
	buf         []byte
	cancel      func() bool

	mu     sync.Mutex
	open   []io.Closer // guarded by mu
	closed bool        // guarded by mu
}

type peer struct {
	rank int
	c    net.Conn
	r    *bufio.Reader
}

// own notes what to close at the end; false when that has come already.
func (g *ring) own(c io.Closer) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		c.Close()
		return false
	}
	g.open = append(g.open, c)
	if t, ok := c.(*net.TCPConn); ok {
		t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAliveMs * time.Millisecond, Interval: keepAliveMs * time.Millisecond, Count: 3})
	}
	return true
}

func (g *ring) closeAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, c := range g.open {
		c.Close()
	}
}

func (g *ring) close() {
	if g.cancel != nil {
		g.cancel()
	}
	g.closeAll()
}

// Flags carried with every sum: one rank that sets one sets it for all.
const flagStop = 1

// header of a frame: step, flags, count of the payload's bytes.
const headerBytes = 8 + 4 + 4

// reduce adds values over all ranks, in place, and ors flags. Sums of integers
// do not depend on the order, so every rank ends with the same bits.
func (g *ring) reduce(step int64, values []int64, flags uint32) (uint32, error) {
	if g.world == 1 {
		return flags, nil
	}
	g.buf = encode(g.buf[:0], values)
	if g.rank != 0 {
		if err := g.write(g.peers[0], step, flags, g.buf); err != nil {
			return 0, err
		}
		return g.read(g.peers[0], step, values)
	}
	g.sum = append(g.sum[:0], values...)
	if g.in == nil {
		g.in = make([]int64, len(values))
	}
	for _, p := range g.peers {
		f, err := g.read(p, step, g.in[:len(values)])
		if err != nil {
			return 0, err
		}
		flags |= f
		for i, v := range g.in[:len(values)] {
			g.sum[i] += v
		}
	}
	copy(values, g.sum)
	g.buf = encode(g.buf[:0], values)
	for _, p := range g.peers {
		if err := g.write(p, step, flags, g.buf); err != nil {
			return 0, err
		}
	}
	return flags, nil
}

// collect brings one blob of every rank to rank 0, runs f there, and lets the
// others go on when f is done. A failure anywhere fails all.
func (g *ring) collect(step int64, blob []byte, f func(blobs [][]byte) error) error {
	if g.rank != 0 {
		if err := g.write(g.peers[0], step, 0, blob); err != nil {
			return err
		}
		_, _, err := g.readBlob(g.peers[0], step)
		return err
	}
	blobs := [][]byte{blob}
	for _, p := range g.peers {
		b, _, err := g.readBlob(p, step)
		if err != nil {
			return err
		}
		blobs = append(blobs, b)
	}
	if err := f(blobs); err != nil {
		return err
	}
	for _, p := range g.peers {
		if err := g.write(p, step, 0, nil); err != nil {
			return err
		}
	}
	return nil
}

func encode(buf []byte, values []int64) []byte {
	for _, v := range values {
		buf = binary.LittleEndian.AppendUint64(buf, uint64(v))
	}
	return buf
}

func (g *ring) write(p *peer, step int64, flags uint32, payload []byte) error {
	var head [headerBytes]byte
	binary.LittleEndian.PutUint64(head[:], uint64(step))
	binary.LittleEndian.PutUint32(head[8:], flags)
	binary.LittleEndian.PutUint32(head[12:], uint32(len(payload)))
	p.c.SetWriteDeadline(time.Now().Add(g.limit))
	bufs := net.Buffers{head[:], payload}
	if _, err := bufs.WriteTo(p.c); err != nil {
		return fmt.Errorf("%w: rank %d at step %d: %s", ErrPeer, p.rank, step, err.Error())
	}
	return nil
}

func (g *ring) readHead(p *peer, step int64) (size int, flags uint32, err error) {
	var head [headerBytes]byte
	p.c.SetReadDeadline(time.Now().Add(g.limit))
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		return 0, 0, fmt.Errorf("%w: rank %d at step %d: %s", ErrPeer, p.rank, step, err.Error())
	}
	theirs := int64(binary.LittleEndian.Uint64(head[:]))
	size = int(binary.LittleEndian.Uint32(head[12:]))
	if theirs != step || size > maxFrameBytes {
		return 0, 0, fmt.Errorf("%w: rank %d is at step %d, this one at %d", ErrPeer, p.rank, theirs, step)
	}
	return size, binary.LittleEndian.Uint32(head[8:]), nil
}

func (g *ring) read(p *peer, step int64, values []int64) (uint32, error) {
	size, flags, err := g.readHead(p, step)
	if err != nil {
		return 0, err
	}
	if size != 8*len(values) {
		return 0, fmt.Errorf("%w: rank %d sent %d bytes, not %d; its model differs", ErrPeer, p.rank, size, 8*len(values))
	}
	for i := range values {
		var b [8]byte
		if _, err := io.ReadFull(p.r, b[:]); err != nil {
			return 0, fmt.Errorf("%w: rank %d at step %d: %s", ErrPeer, p.rank, step, err.Error())
		}
		values[i] = int64(binary.LittleEndian.Uint64(b[:]))
	}
	return flags, nil
}

func (g *ring) readBlob(p *peer, step int64) ([]byte, uint32, error) {
	size, flags, err := g.readHead(p, step)
	if err != nil {
		return nil, 0, err
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(p.r, b); err != nil {
		return nil, 0, fmt.Errorf("%w: rank %d at step %d: %s", ErrPeer, p.rank, step, err.Error())
	}
	return b, flags, nil
}

// pause waits for d or for the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
