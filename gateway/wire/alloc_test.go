package wire

import (
	"strings"
	"testing"
)

func allocFree(t *testing.T, name string, f func()) {
	t.Helper()
	if raceOn {
		t.Skip("the race detector allocates")
	}
	f()
	if n := testing.AllocsPerRun(200, f); n != 0 {
		t.Errorf("%s: %v allocations", name, n)
	}
}

func longBody() []byte {
	return []byte(`{"model":"llama-70b","stream":true,"messages":[{"role":"user","content":"` +
		strings.Repeat("The quick brown fox jumps over the lazy dog. ", 3000) + `"}],"max_tokens":100}`)
}

func turnsBody() []byte {
	return []byte(`{"model":"llama-70b","stream":true,"messages":[` +
		strings.Repeat(`{"role":"user","content":"a turn of about seventy bytes, I should think"},`, 400) + `{}]}`)
}

func TestAllocations(t *testing.T) {
	body := turnsBody()
	var h Head
	var parts [][]byte
	var scratch []byte
	allocFree(t, "scan and splice", func() {
		if err := h.Scan(body); err != nil {
			t.Fatal(err)
		}
		parts, scratch = h.AppendEdits(parts[:0], scratch[:0], body, Edits{Model: "x", IncludeUsage: true})
	})
	src := []byte(events("\n", " ", chunkA, chunkB, chunkC, chunkUse, "[DONE]"))
	buf := make([]byte, len(src))
	var s Stream
	allocFree(t, "stream", func() {
		s.Reset()
		copy(buf, src)
		send, keep := s.Feed(buf[:100], 0, false)
		copy(buf, buf[send:send+keep])
		s.Feed(buf[:keep], keep, true)
	})
	var u UsageScanner
	allocFree(t, "usage", func() {
		u.Reset()
		u.Feed([]byte(chunkUse))
	})
}

func BenchmarkHeadLong(b *testing.B)  { benchHead(b, longBody()) }
func BenchmarkHeadTurns(b *testing.B) { benchHead(b, turnsBody()) }

func benchHead(b *testing.B, body []byte) {
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	var h Head
	for b.Loop() {
		if h.Scan(body) != nil {
			b.Fatal()
		}
	}
}

func BenchmarkStreamChunk(b *testing.B) {
	src := []byte(events("\n", " ", chunkB))
	buf := make([]byte, len(src))
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	s := Stream{HideUsage: true}
	for b.Loop() {
		copy(buf, src)
		s.Feed(buf, 0, false)
	}
}

func BenchmarkUsageScan(b *testing.B) {
	body := []byte(`{"data":[{"embedding":[` + strings.Repeat("0.0123456,", 4000) + `1]}],"usage":{"prompt_tokens":3}}`)
	b.SetBytes(int64(len(body)))
	var u UsageScanner
	for b.Loop() {
		u.Reset()
		u.Feed(body)
	}
}
