package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
)

// gridMs is the spacing of Mooncake's time stamps.
const gridMs = 3000

// OpenRequests opens a file of requests, CSV or Mooncake's JSONL. The seed
// spreads the latter's arrivals; the others do not use it. Close the stream.
func OpenRequests(path string, seed uint64) (*Stream[Request], error) {
	return openWith(path, func(r io.Reader, name string) (*Stream[Request], error) {
		return ReadRequests(r, name, seed)
	})
}

// ReadRequests is OpenRequests on an open reader; name is for errors.
func ReadRequests(r io.Reader, name string, seed uint64) (*Stream[Request], error) {
	in, err := plain(r, name)
	if err != nil {
		return nil, err
	}
	if head, _ := in.Peek(1); len(head) == 1 && head[0] == '{' {
		m := &mooncake{name: name, in: bufio.NewScanner(in), rng: rand.New(rand.NewPCG(seed, 0x6d6f6f6e))}
		m.in.Buffer(nil, MaxLineBytes)
		return &Stream[Request]{next: m.next}, nil
	}
	t, err := newTable(in, name)
	if err != nil {
		return nil, err
	}
	if !t.has("t_s", "input_tokens", "output_tokens") {
		return nil, fmt.Errorf("%w: %s:1: requests need the columns t_s, input_tokens, output_tokens and may have client; rename the columns", ErrFormat, name)
	}
	last := 0.0
	return &Stream[Request]{next: func() (Request, error) {
		if err := t.advance(); err != nil {
			return Request{}, err
		}
		q := Request{
			AtMs: t.number("t_s") * 1000, InputTokens: t.count("input_tokens"),
			OutputTokens: t.count("output_tokens"), Client: t.text("client"),
		}
		if t.err == nil && q.AtMs < last {
			t.bad("t_s", "no earlier than the line before (sort the file by t_s)")
		}
		last = q.AtMs
		return q, t.err
	}}, nil
}

// mooncake yields the requests of one grid point after another, spread and sorted.
type mooncake struct {
	name    string
	in      *bufio.Scanner
	rng     *rand.Rand
	line    int
	ready   []Request // of the current grid point, in order
	ahead   *Request  // first of the next one, time not spread yet
	drained bool
}

func (m *mooncake) next() (Request, error) {
	if len(m.ready) == 0 {
		if err := m.fill(); err != nil {
			return Request{}, err
		}
	}
	q := m.ready[0]
	m.ready = m.ready[1:]
	return q, nil
}

// fill reads all requests of the next grid point.
func (m *mooncake) fill() error {
	if m.ahead == nil && !m.drained {
		if err := m.read(); err != nil {
			return err
		}
	}
	if m.ahead == nil {
		return io.EOF
	}
	cell := m.ahead.AtMs
	m.ready = m.ready[:0:0]
	for m.ahead != nil && m.ahead.AtMs < cell+gridMs {
		if len(m.ready) >= MaxBurst {
			return fmt.Errorf("%w: %s:%d: more than %d requests within 3 s; thin the file", ErrFormat, m.name, m.line, MaxBurst)
		}
		m.ready = append(m.ready, *m.ahead)
		if err := m.read(); err != nil {
			return err
		}
	}
	// Spread over the room up to the next grid point, so order between
	// points stays whatever the seed.
	for i := range m.ready {
		m.ready[i].AtMs = cell + m.rng.Float64()*gridMs
	}
	slices.SortStableFunc(m.ready, func(a, b Request) int {
		switch {
		case a.AtMs < b.AtMs:
			return -1
		case a.AtMs > b.AtMs:
			return 1
		}
		return 0
	})
	return nil
}

// read sets ahead to the next line's request, nil at the end.
func (m *mooncake) read() error {
	before := 0.0
	if m.ahead != nil {
		before = m.ahead.AtMs
	}
	m.ahead = nil
	for m.in.Scan() {
		m.line++
		raw := bytes.TrimSpace(m.in.Bytes())
		if len(raw) == 0 {
			continue
		}
		var v struct {
			Timestamp    *float64 `json:"timestamp"`
			InputLength  *int     `json:"input_length"`
			OutputLength *int     `json:"output_length"`
			HashIDs      []int64  `json:"hash_ids"`
		}
		if err := json.Unmarshal(raw, &v); err != nil {
			return fmt.Errorf("%w: %s:%d: %v; mend or remove the line", ErrFormat, m.name, m.line, err)
		}
		if v.Timestamp == nil || v.InputLength == nil || v.OutputLength == nil || *v.InputLength < 0 || *v.OutputLength < 0 {
			return fmt.Errorf("%w: %s:%d: needs timestamp, input_length and output_length of at least 0; mend or remove the line", ErrFormat, m.name, m.line)
		}
		if *v.Timestamp < before {
			return fmt.Errorf("%w: %s:%d: timestamp %v is before the line above; sort the file", ErrFormat, m.name, m.line, *v.Timestamp)
		}
		m.ahead = &Request{AtMs: *v.Timestamp, InputTokens: *v.InputLength, OutputTokens: *v.OutputLength, Blocks: v.HashIDs}
		return nil
	}
	m.drained = true
	if err := m.in.Err(); err != nil {
		return fmt.Errorf("%w: %s:%d: %v; fetch the file again", ErrFormat, m.name, m.line+1, err)
	}
	return nil
}
