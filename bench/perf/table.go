package perf

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
)

//go:embed perf_splitwise.csv
var splitwiseCSV string

// row is a line of the table; only what the curves need.
type row struct {
	key                  Key
	input, batch, output int
	prefillMs, tbtMs     float64
}

// fits is false for the runs that did not fit into memory: their prefill falls
// and their end-to-end time explodes.
func (r row) fits() bool {
	return !(r.key.Model == "llama2-70b" && r.key.TP == 2 && r.batch == 64)
}

func parse(text string) (map[Key]*Profile, error) {
	lines, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("perf: read table: %w", err)
	}
	rows := map[Key][]row{}
	for i, f := range lines {
		if i == 0 {
			continue
		}
		r, err := parseRow(f)
		if err != nil {
			return nil, fmt.Errorf("perf: perf_splitwise.csv:%d: %w", i+1, err)
		}
		// Longer outputs repeat the same set-up; their tbt is an average over
		// a growing context, so it says less.
		if r.fits() && r.output == 128 {
			rows[r.key] = append(rows[r.key], r)
		}
	}
	out := make(map[Key]*Profile, len(rows))
	for k, rs := range rows {
		out[k] = newProfile(k, rs)
	}
	return out, nil
}

func parseRow(f []string) (row, error) {
	var r row
	var err error
	num := func(s string) float64 {
		v, e := strconv.ParseFloat(s, 64)
		if e != nil && err == nil {
			err = e
		}
		return v
	}
	if len(f) < 8 {
		return r, fmt.Errorf("%d columns, want 8 or more", len(f))
	}
	r.key = Key{Model: f[0], GPU: f[1], TP: int(num(f[2]))}
	r.input, r.batch, r.output = int(num(f[3])), int(num(f[4])), int(num(f[5]))
	r.prefillMs, r.tbtMs = num(f[6]), num(f[7])
	return r, err
}

func newProfile(k Key, rows []row) *Profile {
	p := &Profile{key: k}
	var prefill, decode, context []point
	longest := 0
	for _, r := range rows {
		if r.batch == 1 {
			prefill = append(prefill, point{float64(r.input), r.prefillMs})
			context = append(context, point{float64(r.input), r.tbtMs})
			longest = max(longest, r.input)
		}
		if r.input == refContext {
			decode = append(decode, point{float64(r.batch), r.tbtMs})
		}
	}
	// Single prompts are the better measurement as far as they go; batches
	// carry the curve on.
	for _, r := range rows {
		if r.input*r.batch > longest {
			prefill = append(prefill, point{float64(r.input * r.batch), r.prefillMs})
		}
	}
	p.decode, p.context = newCurve(decode), newCurve(context)
	p.refMs = p.context.at(refContext)
	measured := newCurve(prefill)
	first := point{1, min(p.decode[0].y, measured[0].y)}
	p.prefill = append(curve{first}, measured...)
	return p
}
