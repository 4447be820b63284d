package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is a mock that speaks bytes. serve handles one connection.
func engine(t *testing.T, serve func(n int, c net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; ; n++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { serve(n, c); c.Close() }()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().String()
}

// readRequest reads one request with a Content-Length and returns its head and body; ok is false at the end.
func readRequest(c net.Conn) (head, body string, ok bool) {
	var b []byte
	one := make([]byte, 1)
	for !bytes.HasSuffix(b, []byte("\r\n\r\n")) {
		if _, err := c.Read(one); err != nil {
			return "", "", false
		}
		b = append(b, one[0])
	}
	n := 0
	for line := range strings.SplitSeq(string(b), "\r\n") {
		fmt.Sscanf(line, "Content-Length: %d", &n)
	}
	rest := make([]byte, n)
	if _, err := io.ReadFull(c, rest); err != nil {
		return "", "", false
	}
	return string(b), string(rest), true
}

func client(t *testing.T, change func(*Config)) *Client {
	t.Helper()
	cfg := Default()
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// fetch runs one exchange to its end.
func fetch(c *Client, x *Exchange, addr, body string) (int, string, error) {
	x.Begin()
	defer c.Finish(x)
	if err := c.Do(x, &Request{Addr: addr, Method: "POST", Path: "/v1/x", Header: []byte("X-A: b\r\n"), Body: [][]byte{[]byte(body)}}); err != nil {
		return 0, "", err
	}
	var out []byte
	buf := make([]byte, 64)
	for {
		n, err := x.Read(buf)
		out = append(out, buf[:n]...)
		if errors.Is(err, io.EOF) {
			return x.Status(), string(out), nil
		}
		if err != nil {
			return x.Status(), string(out), err
		}
	}
}

func TestAnswers(t *testing.T) {
	long := strings.Repeat("z", 300)
	for _, c := range []struct {
		name, answer, want string
		err                error
		pooled             bool
	}{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", nil, true},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nT: 1\r\n\r\n", "hello", nil, true},
		{"large chunk", "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n12C\r\n" + long + "\r\n0\r\n\r\n", long, nil, true},
		{"http/1.0", "HTTP/1.0 200 OK\r\n\r\nhello", "hello", nil, false},
		{"1xx", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "hi", nil, true},
		{"none", "HTTP/1.1 204 No\r\n\r\n", "", nil, true},
		{"close asked", "HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 2\r\n\r\nhi", "hi", nil, false},
		{"extra bytes", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n", "hi", nil, false},
		{"short", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", "hello", ErrLost, false},
		{"short chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "hello", ErrLost, false},
		{"both", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "", ErrProtocol, false},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "", ErrProtocol, false},
		{"bad length", "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello", "", ErrProtocol, false},
		{"gzip coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "", ErrProtocol, false},
		{"bad chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", "", ErrProtocol, false},
		{"huge chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nhello", "", ErrProtocol, false},
		{"chunk overrun", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n", "", ErrProtocol, false},
		{"fold", "HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n", "", ErrProtocol, false},
		{"space before colon", "HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n", "", ErrProtocol, false},
		{"bare cr", "HTTP/1.1 200 OK\r\nA: b\rC: d\r\n\r\n", "", ErrProtocol, false},
		{"bare lf", "HTTP/1.1 200 OK\nA: b\r\n\r\n", "", ErrProtocol, false},
		{"not http", "SSH-2.0-OpenSSH\r\n\r\n", "", ErrProtocol, false},
		{"switch", "HTTP/1.1 101 Switching\r\n\r\n", "", ErrProtocol, false},
		{"endless head", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", MaxHeadBytes), "", ErrProtocol, false},
		{"nothing", "", "", ErrLost, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, piece := range []int{1, 7, 1 << 20} {
				if piece == 1 && len(c.answer) > 4096 {
					continue
				}
				addr := engine(t, func(_ int, conn net.Conn) {
					if _, _, ok := readRequest(conn); !ok {
						return
					}
					for at := 0; at < len(c.answer); at += piece {
						conn.Write([]byte(c.answer[at:min(at+piece, len(c.answer))]))
					}
					if c.pooled {
						io.Copy(io.Discard, conn)
					}
				})
				cl := client(t, nil)
				var x Exchange
				_, got, err := fetch(cl, &x, addr, "body")
				if !errors.Is(err, c.err) || (err == nil && got != c.want) || (err == nil && !strings.HasPrefix(c.want, got)) {
					t.Fatalf("pieces of %d: %q, %v", piece, got, err)
				}
				if want := map[bool]int{true: 1}[c.pooled]; cl.Idle() != want && (c.name != "extra bytes" || piece > 7) {
					t.Fatalf("pieces of %d: %d idle", piece, cl.Idle())
				}
				cl.Close()
			}
		})
	}
}

func TestRequestBytes(t *testing.T) {
	heads := make(chan string, 4)
	addr := engine(t, func(_ int, c net.Conn) {
		for {
			head, body, ok := readRequest(c)
			if !ok {
				return
			}
			heads <- head + body
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	cl := client(t, nil)
	var x Exchange
	for _, size := range []int{3, 200 << 10} {
		body := strings.Repeat("q", size)
		if _, _, err := fetch(cl, &x, "http://"+addr+"/base/", body); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("POST /base/v1/x HTTP/1.1\r\nHost: %s\r\nX-A: b\r\nContent-Length: %d\r\n\r\n%s", addr, size, body)
		if got := <-heads; got != want {
			t.Fatalf("%.200q", got)
		}
	}
	if s := cl.Stats(); s.Dials != 1 || s.Reuses != 1 {
		t.Fatalf("%+v", s)
	}
}

func TestCase_GW_21_idle_connection_closed(t *testing.T) {
	var bodies, conns atomic.Int64
	closed := make(chan struct{}, 8)
	addr := engine(t, func(n int, c net.Conn) {
		conns.Add(1)
		if _, _, ok := readRequest(c); !ok {
			return
		}
		bodies.Add(1)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		if n == 2 { // takes the next request's body and closes without an answer
			readRequest(c)
			return
		}
		c.Close()
		closed <- struct{}{}
	})
	cl := client(t, nil)
	var x Exchange
	if _, _, err := fetch(cl, &x, addr, "1"); err != nil {
		t.Fatal(err)
	}
	<-closed // the engine has closed the pooled connection: seen before use, or by the write
	if _, _, err := fetch(cl, &x, addr, "2"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := fetch(cl, &x, addr, "3"); err != nil {
		t.Fatal(err)
	}
	if s := cl.Stats(); bodies.Load() != 3 || conns.Load() != 3 || s.Retries != 1 || s.Stale > 1 {
		t.Fatalf("%d bodies on %d connections, %+v", bodies.Load(), conns.Load(), s)
	}
}

// An engine refuses a large request by its head alone and closes: its answer counts, not the broken write.
func TestAnswerBeforeTheRequestIsRead(t *testing.T) {
	var served atomic.Int64
	addr := engine(t, func(_ int, c net.Conn) {
		served.Add(1)
		var b []byte
		one := make([]byte, 1)
		for !bytes.HasSuffix(b, []byte("\r\n\r\n")) {
			if _, err := c.Read(one); err != nil {
				return
			}
			b = append(b, one[0])
		}
		io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno") // then closes, with the body unread
	})
	c := client(t, nil)
	var x Exchange
	status, body, err := fetch(c, &x, addr, strings.Repeat("a", 32<<20))
	if err != nil || status != 413 || body != "no" {
		t.Fatalf("got %d %q, %v", status, body, err)
	}
	if served.Load() != 1 || c.Idle() != 0 {
		t.Errorf("%d connections, %d kept; the request must not be repeated nor the connection kept", served.Load(), c.Idle())
	}
}

func TestNoRetryAfterAByte(t *testing.T) {
	addr := engine(t, func(n int, c net.Conn) {
		readRequest(c)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		if _, _, ok := readRequest(c); ok {
			io.WriteString(c, "H")
		}
	})
	cl := client(t, nil)
	var x Exchange
	fetch(cl, &x, addr, "1")
	if _, _, err := fetch(cl, &x, addr, "2"); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	if s := cl.Stats(); s.Retries != 0 || s.Dials != 1 {
		t.Fatalf("%+v", s)
	}
}

func TestTimeouts(t *testing.T) {
	addr := engine(t, func(n int, c net.Conn) {
		_, body, _ := readRequest(c)
		if body == "idle" {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
		} else if body == "head" {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
		}
		io.Copy(io.Discard, c)
	})
	cl := client(t, func(c *Config) { c.FirstByteTimeout, c.IdleTimeout = 60*time.Millisecond, 30*time.Millisecond })
	for body, want := range map[string]error{"idle": ErrIdle, "head": ErrFirstByte, "": ErrFirstByte} {
		var x Exchange
		if _, _, err := fetch(cl, &x, addr, body); !errors.Is(err, want) {
			t.Errorf("%q: %v", body, err)
		}
	}
	var x Exchange
	if _, _, err := fetch(cl, &x, "127.0.0.1:1", ""); !errors.Is(err, ErrConnect) {
		t.Error(err)
	}
	if _, _, err := fetch(cl, &x, "169.254.169.254:80", ""); !errors.Is(err, ErrConnect) {
		t.Error(err)
	}
}

func TestCancelClosesOnlyItsOwn(t *testing.T) {
	begun, gone := make(chan struct{}), make(chan struct{})
	addr := engine(t, func(_ int, c net.Conn) {
		for {
			_, body, ok := readRequest(c)
			if !ok {
				return
			}
			if body == "wait" {
				begun <- struct{}{}
				io.Copy(io.Discard, c)
				close(gone)
				return
			}
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	cl := client(t, nil)
	var x Exchange
	go func() { <-begun; x.Cancel() }()
	if _, _, err := fetch(cl, &x, addr, "wait"); !errors.Is(err, ErrCancelled) {
		t.Fatal(err)
	}
	<-gone
	if _, _, err := fetch(cl, &x, addr, "a"); err != nil {
		t.Fatal(err)
	}
	x.Cancel() // after Finish: the pooled connection is not ours any more
	var y Exchange
	if _, _, err := fetch(cl, &y, addr, "b"); err != nil || !y.Reused() {
		t.Fatal(err, y.Reused())
	}
	x.Begin()
	x.Cancel()
	if err := cl.Do(&x, &Request{Addr: addr, Method: "GET", Path: "/"}); !errors.Is(err, ErrCancelled) {
		t.Fatal(err)
	}
	cl.Finish(&x)
}

func TestIdleConnectionsExpire(t *testing.T) {
	closed := make(chan struct{})
	addr := engine(t, func(_ int, c net.Conn) {
		readRequest(c)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		io.Copy(io.Discard, c)
		close(closed)
	})
	cl := client(t, func(c *Config) { c.KeepIdle = 30 * time.Millisecond })
	var x Exchange
	fetch(cl, &x, addr, "")
	<-closed
	if cl.Idle() != 0 {
		t.Fatal("still pooled")
	}
}

func FuzzHead(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nA: b\r\n\r\nhello"))
	f.Add([]byte("HTTP/1.0 404 \r\nTransfer-Encoding: chunked\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		end := headEnd(b)
		if end == 0 {
			return
		}
		var h head
		if h.parse(b[:end], false) != nil {
			return
		}
		for _, hd := range h.headers {
			if bytes.ContainsAny(b[hd.value.from:hd.value.to], "\r\n\x00") || bytes.ContainsAny(b[hd.name.from:hd.name.to], ": \r\n\t") {
				t.Fatalf("%q", b[:end])
			}
		}
	})
}

func FuzzChunks(f *testing.F) {
	f.Add([]byte("3\r\nhel\r\n2;x\r\nlo\r\n0\r\nT: 1\r\n\r\nrest"), uint8(2))
	f.Fuzz(func(t *testing.T, src []byte, size uint8) {
		if len(src) > 4000 {
			return
		}
		var whole chunks
		all := bytes.Clone(src)
		n, used, err := whole.decode(all)
		var cut chunks
		var got []byte
		total, step := 0, max(1, int(size))
		var cutErr error
		for at := 0; at < len(src) && cutErr == nil && cut.state != chunkEnd; at += step {
			piece := bytes.Clone(src[at:min(at+step, len(src))])
			var m, u int
			m, u, cutErr = cut.decode(piece)
			got = append(got, piece[:m]...)
			total += u
		}
		if !bytes.Equal(got, all[:n]) || (err == nil) != (cutErr == nil) || total != used {
			t.Fatalf("%q %q, %v %v, %d %d", got, all[:n], err, cutErr, total, used)
		}
	})
}
