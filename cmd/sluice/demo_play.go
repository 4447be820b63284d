package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"

	"sluice/bench/load"
	"sluice/gateway/admin"
	"sluice/slo"
)

// demoRun is what was seen while the load was played.
type demoRun struct {
	Results    []load.Result
	Begin      *admin.Status // as the judged part of the load began
	End        *admin.Status // as it ended
	Final      *admin.Status // after the jobs had saved
	Minimum    map[string]int
	LoadMs     int64 // fleet time at which the warm-up began
	BeginMs    int64
	EndMs      int64
	CPUSeconds float64 // of all processes of the floor, load generator included
	WallS      float64
}

const (
	demoViewEvery = 500 * time.Millisecond
	demoSayEvery  = 10 * time.Second
	recentMs      = 60_000 // of the trace, for the live figures
)

// playDemo plays the load while the picture is drawn, then pauses the jobs so
// that all work that is kept is also saved.
func playDemo(ctx context.Context, f *demoFloor, p *demoPlan, live bool, say func(string, ...any)) (*demoRun, error) {
	run := &demoRun{}
	first, err := f.status(ctx)
	if err != nil {
		return nil, err
	}
	run.LoadMs = first.NowMs
	cpu := f.cpuSeconds()
	begin := time.Now()
	watch := &demoWatch{floor: f, plan: p, begin: begin, live: live, say: say}
	watchCtx, stopWatch := context.WithCancel(ctx)
	watchEnd := make(chan struct{})
	go func() {
		defer close(watchEnd)
		watch.run(watchCtx)
	}()
	judged := make(chan error, 1)
	go func() { judged <- run.begin(watchCtx, f, time.Duration(p.WarmMs*float64(time.Millisecond))) }()
	run.Results, err = load.Run(ctx, load.Config{Addr: f.dataAddr}, p.Requests, watch.heard)
	stopWatch()
	<-watchEnd
	if beginErr := <-judged; err == nil {
		err = beginErr
	}
	if err != nil {
		return nil, err
	}
	if run.End, err = f.status(ctx); err != nil {
		return nil, err
	}
	run.EndMs = run.End.NowMs
	run.WallS = time.Since(begin).Seconds()
	run.CPUSeconds = f.cpuSeconds() - cpu
	say("load ended; pausing the jobs so that all kept work is saved")
	run.Final, err = f.pauseJobs(ctx)
	return run, err
}

// begin takes the reading from which the load is judged, when the warm-up ends.
func (r *demoRun) begin(ctx context.Context, f *demoFloor, after time.Duration) error {
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return errors.New("the load ended before its warm-up did")
	case <-timer.C:
	}
	st, err := f.status(ctx)
	if err != nil {
		return err
	}
	r.Begin, r.BeginMs = st, st.NowMs
	return nil
}

// pauseJobs asks all jobs to pause and waits until none holds a GPU.
func (f *demoFloor) pauseJobs(ctx context.Context) (*admin.Status, error) {
	for _, job := range []string{demoElastic, demoFixed, demoSignal} {
		if err := f.client.call(ctx, "POST", "/v1/jobs/"+job+"/pause", nil, nil); err != nil {
			return nil, fmt.Errorf("pause %s: %w", job, err)
		}
	}
	var st *admin.Status
	err := f.retry(ctx, func(ctx context.Context) error {
		var err error
		if st, err = f.status(ctx); err != nil {
			return err
		}
		for _, j := range st.Jobs {
			if j.World > 0 || j.Phase == "pending" {
				return fmt.Errorf("job %s is %s: %w", j.Name, j.Phase, errNotYet)
			}
		}
		return nil
	})
	return st, err
}

// demoWatch draws the live view, or says a line now and then.
type demoWatch struct {
	floor *demoFloor
	plan  *demoPlan
	begin time.Time
	live  bool
	say   func(string, ...any)

	mu     sync.Mutex
	recent []load.Result // guarded by mu; of the last recentMs of the trace
}

// heard takes a result as it ends.
func (w *demoWatch) heard(r *load.Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recent = append(w.recent, *r)
}

func (w *demoWatch) run(ctx context.Context) {
	every := demoSayEvery
	if w.live {
		every = demoViewEvery
		os.Stdout.WriteString("\x1b[?25l\x1b[2J")
		defer os.Stdout.WriteString("\x1b[?25h\x1b[2J\x1b[H")
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		st, err := w.floor.status(ctx)
		if err != nil {
			continue // the next look will tell; the load goes on
		}
		if w.live {
			w.draw(st)
		} else {
			w.say("%s", w.line(st))
		}
	}
}

// traceMinute is how far the trace has been played; below 0 in the warm-up.
func (w *demoWatch) traceMinute() float64 {
	return min(w.plan.Minutes, (time.Since(w.begin).Minutes()-w.plan.WarmMs/60_000)*w.plan.Speed)
}

// figures are requests/s of the trace and p99 of TTFT in trace time, by model.
func (w *demoWatch) figures() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	nowMs := float64(time.Since(w.begin).Milliseconds())
	fromMs := nowMs - recentMs/w.plan.Speed
	kept := w.recent[:0]
	hist := map[string]*slo.Histogram{demoLong: {}, demoShort: {}}
	for _, r := range w.recent {
		if r.AtMs+r.E2EMs < fromMs {
			continue
		}
		kept = append(kept, r)
		if r.OK() && r.Stream {
			hist[r.Model].Observe(r.TTFTMs * w.plan.Speed)
		}
	}
	w.recent = kept
	return fmt.Sprintf("%.1f requests/s; TTFT p99 %s %.0f ms, %s %.0f ms (objective p%.0f ≤ %d ms)",
		float64(len(kept))/(recentMs/1000), demoLong, hist[demoLong].Quantile(0.99), demoShort, hist[demoShort].Quantile(0.99), demoQuantile*100, demoTTFTMs)
}

// now is the minute of the trace and what the trace needs in it, in words.
func (w *demoWatch) now() string {
	minute := w.traceMinute()
	if minute < 0 || len(w.plan.Need) == 0 {
		return "warm-up"
	}
	need := w.plan.Need[min(int(minute*60_000/needWindowMs), len(w.plan.Need)-1)]
	return fmt.Sprintf("minute %4.1f of %g, which needs %d of 8 GPUs", minute, w.plan.Minutes, need)
}

func (w *demoWatch) line(st *admin.Status) string {
	held := map[string]int{}
	for _, g := range st.GPUs {
		held[g.State]++
	}
	return fmt.Sprintf("%s; GPUs: %d serving, %d training, %d switching, %d idle; %s",
		w.now(), held["serving"], held["trainingKept"], held["switching"], held["idle"]+held["reserved"], w.figures())
}

func (w *demoWatch) draw(st *admin.Status) {
	width, height, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		width, height = 100, 40
	}
	var b bytes.Buffer
	b.WriteString("\x1b[H")
	head := []string{
		fmt.Sprintf("sluice demo   a trace played %g times faster: %s", w.plan.Speed, w.now()),
		w.figures() + " (in trace time)",
		styled(styleDim, fmt.Sprintf("times below are this machine's, %g times shorter", w.plan.Speed)),
	}
	for _, l := range head {
		b.WriteString(ansi.Truncate(l, width, styleReset+"…") + "\x1b[K\n")
	}
	b.Write(bytes.ReplaceAll([]byte(renderStatus(*st, width, height-5)), []byte("\n"), []byte("\x1b[K\n")))
	fmt.Fprintf(&b, "\x1b[K\n%s\x1b[J", styled(styleDim, cell("ctrl-c ends it   "+boxLegend, width)))
	os.Stdout.Write(b.Bytes())
}
