package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"strings"
	"testing"
	"time"
)

const (
	requestLine = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
	chunkedLine = "Transfer-Encoding: chunked\r\n"
)

var (
	lengthLine = fmt.Sprintf("Content-Length: %d\r\n", len(chat))
	chatChunks = chunk(chat) + "0\r\n\r\n"
	chatSize   = fmt.Sprintf("%x", len(chat))
)

// headerShapes are requests whose headers two readers could understand differently.
func headerShapes() map[string]string {
	with := func(headers, body string) string { return requestLine + headers + "\r\n" + body }
	return map[string]string{
		"length, then coding":       with(lengthLine+chunkedLine, chatChunks),
		"coding, then length":       with(chunkedLine+lengthLine, chatChunks),
		"coding, length 0":          with(chunkedLine+"Content-Length: 0\r\n", chatChunks),
		"two equal lengths":         with(lengthLine+lengthLine, chat),
		"two lengths":               with(lengthLine+"Content-Length: 3\r\n", chat),
		"a list of lengths":         with(fmt.Sprintf("Content-Length: %d, %d\r\n", len(chat), len(chat)), chat),
		"length with a plus":        with(fmt.Sprintf("Content-Length: +%d\r\n", len(chat)), chat),
		"negative length":           with("Content-Length: -1\r\n", chat),
		"hexadecimal length":        with("Content-Length: 0x"+chatSize+"\r\n", chat),
		"length with a space":       with("Content-Length: 5 9\r\n", chat),
		"empty length":              with("Content-Length:\r\n", chat),
		"length beyond 64 bits":     with("Content-Length: 18446744073709551675\r\n", chat),
		"folded header":             with("X-A: a\r\n b\r\n"+lengthLine, chat),
		"folded coding":             with("Transfer-Encoding:\r\n chunked\r\n", chatChunks),
		"folded first header":       strings.Replace(with(lengthLine, chat), "Host:", " Host:", 1),
		"bare LF after a header":    with("X-A: b\nX-B: c\r\n"+lengthLine, chat),
		"bare LF everywhere":        strings.ReplaceAll(with(lengthLine, ""), "\r\n", "\n") + chat,
		"bare CR":                   with("X-A: b\rX-B: c\r\n"+lengthLine, chat),
		"NUL in a value":            with("X-A: b\x00c\r\n"+lengthLine, chat),
		"NUL in a name":             with("X-\x00A: b\r\n"+lengthLine, chat),
		"control in a value":        with("X-A: b\x01c\r\n"+lengthLine, chat),
		"space before the colon":    with(strings.Replace(lengthLine, ":", " :", 1), chat),
		"space before coding colon": with(lengthLine+"Transfer-Encoding : chunked\r\n", chatChunks),
		"tab before the colon":      with("X-A\t: b\r\n"+lengthLine, chat),
		"space in a name":           with("X A: b\r\n"+lengthLine, chat),
		"no colon":                  with("XA\r\n"+lengthLine, chat),
		"no name":                   with(": b\r\n"+lengthLine, chat),
	}
}

// bodyShapes are such requests whose coding, chunks or request line are odd.
func bodyShapes() map[string]string {
	with := func(headers, body string) string { return requestLine + headers + "\r\n" + body }
	chunked := func(body string) string { return with(chunkedLine, body) }
	return map[string]string{
		"unknown coding":            with("Transfer-Encoding: xchunked\r\n", chatChunks),
		"coding list":               with("Transfer-Encoding: gzip, chunked\r\n", chatChunks),
		"chunked twice in a list":   with("Transfer-Encoding: chunked, chunked\r\n", chatChunks),
		"two codings":               with(chunkedLine+chunkedLine, chatChunks),
		"chunked and identity":      with(chunkedLine+"Transfer-Encoding: identity\r\n", chatChunks),
		"identity":                  with("Transfer-Encoding: identity\r\n"+lengthLine, chat),
		"coding after VT":           with("Transfer-Encoding: \x0bchunked\r\n", chatChunks),
		"quoted coding":             with("Transfer-Encoding: \"chunked\"\r\n", chatChunks),
		"coding in HTTP/1.0":        strings.Replace(chunked(chatChunks), "1.1", "1.0", 1),
		"chunk size with 0x":        chunked("0x" + chatSize + "\r\n" + chat + "\r\n0\r\n\r\n"),
		"chunk size with a plus":    chunked("+" + chatSize + "\r\n" + chat + "\r\n0\r\n\r\n"),
		"chunk size with a minus":   chunked("-" + chatSize + "\r\n" + chat + "\r\n0\r\n\r\n"),
		"chunk size after a space":  chunked(" " + chatSize + "\r\n" + chat + "\r\n0\r\n\r\n"),
		"chunk size beyond 63 bits": chunked("10000000000000" + chatSize + "\r\n" + chat + "\r\n0\r\n\r\n"),
		"chunk lines with LF":       chunked(chatSize + "\n" + chat + "\n0\n\n"),
		"chunk extension with LF":   chunked(chatSize + ";a\n" + chat + "\r\n0\r\n\r\n"),
		"chunk extension with CR":   chunked(chatSize + ";a\rb\r\n" + chat + "\r\n0\r\n\r\n"),
		"chunk without its end":     chunked(chatSize + "\r\n" + chat + "XX0\r\n\r\n"),
		"length in a trailer":       chunked(chunk(chat) + "0\r\nContent-Length: 1\r\n\r\n"),
		"absolute address":          strings.Replace(with(lengthLine, chat), "/v1/", "http://x/v1/", 1),
		"absolute and another host": strings.Replace(with(lengthLine, chat), "/v1/", "http://evil/v1/", 1),
		"authority":                 strings.Replace(with(lengthLine, chat), "/v1/chat/completions", "evil:80", 1),
		"CONNECT":                   "CONNECT evil:80 HTTP/1.1\r\nHost: x\r\n\r\n",
		"asterisk":                  "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
		"no host":                   strings.Replace(with(lengthLine, chat), "Host: x\r\n", "", 1),
		"two hosts":                 with("Host: y\r\n"+lengthLine, chat),
		"HTTP/1.2":                  strings.Replace(with(lengthLine, chat), "1.1", "1.2", 1),
		"HTTP/2.0":                  strings.Replace(with(lengthLine, chat), "1.1", "2.0", 1),
		"HTTP/0.9":                  "GET /livez\r\n\r\n",
		"preface of HTTP/2":         "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"two spaces":                strings.Replace(with(lengthLine, chat), " /", "  /", 1),
		"tabs in the request line":  strings.Replace(with(lengthLine, chat), " /", "\t/", 1),
		"space in the path":         strings.Replace(with(lengthLine, chat), "chat/", "chat /", 1),
		"control in the path":       strings.Replace(with(lengthLine, chat), "chat/", "chat\x01/", 1),
	}
}

func TestSmugglingShapesAreRefused(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, nil, e)
	hidden := post("/v1/chat/completions", chat)
	all := headerShapes()
	maps.Copy(all, bodyShapes())
	for name, request := range all {
		c := f.raw(request + hidden)
		text, _ := io.ReadAll(c) // a reset is as good an end
		c.Close()
		answers := strings.Split(string(text), "HTTP/1.1 ")
		if len(answers) > 2 || len(answers) == 2 && answers[1][0] != '4' && answers[1][:3] != "505" {
			t.Errorf("%s: %.400q", name, text)
		}
		if n := e.served.Swap(0); n != 0 {
			t.Errorf("%s: an engine was asked %d times", name, n)
		}
	}
}

// What looks odd and is plain to every reader passes.
func TestOddButPlainRequestsPass(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, nil, e)
	line, length, size := requestLine, lengthLine, chatSize
	for name, request := range map[string]string{
		"chunked":           line + "Transfer-Encoding: chunked\r\n\r\n" + chunk(chat) + "0\r\n\r\n",
		"chunked, any case": line + "transfer-encoding:  cHuNked \r\n\r\n" + chunk(chat) + "0\r\n\r\n",
		"chunk extension":   line + "Transfer-Encoding: chunked\r\n\r\n" + size + ";a=b\r\n" + chat + "\r\n0\r\n\r\n",
		"trailer":           line + "Transfer-Encoding: chunked\r\n\r\n" + chunk(chat) + "0\r\nX-T: 1\r\n\r\n",
		"underscore":        line + "Content_Length: 4\r\n" + length + "\r\n" + chat,
		"upgrade, ignored":  line + "Connection: Upgrade\r\nUpgrade: websocket\r\n" + length + "\r\n" + chat,
		"h2c, ignored":      line + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n" + length + "\r\n" + chat,
		"CRLF in front":     "\r\n" + line + length + "\r\n" + chat,
	} {
		c := f.raw(request)
		if a := readAnswer(bufio.NewReader(c)); a.status != 200 {
			t.Errorf("%s: %+v", name, a)
		}
		c.Close()
		if head, _ := e.last(); strings.Contains(strings.ToLower(head), "upgrade") || strings.Contains(head, "Transfer-Encoding") {
			t.Errorf("%s: %q", name, head)
		}
	}
	f.settled(8)
	var b bytes.Buffer
	f.srv.Metrics().WritePrometheus(&b)
	if !strings.Contains(b.String(), `outcome="ok"} 8`) {
		t.Fatal(b.String())
	}
}

func TestCase_SEC_01_control_characters_in_headers(t *testing.T) {
	answer := ""
	e := startEngine(t, func(a *asked) { a.write(answer) })
	f := open(t, nil, nil, e)
	for _, bad := range []string{"a\rb", "a\x00b", "a\x1bb", "a\nX-User: admin"} { // from a client
		for _, name := range []string{"X-Request-Id", "Traceparent", "Tracestate", "Authorization", "X-Other"} {
			a := f.do("/v1/chat/completions", chat, name+": "+bad)
			if a.status != 400 || a.header.Get("X-User") != "" {
				t.Errorf("%s: %q: %+v", name, bad, a)
			}
		}
	}
	if n := e.served.Load(); n != 0 {
		t.Fatalf("the engine was asked %d times", n)
	}
	for _, body := range []string{`{"model":"m\r\nX-User: admin"}`, `{"model":"m\u0000"}`} { // a model's name
		if a := f.do("/v1/chat/completions", body); a.status != 404 || a.header.Get("X-User") != "" {
			t.Errorf("%s: %+v", body, a)
		}
	}
	answer = plainReply
	f.srv.deps.UpstreamAuth = func(string) string { return "Bearer x\r\nX-User: admin" } // from a setting
	f.do("/v1/chat/completions", chat)
	if head, _ := e.last(); strings.Contains(head, "X-User") || strings.Contains(head, "Bearer") {
		t.Errorf("the engine got %q", head)
	}
	for _, bad := range []string{"a\rX-User: admin", "a\x00b", "a\nX-User: admin\r"} { // from an engine
		answer = fmt.Sprintf("HTTP/1.1 200 OK\r\nX-Model: %s\r\nContent-Length: %d\r\n\r\n%s", bad, len(jsonAnswer), jsonAnswer)
		a := f.do("/v1/chat/completions", chat)
		if a.status != 502 || a.code() != "upstream_malformed" || a.header.Get("X-User") != "" || a.header.Get("X-Model") != "" {
			t.Errorf("%q: %+v", bad, a)
		}
	}
}

// A client that sends a byte now and then is cut when ReadTimeoutMs is over, however often a byte comes.
func TestTrickledRequestsAreCut(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, func(c *Config) { c.ReadTimeoutMs = 300 }, e)
	for name, begin := range map[string]string{
		"header": "POST /v1/chat/completions HTTP/1.1\r\nX-A: ",
		"body":   "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50000\r\n\r\n",
		"chunks": "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		c := f.raw(begin)
		cut := make(chan answer, 1)
		go func() { cut <- readAnswer(bufio.NewReader(c)) }()
		tick := time.NewTicker(20 * time.Millisecond)
		piece := map[string]string{"header": "a", "body": " ", "chunks": "1\r\n \r\n"}[name]
		for open := true; open; { // ends when the answer is there; the connection's own deadline is 10 s
			select {
			case a := <-cut:
				if a.err == nil && a.status != 408 && a.status != 400 {
					t.Errorf("%s: %+v", name, a)
				}
				open = false
			case <-tick.C:
				io.WriteString(c, piece) // fails once the connection is cut
			}
		}
		tick.Stop()
		c.Close()
	}
	if e.served.Load() != 0 {
		t.Fatal("an engine was asked")
	}
}

// Connections beyond the limit are answered and closed; those within it go on.
func TestConnectionLimit(t *testing.T) {
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, func(c *Config) { c.MaxConns = 2 }, e)
	var kept []net.Conn
	for range 2 {
		c := f.raw(post("/v1/chat/completions", chat))
		if a := readAnswer(bufio.NewReader(c)); a.status != 200 {
			t.Fatalf("%+v", a)
		}
		kept = append(kept, c)
	}
	for range 3 {
		c := f.raw("")
		text, _ := io.ReadAll(c)
		if len(text) > 0 && !strings.HasPrefix(string(text), "HTTP/1.1 503 ") {
			t.Fatalf("%q", text)
		}
	}
	for _, c := range kept {
		io.WriteString(c, post("/v1/chat/completions", chat))
		if a := readAnswer(bufio.NewReader(c)); a.status != 200 {
			t.Fatalf("%+v", a)
		}
	}
	kept[0].Close()
	until(t, "a place is free", func() bool {
		c, err := net.Dial("tcp", f.addr)
		if err != nil {
			return false
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(c, post("/v1/chat/completions", chat))
		return readAnswer(bufio.NewReader(c)).status == 200
	})
}
