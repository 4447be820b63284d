package gateway

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"sluice/slo"
)

// largeBytes is the size of large answers: as in the field in a long run, a tenth of it in a short one.
func largeBytes() int {
	if testing.Short() {
		return 9 << 20
	}
	return 90 << 20
}

// writeLarge writes an embeddings answer of about size bytes and returns its hash.
func writeLarge(a *asked, size int, chunked bool) []byte {
	sum := sha256.New()
	row := `{"object":"embedding","index":0,"embedding":[` + strings.Repeat("-0.0123456789,", 4095) + "1]}"
	rows := size / len(row)
	const head, tail = `{"object":"list","data":[`, `],"usage":{"prompt_tokens":2048,"total_tokens":2048}}`
	framing := "Transfer-Encoding: chunked"
	if !chunked {
		framing = fmt.Sprintf("Content-Length: %d", len(head)+rows*len(row)+rows-1+len(tail))
	}
	a.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + framing + "\r\n\r\n")
	write := func(s string) {
		io.WriteString(sum, s)
		if chunked {
			s = chunk(s)
		}
		a.write(s)
	}
	write(head)
	for i := range rows {
		if i > 0 {
			write(",")
		}
		write(row)
	}
	write(tail)
	if chunked {
		a.write("0\r\n\r\n")
	}
	return sum.Sum(nil)
}

func TestCase_GW_25_large_answers(t *testing.T) {
	for _, chunked := range []bool{false, true} {
		sums := make(chan []byte, 4)
		e := startEngine(t, func(a *asked) { sums <- writeLarge(a, largeBytes(), chunked) })
		f := open(t, nil, nil, e)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				res, err := http.Post("http://"+f.addr+"/v1/embeddings", "application/json", strings.NewReader(`{"model":"m","input":["a"]}`))
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				var sum hash.Hash = sha256.New()
				n, err := io.Copy(sum, res.Body)
				if want := <-sums; err != nil || !bytes.Equal(sum.Sum(nil), want) {
					t.Errorf("chunked=%v: %d bytes, %v, another hash", chunked, n, err)
				}
			})
		}
		all.Wait()
		http.DefaultClient.CloseIdleConnections()
		for _, s := range f.settled(4) {
			if s.Outcome != slo.OK || s.InputTokens != 2048 {
				t.Errorf("%+v", s)
			}
		}
	}
}

func TestCase_GW_26_model_behind_the_file(t *testing.T) {
	size := 3 << 20
	if !testing.Short() {
		size = 30 << 20
	}
	const boundary = "a b'c"
	file := "--" + boundary + "\r\nContent-Disposition: form-data; name=\"file\"; filename=\"ré sumé.wav\"\r\nContent-Type: audio/wav\r\n\r\n" +
		strings.Repeat("RIFF\r\n--\x00", size/9) + "\r\n"
	model := "--" + boundary + "\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n"
	end := "--" + boundary + "--\r\n"
	kind := `Content-Type: multipart/form-data; boundary="` + boundary + `"`
	e := startEngine(t, func(a *asked) {
		replyJSON(a, 200, `{"text":"hello","usage":{"type":"tokens","input_tokens":14,"output_tokens":2}}`)
	})
	f := open(t, nil, func(c *Config) { c.MaxBodyBytes = size + 1<<20 }, e)
	for name, body := range map[string]string{"file first": file + model + end, "model first": model + file + end} {
		for _, path := range []string{"/v1/audio/transcriptions", "/v1/audio/translations"} {
			if a := f.do(path, body, kind); a.status != 200 {
				t.Fatalf("%s: %d %s", name, a.status, a.body)
			}
			head, got := e.last()
			if got != strings.Replace(body, "\r\n\r\nm\r\n", "\r\n\r\nreal\r\n", 1) {
				t.Errorf("%s: the engine got another body of %d bytes, sent %d", name, len(got), len(body))
			}
			if !strings.Contains(head, kind+"\r\n") || !strings.HasPrefix(head, "POST "+path+" ") {
				t.Errorf("%s: %q", name, head)
			}
		}
	}
	for _, s := range f.settled(4) {
		if s.InputTokens != 14 || s.OutputTokens != 2 || s.Outcome != slo.OK {
			t.Errorf("%+v", s)
		}
	}
	for name, c := range map[string]struct {
		body, kind string
		status     int
		code       string
	}{
		"beyond the limit": {file + strings.Repeat("x", 1<<20) + model + end, kind, 413, "body_too_large"},
		"no model":         {"--" + boundary + "\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\r\n" + end, kind, 400, "missing_model"},
		"two models":       {model + model + end, kind, 400, "invalid_body"},
		"json":             {chat, "Content-Type: application/json", 400, "invalid_body"},
	} {
		c1 := f.raw("")
		go io.WriteString(c1, post("/v1/audio/transcriptions", c.body, c.kind)) // what is too large is not read to its end
		if a := readAnswer(bufio.NewReader(c1)); a.status != c.status || a.code() != c.code {
			t.Errorf("%s: %d %s %v", name, a.status, a.body, a.err)
		}
	}
}

func TestCase_GW_29_head(t *testing.T) {
	f := open(t, nil, nil, startEngine(t, hold))
	c := f.raw("HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
	br := bufio.NewReader(c)
	head, err := http.ReadResponse(br, &http.Request{Method: "HEAD"})
	if err != nil || head.StatusCode != 200 {
		t.Fatal(head, err)
	}
	a := readAnswer(br)
	if a.status != 200 || !strings.HasPrefix(a.body, `{"object":"list"`) {
		t.Fatalf("%d %q", a.status, a.body)
	}
	if n := head.Header.Get("Content-Length"); n != fmt.Sprint(len(a.body)) {
		t.Errorf("HEAD says %s bytes, GET brought %d", n, len(a.body))
	}
}

// An image of 20 MB as a data URL is a body of 27 MB.
func TestImageOf20MB(t *testing.T) {
	size := 27 << 20
	if testing.Short() {
		size = 2 << 20
	}
	e := startEngine(t, func(a *asked) { replyJSON(a, 200, jsonAnswer) })
	f := open(t, nil, nil, e)
	body := `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
		strings.Repeat("iVBORw0KGgo/", size/12) + `"}}]}],"model":"m"}`
	if a := f.do("/v1/chat/completions", body); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if _, got := e.last(); got != strings.TrimSuffix(body, `"m"}`)+`"real"}` {
		t.Errorf("%d bytes, sent %d", len(got), len(body))
	}
}
