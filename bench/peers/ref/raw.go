package ref

import (
	"bytes"
	"io"
	"net"
	"strconv"
)

// Buffers of the bare relays, each a connection's own.
const (
	copyBuffer = 16 << 10
)

// copyBytes is the floor of all relays: it looks at nothing.
func copyBytes(client, engine net.Conn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Wrapped, so that no splice is used: it would need a pipe for each direction.
		_, _ = io.CopyBuffer(plainWriter{client}, plainReader{engine}, make([]byte, copyBuffer))
		client.Close()
	}()
	_, _ = io.CopyBuffer(plainWriter{engine}, plainReader{client}, make([]byte, copyBuffer))
	engine.Close()
	<-done
}

type plainReader struct{ io.Reader }

type plainWriter struct{ io.Writer }

// relay passes request after request to one engine connection and its answers back, with one read and one write for a
// small message. It finds the ends of messages and nothing else.
func relay(client, engine net.Conn) {
	buf := make([]byte, copyBuffer)
	for message(client, engine, buf, false) && message(engine, client, buf, true) {
	}
}

// message passes one message on. It reports whether another may follow.
func message(from io.Reader, to io.Writer, buf []byte, answer bool) bool {
	n, end := 0, -1
	for end < 0 {
		if n == len(buf) {
			return false
		}
		m, err := from.Read(buf[n:])
		if err != nil {
			return false
		}
		n += m
		end = bytes.Index(buf[:n], []byte("\r\n\r\n"))
	}
	head := buf[:end+4]
	length, chunked := framing(head)
	closes := answer && length < 0 && !chunked
	left := max(length, 0) - (n - len(head))
	var tail [7]byte
	if chunked {
		keepTail(&tail, buf[:n])
	}
	if _, err := to.Write(buf[:n]); err != nil {
		return false
	}
	for closes || chunked && !lastChunk(tail[:]) || !chunked && left > 0 {
		m, err := from.Read(buf)
		if err != nil {
			return false
		}
		if chunked {
			keepTail(&tail, buf[:m])
		}
		left -= m
		if _, err := to.Write(buf[:m]); err != nil {
			return false
		}
	}
	return true
}

// lastChunk reports that a chunked body ends with these bytes. One whose data end so too ends early here; prepared
// answers do not.
func lastChunk(p []byte) bool { return bytes.HasSuffix(p, []byte("\r\n0\r\n\r\n")) }

func keepTail(tail *[7]byte, p []byte) {
	if len(p) >= len(tail) {
		copy(tail[:], p[len(p)-len(tail):])
		return
	}
	copy(tail[:], tail[len(p):])
	copy(tail[len(tail)-len(p):], p)
}

// framing reads how long the body is. -1: not said.
func framing(head []byte) (length int, chunked bool) {
	length = -1
	for line := range bytes.Lines(head) {
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if n, err := strconv.Atoi(string(bytes.TrimSpace(value))); err == nil {
				length = n
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			chunked = true
		}
	}
	return length, chunked
}
