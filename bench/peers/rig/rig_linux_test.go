package rig

import (
	"slices"
	"testing"
	"time"
)

// The rig asks itself, without a gateway between: every driver must see whole answers only.
const patience = 20 * time.Second

func pair(t *testing.T) (*Rig, *Engine) {
	t.Helper()
	r, err := New()
	if err != nil {
		t.Fatal(err)
	}
	e, err := r.Listen(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return r, e
}

func clean(t *testing.T, got Tally) {
	t.Helper()
	if got.Errors+got.Lost+got.Cut > 0 {
		t.Errorf("%d errors, %d lost, %d cut", got.Errors, got.Lost, got.Cut)
	}
}

func TestClosedLoopAsksAgain(t *testing.T) {
	r, e := pair(t)
	e.Answer = Answer{Body: PlainAnswer(1024)}
	d, err := r.Closed(Target{e.Addr(), Request("m", "", 1024, false, -1)}, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := r.RunUntil(patience, func() bool { return d.Answers >= 100 }); err != nil {
		t.Fatal(err)
	}
	if d.Answers < 100 || e.Conns() != 4 || len(d.SamplesUs()) < 100 {
		t.Errorf("%d answers on %d connections, %d samples", d.Answers, e.Conns(), len(d.SamplesUs()))
	}
	clean(t, d.Tally)
}

func TestOpenLoopSendsAtItsRate(t *testing.T) {
	r, e := pair(t)
	e.Answer = Answer{Body: PlainAnswer(1024)}
	d, err := r.Open(Target{e.Addr(), Request("m", "", 1024, false, -1)}, 2000, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := r.RunUntil(patience, d.Ready); err != nil {
		t.Fatal(err)
	}
	d.Clear()
	if err := r.RunUntil(patience, func() bool { return d.Answers >= 100 }); err != nil {
		t.Fatal(err)
	}
	if d.Answers < 100 || e.Conns() != openConns {
		t.Errorf("%d answers on %d connections", d.Answers, e.Conns())
	}
	clean(t, d.Tally)
}

func TestStreamsCountEveryToken(t *testing.T) {
	for name, answer := range map[string]Answer{
		"paced":        {Tokens: 10, Pace: time.Millisecond},
		"back to back": {Tokens: 300},
		"old":          {Tokens: 10, Pace: time.Millisecond, Old: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, e := pair(t)
			e.Answer = answer
			d, err := r.Streams(Target{e.Addr(), Request("m", "", 1024, true, -1)}, 3, 1000)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if err := r.RunUntil(patience, func() bool { return d.Answers >= 6 && d.Ready() }); err != nil {
				t.Fatal(err)
			}
			if d.Answers < 6 || !d.Ready() || d.Tokens < d.Answers*(answer.Tokens-e.Late) {
				t.Errorf("%d answers with %d tokens, %d streams begun", d.Answers, d.Tokens, d.Begun)
			}
			clean(t, d.Tally)
		})
	}
}

func TestKilledEngineLosesWhatWaits(t *testing.T) {
	r, e := pair(t)
	d, err := r.Closed(Target{e.Addr(), Request("m", "", 1024, false, -1)}, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := r.RunUntil(patience, func() bool { return e.Requests == 4 }); err != nil {
		t.Fatal(err)
	}
	e.Kill()
	if err := e.Open(); err != nil {
		t.Fatal(err)
	}
	e.Answer = Answer{Body: PlainAnswer(1024)}
	if err := r.RunUntil(patience, func() bool { return d.Answers >= 8 }); err != nil {
		t.Fatal(err)
	}
	if d.Lost != 4 || d.Answers < 8 {
		t.Errorf("%d lost, then %d answers", d.Lost, d.Answers)
	}
}

func TestStopEndsARun(t *testing.T) {
	r, _ := pair(t)
	r.Stop()
	if err := r.Run(patience); err != ErrStopped {
		t.Error(err)
	}
}

func TestScheduleGivesTheEarliest(t *testing.T) {
	var s schedule
	if s.due() != never {
		t.Error("an empty schedule is due")
	}
	var want []int64
	for i := range int64(100) {
		ns := i * 7919 % 101
		s.push(queued{dueNs: ns})
		want = append(want, ns)
	}
	slices.Sort(want)
	var got []int64
	for s.due() != never {
		got = append(got, s.pop().dueNs)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
