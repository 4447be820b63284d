package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"sluice/nodes/rank"
)

// trainer is one rank at work. It belongs to the goroutine of Run.
type trainer struct {
	cfg     Config
	env     rank.Env
	alone   bool // no protocol: the gang looks after itself
	client  *rank.Client
	ring    *ring
	devices *devices
	log     *stepLog
	m       *model
	sums    []int64
	pacer   pacer

	done      int64 // the last step finished
	samples   int64 // consumed by the job through done
	loss      float64
	savedStep int64 // the last step saved by this generation, -1 none
	stopAsked atomic.Bool
}

// Run trains until the job's last step, an agreed stop, or an error. nil means
// finished, or saved and stopped on demand: exit 0. It returns soon after ctx
// ends, with its error, without saving.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	env, err := rank.EnvFrom(cfg.Getenv)
	if err != nil {
		return err
	}
	if err := cfg.checkWorld(env.WorldSize); err != nil {
		return err
	}
	if cfg.CheckpointDir == "" {
		cfg.CheckpointDir = env.CheckpointDir
	}
	if cfg.CheckpointDir == "" {
		return fmt.Errorf("%w: no checkpoint folder; set CheckpointDir or SLUICE_CHECKPOINT_DIR", ErrConfig)
	}
	if err := os.MkdirAll(cfg.CheckpointDir, 0o700); err != nil {
		return fmt.Errorf("making the checkpoint folder: %w", err)
	}
	t := &trainer{cfg: cfg, env: env, alone: cfg.NoProtocol || env.Socket == "", m: newModel(cfg), savedStep: -1}
	t.sums = make([]int64, len(t.m.params)+1)
	t.pacer.stepMs = cfg.MicroMs * float64(cfg.MicroBatches/env.WorldSize)
	return t.run(ctx)
}

func (t *trainer) run(ctx context.Context) (err error) {
	if t.alone {
		t.env.Socket = ""
		defer t.watchSignals()()
	}
	offer, err := t.offer()
	if err != nil {
		return err
	}
	if t.devices, err = openDevices(t.cfg); err != nil {
		return err
	}
	defer t.devices.close()
	if !t.alone { // the agent awaits a hello, before the gang comes together
		if err := t.dial(ctx, offer); err != nil {
			return err
		}
		defer t.client.Close()
		t.client.Phase(rank.PhaseLoad)
	}
	if t.log, err = openStepLog(t.cfg.StepLog, t.env.Generation, t.env.Rank); err != nil {
		return err
	}
	defer t.log.close()
	var at start
	if t.ring, at, err = join(ctx, t.env, t.cfg, offer); err != nil {
		return err
	}
	defer t.ring.close()
	if t.alone { // only now it is known where rank 0 begins
		if err := t.dial(ctx, at); err != nil {
			return err
		}
		defer t.client.Close()
	}
	if err := t.load(ctx, at, offer); err != nil {
		return err
	}
	t.client.Phase(rank.PhaseTrain)
	err = t.train(ctx)
	if cerr := ctx.Err(); cerr != nil && err != nil {
		return cerr // the exchange broke because we were told to end
	}
	return err
}

func (t *trainer) dial(ctx context.Context, at start) (err error) {
	t.env.Step, t.env.Samples = at.Step, at.Samples
	opts := rank.Options{OnYield: t.devices.quiet, OnResume: t.devices.activate}
	t.client, err = rank.DialWith(ctx, t.env, opts)
	return err
}

// offer is where this rank would begin: the manifest it was given, or without
// the protocol the newest complete checkpoint. Rank 0's is taken by all.
func (t *trainer) offer() (start, error) {
	if t.env.Resume != "" && !t.cfg.NoProtocol {
		man, err := rank.ReadManifest(t.env.Resume)
		if err != nil {
			return start{}, fmt.Errorf("resuming from SLUICE_RESUME: %w", err)
		}
		return start{Manifest: t.env.Resume, Step: man.Step, Samples: man.Samples}, nil
	}
	if !t.alone || t.env.Rank != 0 {
		return start{}, nil
	}
	man, path, passed, err := Newest(t.cfg.CheckpointDir)
	for _, why := range passed {
		t.say("passed over %s", why)
	}
	return start{Manifest: path, Step: man.Step, Samples: man.Samples}, err
}

// load brings the model to where rank 0 said. With the protocol every rank was
// named the same manifest; one that was not fails the whole start.
func (t *trainer) load(ctx context.Context, at, offer start) error {
	if !t.alone && (at.Step != offer.Step || at.Samples != offer.Samples) {
		return fmt.Errorf("%w: rank 0 resumes at step %d, this rank was given step %d", ErrJoin, at.Step, offer.Step)
	}
	path := at.Manifest
	if !t.alone {
		path = offer.Manifest // rank 0's path may be of its own node
	}
	if path != "" {
		man, err := rank.ReadManifest(path)
		if err == nil {
			err = load(man, t.m)
		}
		if err != nil {
			return fmt.Errorf("resuming at step %d: %w", at.Step, err)
		}
		if man.Step != at.Step {
			return fmt.Errorf("%w: manifest of step %d, rank 0 resumes at %d", ErrJoin, man.Step, at.Step)
		}
	}
	t.done, t.samples = at.Step, at.Samples
	t.say("start at step %d, world %d, generation %d, samples %d", t.done, t.env.WorldSize, t.env.Generation, t.samples)
	return ctx.Err()
}

// train is the loop that the rank protocol is made for.
func (t *trainer) train(ctx context.Context) error {
	for t.cfg.MaxSteps == 0 || t.done < t.cfg.MaxSteps {
		if err := ctx.Err(); err != nil {
			return err
		}
		v, err := t.client.BeginStep(t.done + 1)
		if err != nil {
			return err
		}
		switch v.Kind {
		case rank.SaveAndStop:
			if err := t.save(ctx); err != nil {
				return err
			}
			t.say("stopped after step %d", t.done)
			t.client.Stopped(t.done)
			return nil
		case rank.Resumed:
			t.pacer.reset()
		}
		stop, err := t.step(ctx, v.Step)
		if err != nil {
			return err
		}
		if err := t.between(ctx); err != nil {
			return err
		}
		if stop {
			t.say("stopped after step %d", t.done)
			return t.save(ctx)
		}
	}
	if err := t.save(ctx); err != nil {
		return err
	}
	t.say("finished at step %d, loss %.4f, samples %d", t.done, t.loss, t.samples)
	t.client.Finished(t.done)
	return nil
}

// step does one optimizer step, and says whether a stop was agreed on by signal.
func (t *trainer) step(ctx context.Context, step int64) (stop bool, err error) {
	if err := t.log.write(step, t.done, nil); err != nil {
		return false, err
	}
	clear(t.sums)
	share := t.cfg.MicroBatches / t.env.WorldSize
	for b := t.env.Rank * share; b < (t.env.Rank+1)*share; b++ {
		if err := t.m.microBatch(step, b, t.sums); err != nil {
			return false, err
		}
	}
	if err := t.pacer.wait(ctx); err != nil {
		return false, err
	}
	var flags uint32
	if t.stopAsked.Load() {
		flags = flagStop
	}
	flags, err = t.ring.reduce(step, t.sums, flags)
	if err != nil {
		return false, err
	}
	t.loss = t.m.update(t.sums)
	t.done = step
	t.samples += int64(t.cfg.MicroBatches) * int64(t.cfg.MicroBatchSamples)
	if err := t.client.EndStep(step, t.loss, t.samples); err != nil {
		return false, err
	}
	if err := t.log.write(step, step, &t.loss); err != nil {
		return false, err
	}
	if t.cfg.LogEverySteps > 0 && step%t.cfg.LogEverySteps == 0 {
		t.say("step %d loss %.4f world %d samples %d", step, t.loss, t.env.WorldSize, t.samples)
	}
	return flags&flagStop != 0, nil
}

// between does what is due after a step: evaluation and the periodic save.
func (t *trainer) between(ctx context.Context) error {
	if t.cfg.EvalEverySteps > 0 && t.done%t.cfg.EvalEverySteps == 0 {
		t.client.Phase(rank.PhaseEval)
		if err := pause(ctx, time.Duration(t.cfg.EvalMs)*time.Millisecond); err != nil {
			return err
		}
		t.client.Phase(rank.PhaseTrain)
		t.pacer.reset()
	}
	if t.cfg.SaveEverySteps > 0 && t.done%t.cfg.SaveEverySteps == 0 {
		return t.save(ctx)
	}
	return nil
}

// save writes this rank's shard of step done, unless that was just done: a stop
// that falls on a periodic save starts no second one.
func (t *trainer) save(ctx context.Context) error {
	if t.savedStep == t.done {
		return nil
	}
	t.client.Phase(rank.PhaseSave)
	s, err := writeShard(ctx, t.cfg.CheckpointDir, t.env, t.cfg, t.m, t.done, t.samples)
	if err != nil {
		return err
	}
	if t.alone {
		err = t.commit(s)
	} else {
		err = t.client.Shard(rank.Message{Step: s.Step, File: s.File, Bytes: s.Bytes, Digest: s.Digest, Scope: s.Scope, Samples: s.Samples})
	}
	if err != nil {
		return err
	}
	t.savedStep = t.done
	t.client.Phase(rank.PhaseTrain)
	t.pacer.reset()
	return nil
}

// commit waits until every shard is safe and the manifest written, so that exit
// status 0 after a stop means a complete checkpoint.
func (t *trainer) commit(s saved) error {
	blob, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return t.ring.collect(t.done, blob, func(blobs [][]byte) error {
		shards := make([]saved, len(blobs))
		for i, b := range blobs {
			if err := json.Unmarshal(b, &shards[i]); err != nil {
				return fmt.Errorf("%w: rank %d sent no shard: %s", ErrPeer, i, err.Error())
			}
		}
		return commit(t.cfg.CheckpointDir, t.env, shards)
	})
}

// watchSignals turns SIGUSR1, SIGTERM and Config.Stop into a wish that the next
// exchange spreads: one rank's is everyone's, and a second one changes nothing.
func (t *trainer) watchSignals() (end func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGTERM)
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		stop := t.cfg.Stop
		for {
			select {
			case <-signals:
			case <-stop:
				stop = nil
			case <-quit:
				return
			}
			t.stopAsked.Store(true)
		}
	}()
	return func() {
		signal.Stop(signals)
		close(quit)
		<-ended
	}
}

func (t *trainer) say(format string, args ...any) {
	if t.cfg.Log != nil && t.env.Rank == 0 {
		fmt.Fprintf(t.cfg.Log, format+"\n", args...)
	}
}

// pacer makes each step take its time against absolute deadlines, so that errors
// of single waits do not add up.
type pacer struct {
	stepMs float64
	next   time.Time
}

func (p *pacer) reset() { p.next = time.Time{} }

func (p *pacer) wait(ctx context.Context) error {
	if p.stepMs == 0 {
		return nil
	}
	step := time.Duration(p.stepMs * float64(time.Millisecond))
	now := time.Now()
	// More than a step behind (a held, slow or stopped process): no catching up.
	if p.next.IsZero() || now.Sub(p.next) > step {
		p.next = now
	}
	p.next = p.next.Add(step)
	return pause(ctx, time.Until(p.next))
}
