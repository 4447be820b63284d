package trace

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

// Stream yields the rows of one file. For one goroutine. After an error it
// yields the same error for ever.
type Stream[T any] struct {
	next   func() (T, error)
	closer io.Closer
	err    error
}

// Next returns the next row; io.EOF after the last one.
func (s *Stream[T]) Next() (T, error) {
	var zero T
	if s.err != nil {
		return zero, s.err
	}
	v, err := s.next()
	if err != nil {
		s.err = err
		return zero, err
	}
	return v, nil
}

// Close closes the file if the stream opened one.
func (s *Stream[T]) Close() error {
	if s.closer == nil {
		return nil
	}
	return s.closer.Close()
}

// Collect reads the rest of s and closes it. Rows read before an error are
// returned with it.
func Collect[T any](s *Stream[T]) ([]T, error) {
	defer s.Close()
	var out []T
	for {
		v, err := s.Next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if len(out) >= MaxRows {
			return out, fmt.Errorf("%w: more than %d", ErrTooLong, MaxRows)
		}
		out = append(out, v)
	}
}

// openWith opens a file for a reader of rows.
func openWith[T any](path string, read func(io.Reader, string) (*Stream[T], error)) (*Stream[T], error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: open: %w", err)
	}
	s, err := read(f, path)
	if err != nil {
		f.Close()
		return nil, err
	}
	s.closer = f
	return s, nil
}

// plain undoes gzip when the first two bytes say so.
func plain(r io.Reader, name string) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	head, _ := in.Peek(2)
	if len(head) < 2 || head[0] != 0x1f || head[1] != 0x8b {
		return in, nil
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: gzip: %v; fetch the file again", ErrFormat, name, err)
	}
	return bufio.NewReaderSize(z, 1<<16), nil
}

// table reads CSV by column name.
type table struct {
	name string
	r    *csv.Reader
	cols map[string]int
	row  []string
	line int
	err  error // the first bad cell of the row
}

func newTable(in *bufio.Reader, name string) (*table, error) {
	r := csv.NewReader(in)
	r.ReuseRecord = true
	head, err := r.Read()
	if err == io.EOF {
		return nil, fmt.Errorf("%w: %s: empty; the first line must name the columns", ErrFormat, name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %v", ErrFormat, name, err)
	}
	t := &table{name: name, r: r, cols: make(map[string]int, len(head))}
	for i, h := range head {
		t.cols[strings.TrimSpace(strings.TrimPrefix(h, "\ufeff"))] = i
	}
	return t, nil
}

// has says whether all the columns are there.
func (t *table) has(names ...string) bool {
	for _, n := range names {
		if _, ok := t.cols[n]; !ok {
			return false
		}
	}
	return true
}

// advance reads the next row; io.EOF after the last.
func (t *table) advance() error {
	row, err := t.r.Read()
	if err == io.EOF {
		return err
	}
	if err != nil {
		if pe := (*csv.ParseError)(nil); errors.As(err, &pe) {
			return fmt.Errorf("%w: %s:%d: %v; mend or remove the line", ErrFormat, t.name, pe.Line, pe.Err)
		}
		return fmt.Errorf("%w: %s: after line %d: %v; fetch the file again", ErrFormat, t.name, t.line, err)
	}
	t.row = row
	t.line, _ = t.r.FieldPos(0)
	return nil
}

func (t *table) bad(col, what string) {
	if t.err == nil {
		t.err = fmt.Errorf("%w: %s:%d: column %s is %q, must be %s; mend or remove the line",
			ErrFormat, t.name, t.line, col, t.text(col), what)
	}
}

// text copies the cell; "" where the column is absent.
func (t *table) text(col string) string {
	i, ok := t.cols[col]
	if !ok {
		return ""
	}
	return strings.Clone(t.row[i])
}

// number is a finite number >= 0.
func (t *table) number(col string) float64 {
	v, err := strconv.ParseFloat(t.row[t.cols[col]], 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		t.bad(col, "a number of at least 0")
		return 0
	}
	return v
}

// count is a whole number >= 0.
func (t *table) count(col string) int {
	v, err := strconv.Atoi(t.row[t.cols[col]])
	if err != nil || v < 0 {
		t.bad(col, "a whole number of at least 0")
		return 0
	}
	return v
}
