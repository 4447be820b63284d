package engine

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func cpuSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// BenchmarkStreams runs 64 streams at a time over sockets and reports CPU
// microseconds for each chunk, the reader's read included: 31 on two busy cores.
// With the reader in another process the engine's own share was 21 to 24, three
// runs of 12,800 chunks each, start included; one bare loopback write and read of
// the same size took 16 on that machine. Above one write a chunk there is
// little to win.
func BenchmarkStreams(b *testing.B) {
	cfg := fast()
	cfg.Speed = 5
	s := startHealthy(b, cfg)
	addr := strings.TrimPrefix(s.url, "http://")
	body := `{"model":"sim","messages":[{"role":"user","content":"hello"}],"max_tokens":100,"stream":true}`
	head := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	before, start, rounds := cpuSeconds(b), time.Now(), 0
	for b.Loop() {
		rounds++
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					b.Error(err)
					return
				}
				defer c.Close()
				_, _ = io.WriteString(c, head)
				buf := make([]byte, 8192)
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
				}
			})
		}
		wg.Wait()
	}
	chunks := float64(rounds * 64 * 100)
	b.ReportMetric((cpuSeconds(b)-before)*1e6/chunks, "cpu-us/chunk")
	b.ReportMetric(chunks/time.Since(start).Seconds(), "chunks/s")
}

func BenchmarkEvent(b *testing.B) {
	a := answer{job: job{chat: true, choices: 1, finish: "stop"}, id: "chatcmpl-1", model: "sim"}
	var buf []byte
	n := 1
	b.ReportAllocs()
	for b.Loop() {
		buf = a.events(buf[:0], n, n+1)
		n++
	}
}
