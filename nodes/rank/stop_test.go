package rank

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// The world of the two-phase stop: ranks that synchronise each step, a network
// that delays, duplicates, reorders and loses orders, a controller that crashes
// and is followed by another that knows only the recorded facts.

type flight struct {
	atMs     int64
	n        int // order of sending, to break ties
	toRank   int // -1: to the controller
	fromRank int
	m        Message
}

type simRank struct {
	m         *Machine
	stepMs    int64 // how long a step takes
	evalEvery int64
	evalMs    int64
	silent    bool  // its socket thread never answers
	readyAtMs int64 // when the running step's own work is over
	busyUntil int64 // an evaluation after the last step
	yielded   bool
	stopped   bool
	killed    bool
}

type sim struct {
	t       *testing.T
	seed    uint64
	rng     *rand.Rand
	nowMs   int64
	sent    int
	flights []flight
	ranks   []*simRank

	stop     *Stop  // the controller's memory; lost with it
	recorded []byte // the stop as a fact
}

const (
	simLimitMs    = 60_000
	simDeadlineMs = 20_000
	simResendMs   = 200
)

func (s *sim) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d at %d ms: %s", s.seed, s.nowMs, fmt.Sprintf(format, args...))
}

// post puts a message on its way: perhaps lost, perhaps twice, never in order.
func (s *sim) post(toRank, fromRank int, m Message) {
	copies := 1
	switch s.rng.IntN(10) {
	case 0:
		copies = 0
	case 1:
		copies = 2
	}
	for range copies {
		delay := int64(s.rng.IntN(5))
		if s.rng.IntN(6) == 0 {
			delay = int64(s.rng.IntN(3000))
		}
		s.sent++
		s.flights = append(s.flights, flight{s.nowMs + delay, s.sent, toRank, fromRank, m})
	}
}

func newSim(t *testing.T, seed uint64) *sim {
	rng := rand.New(rand.NewPCG(seed, 1))
	s := &sim{t: t, seed: seed, rng: rng}
	for r := range 1 + rng.IntN(6) {
		k := &simRank{m: NewMachine(Message{Rank: r, WorldSize: 6, Sync: SyncAll}), stepMs: int64(1 + rng.IntN(20))}
		switch rng.IntN(8) {
		case 0:
			k.stepMs = int64(200 + rng.IntN(800)) // slow
		case 1:
			k.evalEvery, k.evalMs = int64(1+rng.IntN(10)), int64(rng.IntN(2500))
		case 2:
			k.silent = rng.IntN(3) == 0
		}
		s.ranks = append(s.ranks, k)
	}
	return s
}

// train advances every rank as far as it can at nowMs.
func (s *sim) train() {
	for {
		moved := false
		minBegun := s.ranks[0].m.Progress().Begun
		for _, k := range s.ranks {
			minBegun = min(minBegun, k.m.Progress().Begun)
		}
		for i, k := range s.ranks {
			if k.killed || k.stopped || s.nowMs < k.busyUntil {
				continue
			}
			p := k.m.Progress()
			if p.Begun > p.Done { // the collective ends when all have begun
				if s.nowMs >= k.readyAtMs && minBegun >= p.Begun {
					if err := k.m.Done(p.Begun, 1, p.Begun); err != nil {
						s.fail("%v", err)
					}
					if k.evalEvery > 0 && p.Begun%k.evalEvery == 0 {
						k.busyUntil = s.nowMs + k.evalMs
					}
					moved = true
				}
				continue
			}
			moved = s.boundary(i, k) || moved
		}
		if !moved {
			return
		}
	}
}

func (s *sim) boundary(i int, k *simRank) bool {
	d, err := k.m.Begin(k.m.Progress().Done + 1)
	if err != nil {
		s.fail("rank %d: %v", i, err)
	}
	switch d {
	case Proceed:
		k.readyAtMs = s.nowMs + k.stepMs
		return true
	case Yield:
		k.yielded = true
		s.answer(i, k.m.Yielded()...)
	case Resume:
		k.yielded = false
		s.answer(i, k.m.Resumed()...)
		return true
	case Save:
		k.stopped = true
		s.answer(i, k.m.Stopped(k.m.Progress().Done))
	}
	return false
}

func (s *sim) answer(i int, ms ...Message) {
	if s.ranks[i].silent {
		return
	}
	for _, m := range ms {
		s.post(-1, i, m)
	}
}

func (s *sim) deliver() {
	slices.SortFunc(s.flights, func(a, b flight) int {
		if a.atMs != b.atMs {
			return int(a.atMs - b.atMs)
		}
		return a.n - b.n
	})
	for len(s.flights) > 0 && s.flights[0].atMs <= s.nowMs {
		f := s.flights[0]
		s.flights = s.flights[1:]
		if f.toRank >= 0 {
			if k := s.ranks[f.toRank]; !k.killed && !k.silent {
				s.answer(f.toRank, k.m.On(f.m)...)
			}
			continue
		}
		s.hear(f.fromRank, f.m)
	}
}

func (s *sim) hear(rank int, m Message) {
	var err error
	switch m.Type {
	case TypePrepared:
		err = s.stop.Prepared(rank, m.Begun)
		if s.stop.Decided && s.recorded == nil {
			s.recorded, _ = json.Marshal(s.stop) // the fact, before any commit leaves
		}
	case TypeYielded, TypeStopped:
		err = s.stop.Reached(rank, m.Step)
	case TypeAborted, TypeResumed:
		err = s.stop.Answered(rank)
	}
	if err != nil {
		s.fail("%v", err)
	}
}

// control is one beat of the controller: what the present verdict asks, again.
func (s *sim) control() {
	order := func(ranks []int, m Message) {
		m.ID = s.stop.ID
		for _, r := range ranks {
			s.post(r, -1, m)
		}
	}
	switch s.stop.Verdict(s.nowMs) {
	case StopPreparing:
		order(s.stop.Missing(), Message{Type: TypePrepare, Mode: s.stop.Mode})
	case StopCommit:
		if s.stop.Mode == ModeYield && s.rng.IntN(30) == 0 { // the burst is over before we got there
			if err := s.stop.Resume(); err != nil {
				s.fail("%v", err)
			}
			s.recorded, _ = json.Marshal(s.stop)
			return
		}
		order(s.stop.Missing(), Message{Type: TypeCommit, Mode: s.stop.Mode, Step: s.stop.S})
	case StopAborted:
		order(s.stop.Missing(), Message{Type: TypeAbort})
	case StopResuming:
		order(s.stop.Missing(), Message{Type: TypeResume})
	case StopComplete:
		if s.stop.Mode == ModeYield {
			if err := s.stop.Resume(); err != nil {
				s.fail("%v", err)
			}
			s.recorded, _ = json.Marshal(s.stop)
		}
	case StopKill:
		for _, k := range s.ranks {
			k.killed = true
		}
	}
}

// crash replaces the controller by one that knows the facts alone.
func (s *sim) crash() {
	next := NewStop(s.stop.ID, s.stop.Mode, len(s.ranks))
	next.DeadlineMs = s.stop.DeadlineMs
	if s.recorded != nil {
		if err := json.Unmarshal(s.recorded, next); err != nil {
			s.fail("%v", err)
		}
	} else if s.stop.IsAborted || s.rng.IntN(2) == 0 {
		if err := next.Abort(); err != nil {
			s.fail("%v", err)
		}
	}
	s.stop = next
}

// ended says how the episode ended, or "" while it goes on.
func (s *sim) ended() string {
	count := func(f func(*simRank) bool) (n int) {
		for _, k := range s.ranks {
			if f(k) {
				n++
			}
		}
		return n
	}
	switch {
	case s.ranks[0].killed:
		return "killed"
	case count(func(k *simRank) bool { return k.stopped }) == len(s.ranks):
		return "stopped"
	case s.stop.IsAborted && len(s.stop.Missing()) == count(func(k *simRank) bool { return k.silent }):
		// A silent rank heard neither prepare nor abort: it trains on.
		return "aborted"
	case s.stop.Verdict(s.nowMs) == StopOver:
		return "resumed"
	}
	return ""
}

func (s *sim) run() string {
	startMs := int64(s.rng.IntN(2000))
	mode := ModeStop
	if s.rng.IntN(2) == 0 {
		mode = ModeYield
	}
	yieldedAt := int64(-1)
	for ; s.nowMs < simLimitMs; s.nowMs++ {
		s.train()
		if s.nowMs == startMs {
			s.stop = NewStop("o1", mode, len(s.ranks))
			s.stop.DeadlineMs = s.nowMs + simDeadlineMs
			s.control()
		}
		if s.stop == nil {
			continue
		}
		s.deliver()
		if s.nowMs%simResendMs == 0 {
			if s.rng.IntN(20) == 0 {
				s.crash()
			}
			s.control()
		}
		for i, k := range s.ranks { // no two at different steps, ever
			if k.yielded || k.stopped {
				at := k.m.Progress().Done
				if yieldedAt >= 0 && at != yieldedAt {
					s.fail("rank %d at %d, another at %d", i, at, yieldedAt)
				}
				yieldedAt = at
			}
		}
		if how := s.ended(); how != "" {
			return how
		}
	}
	s.fail("gang hangs; stop %+v", s.stop)
	return ""
}

// goesOn checks that an aborted or resumed gang trains again.
func (s *sim) goesOn() {
	before := s.ranks[0].m.Progress().Done
	for range 20_000 {
		s.nowMs++
		s.train()
		s.deliver()
		if s.ranks[0].m.Progress().Done >= before+3 {
			return
		}
	}
	s.fail("gang does not go on after %d", before)
}

func TestTwoPhaseStopOverSeeds(t *testing.T) {
	seeds := uint64(4000)
	if testing.Short() || raceEnabled {
		seeds = 500
	}
	hows := map[string]int{}
	for seed := range seeds {
		s := newSim(t, seed)
		how := s.run()
		if how == "killed" {
			quick := true // a silent rank is the one excuse
			for _, k := range s.ranks {
				quick = quick && !k.silent
			}
			if quick {
				s.fail("killed although every rank answers; stop %+v", s.stop)
			}
		}
		if how == "aborted" || how == "resumed" {
			s.goesOn()
		}
		hows[how]++
	}
	for _, how := range []string{"killed", "stopped", "aborted", "resumed"} {
		if hows[how] < int(seeds)/100 {
			t.Errorf("the seeds show %s only %d times: %v", how, hows[how], hows)
		}
	}
	t.Log(hows)
}

func TestStopTakesTheHighestBegun(t *testing.T) {
	s := NewStop("a", ModeStop, 3)
	s.DeadlineMs = 100
	for r, begun := range []int64{7, 8, 7} {
		if _, ok := s.Step(); ok {
			t.Fatal("decided early")
		}
		if err := s.Prepared(r, begun); err != nil {
			t.Fatal(err)
		}
	}
	if step, ok := s.Step(); !ok || step != 8 || s.Verdict(0) != StopCommit {
		t.Fatal(step, ok)
	}
	if err := s.Abort(); !errors.Is(err, ErrDecided) {
		t.Fatal(err)
	}
	s.Prepared(0, 9) // a stray answer changes nothing
	s.Reached(0, 8)
	s.Reached(1, 8)
	if s.Complete() || !slices.Equal(s.Missing(), []int{2}) || s.Verdict(100) != StopKill {
		t.Fatalf("%+v", s)
	}
	if err := s.Reached(2, 7); !errors.Is(err, ErrSplit) || s.Verdict(0) != StopKill {
		t.Fatal(err)
	}
	if err := s.Prepared(3, 1); !errors.Is(err, ErrNoRank) {
		t.Fatal(err)
	}
}

func TestUnsynchronisedRanksStopAtTheirOwnBoundary(t *testing.T) {
	s := NewStop("a", ModeStop, 2)
	s.Sync = SyncNone
	for r, begun := range []int64{3, 9} {
		m := NewMachine(Message{Rank: r, WorldSize: 2, Sync: SyncNone})
		for step := int64(1); step <= begun; step++ {
			m.Begin(step)
			if step < begun {
				m.Done(step, 0, 0)
			}
		}
		s.Prepared(r, m.On(Message{Type: TypePrepare, ID: "a", Mode: ModeStop})[0].Begun)
		if got := m.On(Message{Type: TypeCommit, ID: "a", Mode: ModeStop, Step: 9}); len(got) != 0 {
			t.Fatal(got)
		}
		m.Done(begun, 0, 0)
		if d, err := m.Begin(begun + 1); d != Save || err != nil {
			t.Fatal(d, err)
		}
		s.Reached(r, m.Stopped(begun).Step)
	}
	if !s.Complete() || s.At[0] != 3 || s.At[1] != 9 {
		t.Fatalf("%+v", s)
	}
}
