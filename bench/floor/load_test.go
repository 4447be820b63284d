package floor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	streams     = 4   // always open
	streamWords = 400 // of an answer: some 0.8 s at the floor's speed
	ownWords    = 4   // enough of a text to know its engine by
)

// load keeps streams open against the data port until it is stopped.
type load struct {
	t    *testing.T
	addr string
	http *http.Client
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	open    map[*stream]struct{} // guarded by mu
	done    []*stream            // guarded by mu
	nextID  int                  // guarded by mu
	allowed bool                 // guarded by mu: failures that end now are expected
}

// stream is one request. Its fields are guarded by load.mu while it is open.
type stream struct {
	prompt  string
	begun   bool   // the head of the answer has come
	text    string // the first words of the answer
	status  int
	err     string // empty for a whole answer
	allowed bool   // it was open while failures were expected
}

func startLoad(s *site) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{t: s.t, addr: s.dataAddr, stop: cancel, open: map[*stream]struct{}{},
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: streams}}}
	for range streams {
		l.wg.Go(func() {
			for ctx.Err() == nil {
				l.one(ctx)
			}
		})
	}
	s.t.Cleanup(func() { l.end() })
	return l
}

// end stops the load; what is open is cut and not judged.
func (l *load) end() {
	l.stop()
	l.wg.Wait()
	l.http.CloseIdleConnections()
}

func (l *load) one(ctx context.Context) {
	l.mu.Lock()
	l.nextID++
	// Prompts differ from the first word on, so that no cache ties them to one
	// replica; few are used, so that each engine's answers can be asked for.
	x := &stream{prompt: promptOf(l.nextID % prompts), allowed: l.allowed}
	l.open[x] = struct{}{}
	l.mu.Unlock()
	err := l.play(ctx, x)
	l.mu.Lock()
	delete(l.open, x)
	if ctx.Err() == nil {
		if err != nil {
			x.err = err.Error()
		}
		l.done = append(l.done, x)
	}
	failed := err != nil
	l.mu.Unlock()
	if failed {
		select { // no storm while nothing serves
		case <-ctx.Done():
		case <-time.After(pollEvery):
		}
	}
}

const prompts = 4

func promptOf(i int) string { return fmt.Sprintf("%d is the number of this prompt", i) }

func bodyOf(prompt string, words int, stream bool) *bytes.Reader {
	raw, err := json.Marshal(map[string]any{"model": "chat", "max_tokens": words, "stream": stream,
		"messages": []map[string]string{{"role": "user", "content": prompt}}})
	if err != nil {
		panic("plain data: " + err.Error())
	}
	return bytes.NewReader(raw)
}

func (l *load) play(ctx context.Context, x *stream) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+l.addr+"/v1/chat/completions", bodyOf(x.prompt, streamWords, true))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := l.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	l.mu.Lock()
	x.status, x.begun = res.StatusCode, true
	l.mu.Unlock()
	if res.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return fmt.Errorf("status %d: %s", res.StatusCode, raw)
	}
	return l.events(x, res.Body)
}

// events reads a stream to its end, which is [DONE] or an error.
func (l *load) events(x *stream, body io.Reader) error {
	lines := bufio.NewScanner(body)
	text := ""
	for lines.Scan() {
		line, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
			continue
		case line == "[DONE]":
			return nil
		}
		var e struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return err
		}
		if e.Error != nil {
			return fmt.Errorf("in the stream: %s", e.Error)
		}
		if len(e.Choices) > 0 && len(strings.Fields(text)) < ownWords {
			text += e.Choices[0].Delta.Content
			l.mu.Lock()
			x.text = firstWords(text)
			l.mu.Unlock()
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

// firstWords cuts a text to what tells its engine; "" while it is shorter.
func firstWords(text string) string {
	words := strings.Fields(text)
	if len(words) < ownWords {
		return ""
	}
	return strings.Join(words[:ownWords], " ")
}

// textsOf asks an engine itself how its answers begin.
func textsOf(t *testing.T, addr string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for i := range prompts {
		res, err := client.Post("http://"+addr+"/v1/chat/completions", "application/json", bodyOf(promptOf(i), ownWords, false))
		if err != nil {
			t.Fatal(err)
		}
		var a struct {
			Choices []struct {
				Message struct {
					Content string `json:"content"`
				} `json:"message"`
			} `json:"choices"`
		}
		err = json.NewDecoder(res.Body).Decode(&a)
		res.Body.Close()
		if err != nil || len(a.Choices) != 1 {
			t.Fatalf("%s: %v, %d choices", addr, err, len(a.Choices))
		}
		out[firstWords(a.Choices[0].Message.Content)] = true
	}
	return out
}

// openOn counts open streams whose answer has begun on the replica of texts.
func (l *load) openOn(texts map[string]bool) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for x := range l.open {
		if texts[x.text] {
			n++
		}
	}
	return n
}

// progress waits until n more streams have ended.
func (l *load) progress(s *site, n int) {
	s.t.Helper()
	l.mu.Lock()
	from := len(l.done)
	l.mu.Unlock()
	s.await("requests are answered", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.done) < from+n {
			return fmt.Errorf("%d of %d since", len(l.done)-from, n)
		}
		return nil
	})
}

// expectFailures begins or ends a time in which requests may fail.
func (l *load) expectFailures(yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.allowed = yes
	if yes {
		for x := range l.open {
			x.allowed = true
		}
	}
}

// judge takes the streams that have ended since the last time: those that
// failed must have begun, on a replica of texts. It returns how many there were
// of both.
func (l *load) judge(when string, texts map[string]bool) (all, failed int) {
	l.mu.Lock()
	done := l.done
	l.done = nil
	l.mu.Unlock()
	for _, x := range done {
		switch {
		case x.err == "" || x.allowed:
		case x.begun && x.status == http.StatusOK && (texts[x.text] || (x.text == "" && texts != nil)):
			failed++
		default:
			l.t.Errorf("%s: a request failed that should not (status %d, begins %q): %s", when, x.status, x.text, x.err)
		}
	}
	return len(done), failed
}
