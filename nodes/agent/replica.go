package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sluice/nodes"
)

const (
	// A starting replica is asked with a pause that grows between these.
	probeMinMs = 50
	probeMaxMs = 250
	// A ready one is asked every probeReadyMs; maxMisses in a row make it
	// unwell. It is never ended for it: a busy engine answers late.
	probeReadyMs   = 1000
	probeTimeoutMs = 2000
	maxMisses      = 3
	// callTimeoutMs bounds one call of sleep or wake.
	callTimeoutMs = 120_000
	// quietWaitMs bounds the wait for the engine to say that it sleeps.
	quietWaitMs  = 60_000
	engineBodyKB = 64
)

var errEngine = errors.New("engine")

// newClient makes the client for replicas: no proxy, no redirects (a replica
// must not send us elsewhere).
func newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 1, IdleConnTimeout: 5 * time.Second, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// engine is a replica's address, for workers.
type engine struct {
	client *http.Client
	url    string
}

func (o *owner) engine(h *holder) engine {
	return engine{o.client, "http://" + net.JoinHostPort(o.cfg.Host, strconv.Itoa(h.rec.Port))}
}

// call does one request and returns the body of a 200; anything else is an error.
func (e engine) call(ctx context.Context, method, path string, timeoutMs int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(timeoutMs)*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, e.url+path, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errEngine, err)
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errEngine, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, engineBodyKB<<10))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errEngine, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: %s %s: %s %q", errEngine, method, path, resp.Status, strings.TrimSpace(string(body[:min(len(body), 200)])))
	}
	return body, nil
}

// sleeping asks the engine whether it sleeps.
func (e engine) sleeping(ctx context.Context) (bool, error) {
	body, err := e.call(ctx, http.MethodGet, "/is_sleeping", probeTimeoutMs)
	if err != nil {
		return false, err
	}
	var is struct {
		IsSleeping *bool `json:"is_sleeping"`
	}
	if err := json.Unmarshal(body, &is); err != nil || is.IsSleeping == nil {
		return false, fmt.Errorf("%w: /is_sleeping answered %q", errEngine, body)
	}
	return *is.IsSleeping, nil
}

// advanceHealth keeps the replica's health path watched.
func (o *owner) advanceHealth(h *holder, now int64) int64 {
	watched := (h.state == nodes.StateStarting || h.serving()) && !h.calling && !h.toldToSleep
	if !watched || h.probing {
		return never
	}
	if now < h.probeAtMs {
		return h.probeAtMs
	}
	h.probing = true
	e, path := o.engine(h), h.rec.Spec.Replica.HealthPath
	if path == "" {
		path = "/health"
	}
	o.work(h.ctx, func(ctx context.Context) func() {
		_, err := e.call(ctx, http.MethodGet, path, probeTimeoutMs)
		return func() {
			h.probing = false
			o.onHealth(h, err)
		}
	})
	return never
}

func (o *owner) onHealth(h *holder, err error) {
	now := o.cfg.NowMs()
	if err == nil {
		h.misses, h.probePauseMs, h.probeAtMs = 0, 0, now+probeReadyMs
		if h.state == nodes.StateStarting || h.state == nodes.StateUnwell {
			o.set(h, nodes.StateReady, "")
		}
		return
	}
	h.misses++
	if h.state == nodes.StateStarting {
		h.probePauseMs = min(max(h.probePauseMs*3/2, probeMinMs), probeMaxMs)
		h.probeAtMs = now + h.probePauseMs
		return
	}
	h.probeAtMs = now + probeReadyMs
	if h.state == nodes.StateReady && h.misses >= maxMisses {
		o.set(h, nodes.StateUnwell, "health: "+err.Error())
	}
}

// advanceSleep waits for the leases, then has the engine sleep.
func (o *owner) advanceSleep(h *holder, now int64) int64 {
	if h.calling || h.proving {
		return never
	}
	if h.toldToSleep {
		return o.advanceAsleep(h, now)
	}
	if ok, due := o.drained(h, now); !ok {
		return due
	}
	h.calling = true
	e := o.engine(h)
	o.work(h.ctx, func(ctx context.Context) func() {
		err := e.putToSleep(ctx)
		return func() {
			h.calling = false
			if h.rec.Want != nodes.OrderSleep || h.rec.Exited {
				return
			}
			if err != nil {
				o.notAsleep(h, err)
				return
			}
			h.toldToSleep, h.proofs, h.proofAtMs = true, 0, 0
		}
	})
	return never
}

// putToSleep returns nil when the engine itself says that it sleeps.
func (e engine) putToSleep(ctx context.Context) error {
	_, err := e.call(ctx, http.MethodPost, "/sleep?level=1", callTimeoutMs)
	if err != nil {
		if asleep, aerr := e.sleeping(ctx); aerr != nil || !asleep {
			return err
		}
	}
	for waited := int64(0); ; waited += probeMinMs {
		asleep, err := e.sleeping(ctx)
		if asleep {
			return nil
		}
		if waited >= quietWaitMs {
			return fmt.Errorf("%w: not asleep after %d ms: %w", errEngine, quietWaitMs, err)
		}
		if !wait(ctx, probeMinMs) {
			return ctx.Err()
		}
	}
}

// notAsleep gives the replica back to the gateways.
func (o *owner) notAsleep(h *holder, err error) {
	h.rec.Want, h.blocked = "", ""
	h.misses, h.probeAtMs = 0, 0
	o.set(h, h.state, "sleep failed: "+err.Error())
}

// advanceAsleep proves the engine quiet after it said that it sleeps.
func (o *owner) advanceAsleep(h *holder, now int64) int64 {
	if h.proofs >= maxProofs {
		return never
	}
	if now < h.proofAtMs {
		return h.proofAtMs
	}
	o.proveQuiet(h, func() {
		if h.rec.Want != nodes.OrderSleep {
			return
		}
		h.rec.Want, h.toldToSleep = "", false
		o.set(h, nodes.StateAsleep, "")
	})
	return never
}

// callWake wakes the engine and waits for its health path. One that fails to
// wake and says that it sleeps stays asleep; any other is watched like one that
// is awake.
func (o *owner) callWake(h *holder) {
	h.calling = true
	e, path := o.engine(h), h.rec.Spec.Replica.HealthPath
	if path == "" {
		path = "/health"
	}
	o.work(h.ctx, func(ctx context.Context) func() {
		err := e.wake(ctx, path)
		asleep := false
		if err != nil {
			asleep, _ = e.sleeping(ctx)
		}
		return func() {
			h.calling = false
			if h.rec.Want != nodes.OrderWake || h.rec.Exited {
				return
			}
			h.rec.Want, h.rising = "", false
			h.misses, h.probeAtMs = 0, 0
			switch {
			case err == nil:
				o.set(h, nodes.StateReady, "")
			case asleep:
				o.set(h, nodes.StateAsleep, "wake failed: "+err.Error())
			default:
				o.set(h, nodes.StateUnwell, "wake failed: "+err.Error())
			}
		}
	})
}

func (e engine) wake(ctx context.Context, path string) error {
	if _, err := e.call(ctx, http.MethodPost, "/wake_up", callTimeoutMs); err != nil {
		return err
	}
	for waited := int64(0); ; {
		_, err := e.call(ctx, http.MethodGet, path, probeTimeoutMs)
		if err == nil {
			return nil
		}
		if waited >= quietWaitMs {
			return fmt.Errorf("%w: woken, and not healthy after %d ms: %w", errEngine, quietWaitMs, err)
		}
		pause := int64(10)
		if !wait(ctx, pause) {
			return ctx.Err()
		}
		waited += pause
	}
}
