package wire

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// feed passes src through a Stream in the given pieces, as a relay does with a buffer of the given size.
func feed(s *Stream, src []byte, size int, piece func(at int) int) []byte {
	buf := make([]byte, size)
	var out []byte
	kept := 0
	for at := 0; at < len(src); {
		n := min(max(1, piece(at)), len(src)-at, size-kept)
		copy(buf[kept:], src[at:at+n])
		at += n
		total := kept + n
		send, keep := s.Feed(buf[:total], kept, total == size || at == len(src))
		out = append(out, buf[:send]...)
		copy(buf, buf[send:send+keep])
		kept = keep
	}
	return out
}

const (
	chunkA   = `{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}`
	chunkB   = `{"id":"c","choices":[{"index":0,"delta":{"content":"你好 🌍"}}],"usage":null}`
	chunkC   = `{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	chunkUse = `{"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":50,"total_tokens":60}}`
)

func events(nl string, space string, datas ...string) string {
	var b strings.Builder
	for _, d := range datas {
		b.WriteString("data:" + space + d + nl + nl)
	}
	return b.String()
}

// eachSplit calls f for one cut at every offset, and for pieces of each small size.
func eachSplit(n int, f func(name string, piece func(int) int)) {
	for cut := 1; cut < n; cut++ {
		f(fmt.Sprintf("cut at %d", cut), func(at int) int {
			if at < cut {
				return cut - at
			}
			return n
		})
	}
	for size := 1; size < 8; size++ {
		f(fmt.Sprintf("pieces of %d", size), func(int) int { return size })
	}
}

func TestCase_GW_01_cut_characters(t *testing.T) {
	src := []byte(events("\n", " ", chunkA, chunkB, chunkC, chunkUse, "[DONE]"))
	eachSplit(len(src), func(name string, piece func(int) int) {
		var s Stream
		if got := feed(&s, src, 512, piece); !bytes.Equal(got, src) {
			t.Fatalf("%s: %q", name, got)
		}
		if s.Usage != (Usage{10, 50, true}) || s.Content != 1 || !s.Done || !s.Finish || s.Torn {
			t.Fatalf("%s: %+v", name, s)
		}
	})
}

func TestCase_GW_02_line_ends(t *testing.T) {
	half := len(`{"id":"c",`)
	for name, text := range map[string]string{
		"lf":    events("\n", " ", chunkA, chunkB, chunkC, chunkUse, "[DONE]"),
		"crlf":  events("\r\n", " ", chunkA, chunkB, chunkC, chunkUse, "[DONE]"),
		"cr":    events("\r", " ", chunkA, chunkB, chunkC, chunkUse, "[DONE]"),
		"tight": events("\n", "", chunkA, chunkB, chunkC, chunkUse, "[DONE]"),
		"lines": events("\n", " ", chunkA, chunkB[:half]+"\ndata:"+chunkB[half:], chunkC, chunkUse, "[DONE]"),
	} {
		src := []byte(text)
		for _, hide := range []bool{false, true} {
			want := text
			if hide {
				at := strings.Index(text, chunkUse)
				from := strings.LastIndex(text[:at], "data:")
				to := at + strings.Index(text[at:], "data:")
				want = text[:from] + text[to:]
			}
			eachSplit(len(src), func(split string, piece func(int) int) {
				s := Stream{HideUsage: hide}
				if got := feed(&s, src, 600, piece); string(got) != want {
					t.Fatalf("%s hide=%v %s:\n got %q\nwant %q", name, hide, split, got, want)
				}
				if s.Usage != (Usage{10, 50, true}) || s.Content != 1 || s.Events != 5 || !s.Done {
					t.Fatalf("%s %s: %+v", name, split, s)
				}
			})
		}
	}
}

func TestCase_GW_03_unicode_line_separators(t *testing.T) {
	src := []byte(events("\n", " ", "{\"choices\":[{\"delta\":{\"content\":\"a\u0085b\u2028c\u2029d\"}}]}", "[DONE]"))
	eachSplit(len(src), func(name string, piece func(int) int) {
		var s Stream
		if got := feed(&s, src, 512, piece); !bytes.Equal(got, src) || s.Events != 2 || s.Content != 1 {
			t.Fatalf("%s: %q %+v", name, got, s)
		}
	})
}

// dispatch is the simple reader of the case: it fires on every blank line.
func dispatch(t *testing.T, b []byte) (datas []string) {
	t.Helper()
	var data []string
	for line := range strings.SplitSeq(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(b)), "\n") {
		if line == "" {
			if len(data) == 0 && len(datas) > 0 {
				continue // the end of the text
			}
			datas = append(datas, strings.Join(data, "\n"))
			data = nil
		} else if v, ok := strings.CutPrefix(line, "data:"); ok {
			data = append(data, strings.TrimPrefix(v, " "))
		}
	}
	return datas
}

func TestCase_GW_05_no_event_without_data(t *testing.T) {
	for _, nl := range []string{"\n", "\r\n", "\r"} {
		src := []byte("retry: 3000" + nl + nl + ": hello" + nl + nl + "event: odd" + nl + nl + "id: 1" + nl + events(nl, " ", chunkB, "[DONE]"))
		eachSplit(len(src), func(name string, piece func(int) int) {
			var s Stream
			got := feed(&s, src, 512, piece)
			if d := dispatch(t, got); !slices.Equal(d, []string{chunkB, "[DONE]"}) {
				t.Fatalf("%q %s: %q", nl, name, got)
			}
			if !bytes.Contains(got, []byte("retry: 3000")) || !bytes.Contains(got, []byte(": hello")) {
				t.Fatalf("%q %s: %q", nl, name, got)
			}
		})
	}
}

func TestCase_GW_06_usage_chunks(t *testing.T) {
	for _, use := range []string{
		chunkUse, `{"choices":null,"usage":{"prompt_tokens":10,"completion_tokens":50}}`,
		`{"usage":{"completion_tokens":50,"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":3}}}`,
	} {
		ev := ReadEvent(nil, []byte(use))
		if !ev.UsageOnly() || ev.Usage != (Usage{10, 50, true}) {
			t.Errorf("%s: %+v", use, ev)
		}
	}
}

func TestCase_GW_10_error_shapes(t *testing.T) {
	for _, c := range [][2]string{
		{"error", `{"message":"engine died"}`}, {"", `{"error":"engine died"}`},
		{"", `{"object":"error","message":"engine died","code":500}`}, {"", `{"error":{"message":"quota"}}`},
	} {
		if ev := ReadEvent([]byte(c[0]), []byte(c[1])); !ev.Error {
			t.Errorf("%q: %+v", c, ev)
		}
	}
	if ev := ReadEvent(nil, []byte(`{"error":null,"choices":[]}`)); ev.Error {
		t.Error("null is no error")
	}
}

func TestCase_GW_11_long_events(t *testing.T) {
	for _, size := range []int{70 << 10, 1100 << 10, 4 << 20} {
		long := `{"choices":[{"delta":{"content":"` + strings.Repeat("A", size) + `"}}]}`
		src := []byte(events("\n", " ", long, chunkC, "[DONE]"))
		var s Stream
		s.HideUsage = true
		if got := feed(&s, src, 16<<10, func(int) int { return 9000 }); !bytes.Equal(got, src) {
			t.Fatalf("%d differs", size)
		}
		if s.Events != 3 || s.Content != 1 || !s.Finish || !s.Done || s.Torn {
			t.Fatalf("%d: %+v", size, s)
		}
	}
}

func TestCase_GW_12_event_that_never_ends(t *testing.T) {
	for _, piece := range []string{"data: " + strings.Repeat("a", 8<<10), "data: " + strings.Repeat("a", 1000) + "\n"} {
		var f Framer
		for range 4000 {
			f.Next([]byte(piece))
		}
		if n := cap(f.line) + cap(f.data); n > 4*MaxEventBytes {
			t.Fatalf("%d bytes kept", n)
		}
	}
}

func TestErrorBodies(t *testing.T) {
	got := string(AppendErrorEvent(nil, Error{Message: "a\"b\n<\x1b\u2028\xff", Type: TypeServer, Code: "upstream_lost"}))
	want := "data: " + `{"error":{"message":"a\"b\n\u003c\u001b\u2028\ufffd","type":"server_error","param":null,"code":"upstream_lost"}}` + "\n\n"
	if got != want {
		t.Fatal(got)
	}
}

func TestUsageScanner(t *testing.T) {
	text := `{"id":"x","choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":9}\\","usage":{"prompt_tokens":8}}}],"u":"usage",` +
		`"usage":{"prompt_tokens":12,"details":{"a":[1,"}"]},"completion_tokens":34},"x":{"usage":{"prompt_tokens":1}},"y":"usage"}`
	for size := 1; size <= len(text); size++ {
		var s UsageScanner
		for at := 0; at < len(text); at += size {
			s.Feed([]byte(text[at:min(at+size, len(text))]))
		}
		if s.Usage() != (Usage{12, 34, true}) {
			t.Fatalf("pieces of %d: %+v", size, s.Usage())
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte(events("\r\n", " ", chunkA, chunkB, chunkUse, "[DONE]")), uint8(3), true)
	f.Add([]byte("retry: 1\n\n:x\r\revent: e\r\n\r\ndata: "+chunkUse+"\r\rdata\n\n"), uint8(1), false)
	f.Fuzz(func(t *testing.T, src []byte, size uint8, hide bool) {
		if len(src) > 2000 {
			return
		}
		whole := Stream{HideUsage: hide}
		want := feed(&whole, src, 4096, func(int) int { return len(src) })
		cut := Stream{HideUsage: hide}
		got := feed(&cut, src, 4096, func(int) int { return int(size) })
		if !bytes.Equal(got, want) {
			t.Fatalf("cut %d:\n got %q\nwant %q", size, got, want)
		}
		if cut.Usage != whole.Usage || cut.Events != whole.Events || cut.Content != whole.Content || cut.Done != whole.Done || cut.Error != whole.Error {
			t.Fatalf("%+v\n%+v", cut, whole)
		}
	})
}
