package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"sluice/gateway/record"
)

// Limits of the sender.
const (
	// maxSpans bounds a batch; maxBatches those that wait behind the one being sent. Further batches are dropped.
	maxSpans   = 512
	maxBatches = 4
	// maxPosts bounds the attempts to send a batch, firstWait is the wait after the first, doubled each time; a
	// collector may ask for more, up to maxWait.
	maxPosts  = 3
	firstWait = time.Second
	maxWait   = 30 * time.Second
	// postTimeout bounds one attempt.
	postTimeout = 10 * time.Second
	// maxAnswer bounds what is read of the collector's answer.
	maxAnswer = 64 << 10
)

// scope names who made the spans.
const scope = "sluice/gateway"

// sender sends batches of spans. add and offer are the sink's goroutine's; run is its own.
type sender struct {
	cfg     *Config
	counts  *counts
	client  *http.Client
	head    []byte // of a batch, up to its spans
	spans   []byte // being gathered, with head in front
	n       int    // spans in it
	batches chan batch
	rooms   chan []byte // buffers that were sent, for the next ones
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}
	sick    bool // owned by run: the last batch was lost
}

// batch is a whole document.
type batch struct {
	body  []byte
	spans int
}

const batchTail = "]}]}]}"

func newSender(cfg *Config, c *counts) *sender {
	s := &sender{cfg: cfg, counts: c, batches: make(chan batch, maxBatches), rooms: make(chan []byte, maxBatches+1), done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.client = &http.Client{Timeout: postTimeout, Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 1,
		IdleConnTimeout: time.Minute}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	attributes := []byte{}
	for _, a := range cfg.Resource {
		attributes = record.AppendText(attributes, a.Name, a.Text)
	}
	s.head = append(s.head, `{"resourceSpans":[{"resource":{"attributes":[`...)
	s.head = append(s.head, bytes.TrimPrefix(attributes, []byte(","))...)
	s.head = append(s.head, `]},"scopeSpans":[{"scope":{"name":"`+scope+`"},"spans":[`...)
	go s.run()
	return s
}

// add appends a span to the batch that is being gathered.
func (s *sender) add(r *record.Record) {
	if s.n == 0 {
		s.spans = append(s.spans[:0], s.head...)
	} else {
		s.spans = append(s.spans, ',')
	}
	s.spans = r.AppendSpan(s.spans)
	if s.n++; s.n >= maxSpans {
		s.hand()
	}
}

// offer hands over what was gathered if the sender has nothing else to do; else it may grow until it is a whole batch.
func (s *sender) offer() {
	if s.n > 0 && len(s.batches) == 0 {
		s.hand()
	}
}

// hand gives the batch to the sender, or drops it when too many wait.
func (s *sender) hand() {
	b := batch{append(s.spans, batchTail...), s.n}
	s.spans, s.n = nil, 0
	select {
	case s.batches <- b:
		select {
		case s.spans = <-s.rooms:
		default:
		}
	default:
		s.counts.spansDropped.Add(uint64(b.spans))
		s.spans = b.body[:0]
	}
}

// close sends what is left for as long as ctx lets it. The sink's goroutine has ended. Once only.
func (s *sender) close(ctx context.Context) {
	if s.n > 0 {
		s.hand()
	}
	close(s.batches)
	stop := context.AfterFunc(ctx, s.cancel)
	<-s.done
	stop()
	s.cancel()
	s.client.CloseIdleConnections()
}

// run sends batch after batch. It ends with close.
func (s *sender) run() {
	defer close(s.done)
	for b := range s.batches {
		rejected, err := s.send(b)
		if err != nil {
			rejected = b.spans
		}
		s.counts.spans.Add(uint64(b.spans - rejected))
		s.counts.spansDropped.Add(uint64(rejected))
		switch {
		case err != nil && !s.sick:
			s.cfg.Fail("spans cannot be sent; they are dropped", err)
		case err == nil && s.sick:
			s.cfg.Fail("spans are sent again", nil)
		}
		s.sick = err != nil
		select {
		case s.rooms <- b.body:
		default:
		}
	}
}

// errRefused is an answer that asks for no other attempt.
var errRefused = errors.New("the collector refused them")

// send posts a batch, more than once if need be. rejected is how many of its spans the collector did not take.
func (s *sender) send(b batch) (rejected int, err error) {
	wait := firstWait
	for try := 1; ; try++ { // ends: maxPosts
		var after time.Duration
		rejected, after, err = s.post(b)
		if err == nil || errors.Is(err, errRefused) || try == maxPosts {
			return rejected, err
		}
		t := time.NewTimer(max(wait, min(after, maxWait)))
		select {
		case <-t.C:
		case <-s.ctx.Done():
			t.Stop()
			return 0, err
		}
		wait *= 2
	}
}

// post sends a batch once. after is how long the collector asks to wait.
func (s *sender) post(b batch) (rejected int, after time.Duration, err error) {
	req, err := http.NewRequestWithContext(s.ctx, http.MethodPost, s.cfg.TracesURL, bytes.NewReader(b.body))
	if err != nil {
		return 0, 0, fmt.Errorf("%w: the request cannot be made", errRefused) // the cause would quote the URL
	}
	for name, values := range s.cfg.TracesHeader {
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "sluice")
	res, err := s.client.Do(req)
	if err != nil {
		return 0, 0, fmt.Errorf("reach the collector: %w", pathless(err))
	}
	defer res.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer)) // the status says what matters
	switch {
	case res.StatusCode >= 200 && res.StatusCode < 300:
		return min(b.spans, rejectedSpans(answer)), 0, nil
	case res.StatusCode == 429, res.StatusCode == 502, res.StatusCode == 503, res.StatusCode == 504:
		seconds, _ := strconv.Atoi(res.Header.Get("Retry-After")) // a date or nothing: our own wait
		return 0, time.Duration(max(0, seconds)) * time.Second, fmt.Errorf("the collector answered %d", res.StatusCode)
	}
	return 0, 0, fmt.Errorf("%w: it answered %d", errRefused, res.StatusCode)
}

// rejectedSpans reads how many spans of a batch a collector did not take.
func rejectedSpans(answer []byte) int {
	var a struct {
		PartialSuccess struct {
			RejectedSpans json.Number `json:"rejectedSpans"`
		} `json:"partialSuccess"`
	}
	if json.Unmarshal(answer, &a) != nil {
		return 0 // no JSON: nothing was said
	}
	n, err := a.PartialSuccess.RejectedSpans.Int64()
	if err != nil {
		return 0
	}
	return int(max(0, n))
}

// pathless takes the URL or path out of an error: it may be private.
func pathless(err error) error {
	var u *url.Error
	var p *fs.PathError
	switch {
	case errors.As(err, &u):
		return u.Err
	case errors.As(err, &p):
		return p.Err
	}
	return err
}
