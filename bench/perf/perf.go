// Package perf says how long a large model takes: milliseconds of one prefill
// or one decode step, by model, GPU and tensor parallel size, interpolated
// from a table measured on real GPUs (Splitwise, ISCA 2024; see
// perf_splitwise.LICENSE.txt).
//
//	p, err := perf.Lookup("llama2-70b", "h100-80gb", 4)
//	ttft := p.PrefillMs(2048)     // one prompt, or several with 2048 tokens together
//	step := p.DecodeMs(16, 900)   // 16 sequences of 900 tokens each, one token for each
//
// Times never fall when tokens, batch or context grow: measured points that do
// are averaged with their neighbours (pool adjacent violators). Between points
// it is linear, beyond the last one the last slope goes on.
//
// What the table does not know, and what is assumed:
//   - a prefill of several prompts costs what one prompt of their total length
//     costs (the table's batches of 512-token prompts agree within 30 %);
//   - below 128 tokens a prefill falls linearly to one decode step at 1 token;
//   - the effect of context was measured at batch 1 only and is applied as a
//     ratio to larger batches, which understates very long contexts;
//   - llama2-70b on tp 2 at batch 64 did not fit into memory, so those rows are
//     left out and the slope up to batch 32 goes on.
//
// It does not model memory, queues or preemption: bench/engine does.
package perf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// ErrUnknown: the table has no such model, GPU and tensor parallel size; the
// text lists those it has.
var ErrUnknown = errors.New("perf: not in the measured table")

// Key names one measured set-up.
type Key struct {
	Model string // "llama2-70b", "bloom-176b"
	GPU   string // "a100-80gb", "h100-80gb", "h100-80gb-pcap" (power capped)
	TP    int    // tensor parallel size: GPUs of one replica
}

func (k Key) String() string { return fmt.Sprintf("%s/%s/tp%d", k.Model, k.GPU, k.TP) }

// Profile is one set-up's curves. Immutable, safe for concurrent use.
type Profile struct {
	key     Key
	prefill curve // total tokens -> ms
	decode  curve // batch -> ms, at refContext
	context curve // context tokens -> ms, at batch 1
	refMs   float64
}

// refContext is the input length at which the batch sizes were measured.
const refContext = 512

// Key returns the set-up.
func (p *Profile) Key() Key { return p.key }

// PrefillMs returns the time of one prefill over tokens prompt tokens, those
// of all prompts in the batch together. 0 for tokens <= 0.
func (p *Profile) PrefillMs(tokens int) float64 {
	if tokens <= 0 {
		return 0
	}
	return p.prefill.at(float64(tokens))
}

// DecodeMs returns the time of one decode step that gives each of batch
// sequences one token, at a mean context of contextTokens a sequence. 0 for
// batch <= 0.
func (p *Profile) DecodeMs(batch, contextTokens int) float64 {
	if batch <= 0 {
		return 0
	}
	return p.decode.at(float64(batch)) * p.context.at(float64(max(contextTokens, 1))) / p.refMs
}

// Lookup finds a set-up. "llama2" and "bloom" are short for their only size,
// "a100" and "h100" for the 80 GB cards.
func Lookup(model, gpu string, tp int) (*Profile, error) {
	all, err := table()
	if err != nil {
		return nil, err
	}
	want := Key{Model: longName(model), GPU: longName(gpu), TP: tp}
	if p := all[want]; p != nil {
		return p, nil
	}
	keys, _ := Keys()
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.String()
	}
	return nil, fmt.Errorf("%w: %s; choose one of %s", ErrUnknown, want, strings.Join(names, ", "))
}

func longName(s string) string {
	switch s {
	case "llama2":
		return "llama2-70b"
	case "bloom":
		return "bloom-176b"
	case "a100":
		return "a100-80gb"
	case "h100":
		return "h100-80gb"
	}
	return s
}

// Keys lists the measured set-ups, sorted by name.
func Keys() ([]Key, error) {
	all, err := table()
	if err != nil {
		return nil, err
	}
	keys := make([]Key, 0, len(all))
	for k := range all {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b Key) int { return strings.Compare(a.String(), b.String()) })
	return keys, nil
}

// PrefillMs is Lookup and Profile.PrefillMs in one call.
func PrefillMs(model, gpu string, tp, tokens int) (float64, error) {
	p, err := Lookup(model, gpu, tp)
	if err != nil {
		return 0, err
	}
	return p.PrefillMs(tokens), nil
}

// DecodeMs is Lookup and Profile.DecodeMs in one call.
func DecodeMs(model, gpu string, tp, batch, contextTokens int) (float64, error) {
	p, err := Lookup(model, gpu, tp)
	if err != nil {
		return 0, err
	}
	return p.DecodeMs(batch, contextTokens), nil
}

var table = sync.OnceValues(func() (map[Key]*Profile, error) { return parse(splitwiseCSV) })
