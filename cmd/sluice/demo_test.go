package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/bench/load"
	"sluice/gateway/admin"
	"sluice/nodes/registry"
)

func defaultDemo(t *testing.T) demoOptions {
	t.Helper()
	f := newDemoCmd().Flags()
	speed, _ := f.GetFloat64("speed")
	from, _ := f.GetFloat64("from")
	minutes, _ := f.GetFloat64("minutes")
	seed, _ := f.GetUint64("seed")
	return demoOptions{Speed: speed, From: from, Minutes: minutes, Seed: seed}
}

// The demo promises a need that moves between 3 and 6 of 8 GPUs, and an end
// within three minutes.
func TestDemoLoadIsAsPromised(t *testing.T) {
	o := defaultDemo(t)
	p, err := demoLoad(o)
	if err != nil {
		t.Fatal(err)
	}
	lo, hi := 8, 0
	for _, n := range p.Need {
		lo, hi = min(lo, n), max(hi, n)
	}
	if lo != 3 || hi != 6 {
		t.Errorf("need moves between %d and %d", lo, hi)
	}
	if seconds := (p.WarmMs + o.Minutes*60_000/o.Speed) / 1000; seconds > 160 {
		t.Errorf("the load takes %.0f s", seconds)
	}
	last := -1.0
	for _, r := range p.Requests {
		if r.AtMs < last {
			t.Fatalf("requests are not in order at %.0f ms", r.AtMs)
		}
		last = r.AtMs
	}
	if !strings.Contains(p.Text, "thinned to 0.") {
		t.Errorf("the thinning is not told: %s", p.Text)
	}
}

func TestDemoLoadRefusesWhatCannotBe(t *testing.T) {
	for _, bad := range []func(*demoOptions){
		func(o *demoOptions) { o.Speed = 0 },
		func(o *demoOptions) { o.Thin = 1.5 },
		func(o *demoOptions) { o.From = 900 },
		func(o *demoOptions) { o.Trace = filepath.Join(t.TempDir(), "none.csv") },
	} {
		o := defaultDemo(t)
		bad(&o)
		if _, err := demoLoad(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}

// A step that a rank did twice was lost once; a line that a kill cut short and
// steps only begun do not count.
func TestStepsOfCountsWhatWasDoneAgain(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "steps")
	log := `{"generation":1,"rank":0,"begun":1,"done":0}
{"generation":1,"rank":0,"begun":1,"done":1,"loss":2}
{"generation":1,"rank":0,"begun":2,"done":2,"loss":2}
{"generation":1,"rank":0,"begun":3,"done":3,"loss":2}
{"generation":1,"rank":0,"beg
{"generation":2,"rank":0,"begun":2,"done":1}
{"generation":2,"rank":0,"begun":2,"done":2,"loss":2}
{"generation":2,"rank":0,"begun":3,"done":3,"loss":2}
{"generation":2,"rank":0,"begun":4,"done":4,"loss":2}
`
	if err := os.WriteFile(prefix+".rank-0", []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	lost, done, err := stepsOf(prefix)
	if err != nil || lost != 2 || done != 4 {
		t.Errorf("lost %d, done %d, %v", lost, done, err)
	}
}

func TestDemoReportReadsEvents(t *testing.T) {
	p := &demoPlan{Speed: 10, Minutes: 1, Need: []int{4, 4}}
	run := &demoRun{LoadMs: 0, BeginMs: 1000, EndMs: 7000, Begin: books(0, 0), End: books(6, 0), Final: books(6, 0)}
	run.End.GPUs = make([]admin.GPUStatus, 8)
	r := &demoReport{Rungs: map[string]int{}, Switches: map[string]int{}, Outcomes: map[string]int{}}
	r.events([]registry.Event{
		{AtMs: 500, Kind: "reclaim", Object: "a", Rung: registry.RungYield, GPUs: []string{"x", "y"}},
		{AtMs: 550, Kind: "job", Object: "a", To: "yielded", TookMs: 50},
		{AtMs: 2000, Kind: "reclaim", Object: "b", Rung: registry.RungPause},
		{AtMs: 2100, Kind: "release", Object: "b", Rung: registry.RungPause, TookMs: 100},
		{AtMs: 2200, Kind: "release", Object: "b", Rung: registry.RungPause, TookMs: 200},
		{AtMs: 3000, Kind: "reclaim", Object: "c", Rung: registry.RungGrow},
		{AtMs: 4000, Kind: "job", Object: "a", To: "resuming"},
		{AtMs: 5000, Kind: "job", Object: "b", From: "paused", To: "preparing"},
		{AtMs: 9000, Kind: "reclaim", Object: "b", Rung: registry.RungPause},
	}, run, p)
	if len(r.Reclaims) != 2 || r.Returns != 3 || r.Rungs["yield"] != 1 || r.Rungs["pause"] != 1 {
		t.Errorf("%+v", r)
	}
	if r.Reclaims[0].AtMinute >= 0 || r.Reclaims[0].DecisionToReleaseMs != 50 || r.Reclaims[1].DecisionToReleaseMs != 200 {
		t.Errorf("%+v", r.Reclaims)
	}
	run.Results = []load.Result{{Request: load.Request{AtMs: 1000, Model: demoLong, Stream: true}, Status: 200, TTFTMs: 900}}
	r.requests(run.Results, p.Speed)
	if o := r.Objectives[0]; o.Met || o.Fraction != 0 {
		t.Errorf("9 s of the trace met a threshold of 4 s: %+v", o)
	}
	r.harvest(run, p)
	if want := 6.0 / (8*6 - 4*6); r.Harvest < want-0.01 || r.Harvest > want+0.01 {
		t.Errorf("harvest %.3f, want %.3f", r.Harvest, want)
	}
}

func books(kept, lost float64) *admin.Status {
	s := &admin.Status{}
	s.Books.GPUSeconds = map[string]float64{registry.BookTraining.String(): kept, registry.BookLost.String(): lost}
	return s
}
