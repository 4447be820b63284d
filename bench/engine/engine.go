package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"sluice/bench/perf"
	"sluice/nodes/simgpu"
)

// phase is where the engine stands between start and sleep.
type phase int32

const (
	loading phase = iota
	awake
	fallingAsleep
	asleep
	waking
)

var phaseNames = [...]string{"loading", "awake", "falling asleep", "asleep", "waking"}

func (p phase) String() string { return phaseNames[p] }

var (
	errLoading = errors.New("engine: still loading")
	errLevel   = errors.New("engine: sleep level must be 1 or 2")
)

// engine is one running instance.
type engine struct {
	cfg   Config
	stats stats
	batch *batcher
	gpus  gpus
	life  context.Context // ends with the process
	ids   atomic.Int64

	faults faultMemory
	stored stored

	// turn serialises load, sleep and wake; the holder of turn alone moves now
	// and level.
	turn  sync.Mutex
	now   atomic.Int32 // a phase
	level int          // of the sleep we are in, guarded by turn
}

// Run serves until ctx ends, and then for DrainMs what still runs. It returns
// nil after that, and an error when it could not start or serve: ErrConfig,
// simgpu.ErrOutOfMemory, simgpu.ErrBusy and simgpu.ErrLost among them.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	contexts, err := simgpu.FromEnv()
	if err != nil {
		return fmt.Errorf("engine: attach gpus: %w", err)
	}
	held := gpus(contexts)
	defer held.close()

	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("engine: listen: %w", err)
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	e, err := newEngine(life, cfg, held)
	if err != nil {
		listener.Close()
		return err
	}
	return e.serve(ctx, end, listener)
}

func newEngine(life context.Context, cfg Config, held gpus) (*engine, error) {
	profile, err := perf.Lookup(cfg.Model, cfg.GPU, cfg.TP)
	if err != nil {
		return nil, err
	}
	e := &engine{cfg: cfg, gpus: held, life: life}
	e.batch = newBatcher(scheduler{
		profile: profile, maxBatch: cfg.MaxBatch, maxWaiting: cfg.MaxWaiting,
		kvLimit: cfg.KVTokens, prefillTokens: cfg.PrefillTokens,
	}, cfg.Speed, &e.stats)
	return e, nil
}

// serve runs the loop, the loading and the listener, and ends them in order.
func (e *engine) serve(ctx context.Context, end context.CancelFunc, listener net.Listener) error {
	server := &http.Server{
		Handler:           e.routes(),
		ReadHeaderTimeout: 10 * time.Second,
		MaxHeaderBytes:    64 << 10,
	}
	var running sync.WaitGroup
	running.Go(func() { e.batch.run(e.life) })
	failed := make(chan error, 3)
	running.Go(func() {
		if err := e.gpus.watch(e.life); err != nil {
			failed <- err
		}
	})
	running.Go(func() {
		if err := e.load(); err != nil {
			failed <- err
		}
	})
	running.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("engine: serve: %w", err)
		}
	})
	if e.cfg.OnListen != nil {
		e.cfg.OnListen(listener.Addr().String())
	}
	var err error
	select {
	case <-ctx.Done():
		grace, cancel := context.WithTimeout(e.life, time.Duration(e.cfg.DrainMs)*time.Millisecond)
		_ = e.batch.drain(grace, errStopped) // what is left then is cut below
		cancel()
	case err = <-failed:
	}
	// Cutting sequences first lets handlers answer; then connections close.
	end()
	grace, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	_ = server.Shutdown(grace)
	cancel()
	_ = server.Close()
	running.Wait()
	return err
}

// load takes the GPUs and the loading time, and opens for requests.
func (e *engine) load() error {
	e.turn.Lock()
	defer e.turn.Unlock()
	if err := e.gpus.wake(e.cfg.ActiveBytes, 0); err != nil {
		return fmt.Errorf("engine: load: %w", err)
	}
	if e.pass(e.cfg.LoadMs) == nil {
		e.now.Store(int32(awake))
		e.batch.open()
	}
	return nil
}

// pass lets simulated time pass; an error means that the process ends.
func (e *engine) pass(simulatedMs int64) error {
	d := time.Duration(float64(simulatedMs) / e.cfg.Speed * float64(time.Millisecond))
	if d <= 0 {
		return e.life.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-e.life.Done():
		return errStopped
	}
}

func (e *engine) phase() phase { return phase(e.now.Load()) }

// asleepNow is true from the order to sleep until awake again.
func (e *engine) asleepNow() bool { p := e.phase(); return p != awake && p != loading }

// sleep finishes what was accepted, ends computing and gives memory back. At
// level 2 the weights are not kept: nothing stays mapped and waking loads anew.
// Asleep already, it does nothing.
func (e *engine) sleep(level int) error {
	if level != 1 && level != 2 {
		return fmt.Errorf("%w, not %d", errLevel, level)
	}
	if e.phase() == loading {
		return errLoading
	}
	e.turn.Lock()
	defer e.turn.Unlock()
	if e.phase() == asleep {
		return nil
	}
	e.now.Store(int32(fallingAsleep))
	if err := e.batch.drain(e.life, errAsleep); err != nil {
		return errStopped
	}
	if err := e.pass(e.cfg.SleepMs); err != nil {
		return err
	}
	err := e.gpus.rest(e.restBytes(level))
	e.level = level
	e.now.Store(int32(asleep))
	return err
}

func (e *engine) restBytes(level int) int64 {
	if level == 2 {
		return 0
	}
	return e.cfg.ResidentBytes
}

// wake takes the GPUs again. If it gets not all of them, it has none, and the
// engine stays asleep. Awake already, it does nothing.
func (e *engine) wake() error {
	if e.phase() == loading {
		return errLoading
	}
	e.turn.Lock()
	defer e.turn.Unlock()
	if e.phase() == awake {
		return nil
	}
	e.now.Store(int32(waking))
	if err := e.gpus.wake(e.cfg.ActiveBytes, e.restBytes(e.level)); err != nil {
		e.now.Store(int32(asleep))
		return fmt.Errorf("engine: wake up: %w", err)
	}
	takes := e.cfg.WakeMs
	if e.level == 2 {
		takes = e.cfg.LoadMs
	}
	if err := e.pass(takes); err != nil {
		return err
	}
	e.now.Store(int32(awake))
	e.batch.open()
	return nil
}
