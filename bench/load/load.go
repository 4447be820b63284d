package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"sluice/slo"
)

// Limits of a run.
const (
	// MaxInFlight bounds the requests in flight; one more is not sent and
	// counts as Unsent, for an open loop that waits is none.
	MaxInFlight   = 20_000
	bytesPerToken = 4
)

// Request is one request to play.
type Request struct {
	AtMs         float64 // real milliseconds after the start of the run
	Model        string
	InputTokens  int
	OutputTokens int
	Stream       bool
	Class        slo.Class
}

// Result is what became of a request. Latencies are milliseconds of real time
// from the intended time of sending; 0 where there was none.
type Result struct {
	Request
	// Status is the HTTP status, 0 when there was no answer.
	Status int
	// Err says what went wrong; empty for a whole answer.
	Err          string
	Unsent       bool
	LateMs       float64 // how late it was sent: the generator's own delay
	TTFTMs       float64 // first token, streamed requests only: a plain answer comes whole
	ITLMs        float64 // mean between tokens, streamed requests only
	E2EMs        float64
	OutputTokens int // as the answer's usage, or the tokens asked for
	RetryAfterS  int
}

// OK tells whether the answer came whole.
func (r *Result) OK() bool { return r.Status == http.StatusOK && r.Err == "" }

// Config of a run.
type Config struct {
	Addr string // host:port of the gateway
	Key  string // API key; empty for none
	// TimeoutMs bounds one request; 0 means ten minutes.
	TimeoutMs int64
}

// Run plays requests and returns a result for each, in the same order. on, if
// not nil, hears each result as it ends, from several goroutines.
func Run(ctx context.Context, c Config, requests []Request, on func(*Result)) ([]Result, error) {
	return run(ctx, c, requests, on, MaxInFlight)
}

func run(ctx context.Context, c Config, requests []Request, on func(*Result), maxInFlight int) ([]Result, error) {
	if _, _, err := net.SplitHostPort(c.Addr); err != nil {
		return nil, fmt.Errorf("load: address %q must be host:port: %w", c.Addr, err)
	}
	p := newPlayer(c)
	defer p.client.CloseIdleConnections()
	results := make([]Result, len(requests))
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxInFlight)
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	start := time.Now()
	for i := range requests {
		results[i].Request = requests[i]
		due := start.Add(time.Duration(requests[i].AtMs * float64(time.Millisecond)))
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				wg.Wait()
				return results[:i], ctx.Err()
			}
		}
		select {
		case slots <- struct{}{}:
		default:
			results[i].Unsent = true
			continue
		}
		wg.Add(1)
		go func(r *Result) {
			defer wg.Done()
			p.play(ctx, r, due)
			<-slots
			if on != nil {
				on(r)
			}
		}(&results[i])
	}
	wg.Wait()
	return results, nil
}

type player struct {
	c      Config
	client *http.Client
	filler []byte
}

func newPlayer(c Config) *player {
	if c.TimeoutMs <= 0 {
		c.TimeoutMs = 600_000
	}
	t := &http.Transport{MaxIdleConns: MaxInFlight, MaxIdleConnsPerHost: MaxInFlight, DisableCompression: true,
		IdleConnTimeout: time.Minute, ReadBufferSize: 8 << 10, WriteBufferSize: 16 << 10}
	return &player{c: c, client: &http.Client{Transport: t}, filler: bytes.Repeat([]byte("word "), 1<<16)}
}

// body is a chat request whose prompt has the wanted number of tokens for an
// engine that counts four bytes a token.
func (p *player) body(r *Request) []byte {
	n := min(max(1, r.InputTokens*bytesPerToken), len(p.filler))
	b := make([]byte, 0, n+256)
	b = append(b, `{"model":`...)
	b = strconv.AppendQuote(b, r.Model)
	b = append(b, `,"max_tokens":`...)
	b = strconv.AppendInt(b, int64(max(1, r.OutputTokens)), 10)
	if r.Stream {
		b = append(b, `,"stream":true,"stream_options":{"include_usage":true}`...)
	}
	b = append(b, `,"messages":[{"role":"user","content":"`...)
	b = append(b, p.filler[:n]...)
	return append(b, `"}]}`...)
}

func (p *player) play(ctx context.Context, r *Result, due time.Time) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(p.c.TimeoutMs)*time.Millisecond)
	defer cancel()
	r.LateMs = sinceMs(due)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.c.Addr+"/v1/chat/completions", bytes.NewReader(p.body(&r.Request)))
	if err != nil {
		r.Err = err.Error()
		return
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Sluice-Class", r.Class.String())
	if p.c.Key != "" {
		req.Header.Set("Authorization", "Bearer "+p.c.Key)
	}
	res, err := p.client.Do(req)
	if err != nil {
		r.Err = errText(err)
		return
	}
	defer res.Body.Close()
	r.Status = res.StatusCode
	r.RetryAfterS, _ = strconv.Atoi(res.Header.Get("Retry-After"))
	switch {
	case res.StatusCode != http.StatusOK:
		b, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
		r.Err = "HTTP " + strconv.Itoa(res.StatusCode) + ": " + string(b)
	case r.Stream:
		p.stream(r, res.Body, due)
	default:
		p.plain(r, res.Body)
	}
	r.E2EMs = sinceMs(due)
}

func sinceMs(t time.Time) float64 { return float64(time.Since(t).Microseconds()) / 1000 }

func errText(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "timeout"
	}
	return err.Error()
}

type usage struct {
	Usage *struct {
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

func (p *player) plain(r *Result, body io.Reader) {
	b, err := io.ReadAll(body)
	if err != nil {
		r.Err = errText(err)
		return
	}
	var u usage
	if err := json.Unmarshal(b, &u); err != nil || u.Usage == nil {
		r.Err = "the answer has no usage"
		return
	}
	r.OutputTokens = u.Usage.CompletionTokens
}

var (
	dataPrefix = []byte("data: ")
	doneLine   = []byte("data: [DONE]")
	usageMark  = []byte(`"usage":{`)
	errorMark  = []byte(`"error"`)
	textMark   = []byte(`"content":"`)
	emptyText  = []byte(`"content":""`)
)

// stream reads events. Only the last ones are decoded: what matters of the
// others is when they came.
func (p *player) stream(r *Result, body io.Reader, due time.Time) {
	br := bufio.NewReaderSize(body, 8<<10)
	first, last, done := 0.0, 0.0, false
	for {
		line, err := br.ReadSlice('\n')
		if err != nil {
			if !errors.Is(err, io.EOF) {
				r.Err = errText(err)
			}
			break
		}
		switch {
		case bytes.HasPrefix(line, doneLine):
			done = true
		case !bytes.HasPrefix(line, dataPrefix):
		case bytes.Contains(line, errorMark):
			r.Err = "error in the stream: " + string(line[:min(len(line), 512)])
		case bytes.Contains(line, usageMark):
			var u usage
			if json.Unmarshal(line[len(dataPrefix):], &u) == nil && u.Usage != nil {
				r.OutputTokens = u.Usage.CompletionTokens
			}
		case bytes.Contains(line, textMark) && !bytes.Contains(line, emptyText):
			last = sinceMs(due)
			if first == 0 {
				first = last
			}
		}
	}
	r.TTFTMs = first
	switch {
	case r.Err != "":
	case !done:
		r.Err = "the stream ended without [DONE]"
	case r.OutputTokens > 1:
		r.ITLMs = (last - first) / float64(r.OutputTokens-1)
	}
}
