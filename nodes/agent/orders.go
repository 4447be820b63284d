package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sluice/nodes"
	"sluice/nodes/rank"
)

// errLater is not an error: a worker will give the answer.
var errLater = errors.New("agent: answer follows")

// onOrder obeys an order or says why not. An id that is known gets its earlier
// answer, so the leader may send orders again freely.
func (o *owner) onOrder(ord nodes.Order) {
	if ord.ID == "" || ord.Holder == "" {
		o.send(nodes.Frame{Answer: &nodes.Answer{ID: ord.ID, Holder: ord.Holder, Err: ErrBadOrder.Error() + ": needs id and holder"}})
		return
	}
	if ord.Term < o.term {
		// Not remembered: it is the leader that is wrong, not the order.
		err := fmt.Errorf("%w: %d, this agent obeys %d", ErrOldTerm, ord.Term, o.term)
		o.send(nodes.Frame{Answer: &nodes.Answer{ID: ord.ID, Holder: ord.Holder, Err: err.Error()}})
		return
	}
	o.raise(ord.Term)
	if ans, ok := o.answers.get(ord.ID); ok {
		o.send(nodes.Frame{Answer: &ans})
		return
	}
	if o.pending[ord.ID] {
		return
	}
	if err := o.obey(ord); errors.Is(err, errLater) {
		o.pending[ord.ID] = true
	} else {
		o.answer(ord, err)
	}
}

// answer remembers and sends.
func (o *owner) answer(ord nodes.Order, err error) {
	delete(o.pending, ord.ID)
	ans := nodes.Answer{ID: ord.ID, Holder: ord.Holder}
	if err != nil {
		ans.Err, ans.Lasting = err.Error(), errors.Is(err, ErrFiles)
		o.cfg.Log.Warn("order refused", "kind", ord.Kind, "holder", ord.Holder, "error", err)
	} else if h := o.holders[ord.Holder]; h != nil {
		ans.Port = h.rec.Port
		// The states that follow from the order come before its answer.
		o.tell(h, o.cfg.NowMs())
	}
	// Forgetting is not remembered: it is idempotent anyway, and its id may come
	// again with a later holder of the same name. So is pruning, of which there
	// is one a checkpoint.
	if ord.Kind != nodes.OrderForget && ord.Kind != nodes.OrderPrune {
		o.answers.put(ans)
		o.write(entry{Answer: &ans}, false)
	}
	o.send(nodes.Frame{Answer: &ans})
}

func (o *owner) obey(ord nodes.Order) error {
	if ord.Kind == nodes.OrderPrepare || ord.Kind == nodes.OrderStart {
		return o.obeyBegin(ord)
	}
	h := o.holders[ord.Holder]
	if h == nil {
		switch ord.Kind {
		case nodes.OrderStop, nodes.OrderKill, nodes.OrderForget:
			return nil // it is true already
		}
		return ErrUnknownHolder
	}
	if g := h.rec.Spec.Generation; g != ord.Generation {
		return fmt.Errorf("%w: %d is here, the order names %d", ErrGeneration, g, ord.Generation)
	}
	if h.checking {
		return fmt.Errorf("%w: it is being prepared", ErrState)
	}
	switch ord.Kind {
	case nodes.OrderStop, nodes.OrderKill:
		o.want(h, ord.Kind, ord.GraceMs, ord.Reason)
		return nil
	case nodes.OrderForget:
		return o.obeyForget(h)
	case nodes.OrderSleep:
		return o.obeySleep(h, ord)
	case nodes.OrderWake:
		return o.obeyWake(h, ord)
	case nodes.OrderRankPrepare, nodes.OrderRankCommit, nodes.OrderRankAbort, nodes.OrderRankResume:
		return o.obeyRank(h, ord)
	case nodes.OrderPrune:
		return o.obeyPrune(h, ord)
	}
	return fmt.Errorf("%w: unknown kind %q", ErrBadOrder, ord.Kind)
}

// obeyBegin takes prepare and start.
func (o *owner) obeyBegin(ord nodes.Order) error {
	if err := checkSpec(ord); err != nil {
		return err
	}
	start := ord.Kind == nodes.OrderStart
	h := o.holders[ord.Holder]
	switch {
	case h == nil:
		if len(o.list) >= MaxHolders {
			return ErrFull
		}
	case h.rec.Spec.Generation != ord.Generation:
		return fmt.Errorf("%w: %d is here, the order names %d", ErrGeneration, h.rec.Spec.Generation, ord.Generation)
	case h.checking:
		return fmt.Errorf("%w: it is being prepared", ErrState)
	case h.rec.Exited || h.state == nodes.StateGone || h.rec.Want == nodes.OrderStop || h.rec.Want == nodes.OrderKill:
		return fmt.Errorf("%w: it has ended or is ending", ErrState)
	case h.state != nodes.StatePrepared:
		return nil // started already
	default:
		if start {
			o.begin(h, *ord.Spec)
		}
		return nil
	}
	h = o.newHolder(record{Spec: *ord.Spec, State: nodes.StatePrepared})
	h.checking = true
	o.add(h)
	o.check(h, ord, start)
	return errLater
}

// check proves the GPUs free and the files there, beside the owner.
func (o *owner) check(h *holder, ord nodes.Order, start bool) {
	o.work(o.ctx, func(context.Context) func() {
		files := checkFiles(ord.Spec, o.cfg.CheckpointRoot)
		obs := o.observe(nil)
		return func() {
			err := files
			if err == nil {
				if why := judgeFree(h.claim(), obs, o.claims(h), o.memory(), true); why != "" {
					err = fmt.Errorf("%w: %s", ErrGPUs, why)
				}
			}
			if err == nil {
				err = o.givePort(h)
			}
			if err != nil {
				o.drop(h)
				o.answer(ord, err)
				return
			}
			h.checking = false
			o.save(h)
			if start {
				o.begin(h, h.rec.Spec)
			}
			o.answer(ord, nil)
		}
	})
}

func (o *owner) memory() map[string]int64 {
	m := make(map[string]int64, len(o.gpus))
	for uuid, g := range o.gpus {
		m[uuid] = g.MemoryBytes
	}
	return m
}

// givePort picks the port of a replica, and of rank 0 whose order names none.
func (o *owner) givePort(h *holder) error {
	r := h.rec.Spec.Rank
	if r != nil && (r.Rank != 0 || r.MasterPort != 0) {
		h.rec.Port = r.MasterPort
		return nil
	}
	port, err := o.ports.pick(func(port int) bool {
		for _, x := range o.list {
			if x.rec.Port == port && x.state != nodes.StateGone {
				return true
			}
		}
		return false
	})
	h.rec.Port = port
	return err
}

// begin starts a prepared holder: the intent is on disk before anything is
// forked, so an agent that dies in between finds it.
func (o *owner) begin(h *holder, spec nodes.HolderSpec) {
	h.rec.Spec, h.rec.Started = spec, true
	if r := h.rec.Spec.Rank; r != nil && r.Rank == 0 && r.MasterPort == 0 {
		r.MasterPort = h.rec.Port
	}
	h.state, h.rec.Reason = nodes.StateStarting, ""
	rec := h.rec
	rec.State = h.state
	o.write(entry{Holder: &rec}, true)
	o.launch(h)
}

func (o *owner) obeyForget(h *holder) error {
	if h.state != nodes.StateGone {
		return fmt.Errorf("%w: %s is %s, only what is gone can be forgotten", ErrState, h.rec.Spec.ID, h.state)
	}
	o.write(entry{Forget: h.rec.Spec.ID}, false)
	// A later holder of this name may have orders of the same ids.
	o.answers.forget(h.rec.Spec.ID)
	o.drop(h)
	o.keepLog(h)
	// Moved at once, since a holder of this id may start next; removed aside.
	o.trashed++
	trash := filepath.Join(o.cfg.DataDir, "trash", fmt.Sprintf("%d-%d", o.cfg.NowMs(), o.trashed))
	if err := os.Rename(h.dir, trash); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrFiles, err)
	}
	o.work(o.ctx, func(context.Context) func() {
		_ = os.RemoveAll(trash)
		return nil
	})
	return nil
}

func (o *owner) obeySleep(h *holder, ord nodes.Order) error {
	r := h.rec.Spec.Replica
	switch {
	case r == nil || r.Sleep == nodes.SleepNone:
		return fmt.Errorf("%w: %s cannot sleep", ErrState, h.rec.Spec.ID)
	case h.state == nodes.StateAsleep && !h.rising, h.rec.Want == nodes.OrderSleep:
		return nil
	case h.rec.Want != "" || (h.state != nodes.StateReady && h.state != nodes.StateUnwell):
		return fmt.Errorf("%w: %s is %s", ErrState, h.rec.Spec.ID, h.state)
	}
	o.want(h, nodes.OrderSleep, ord.GraceMs, ord.Reason)
	return nil
}

func (o *owner) obeyWake(h *holder, ord nodes.Order) error {
	switch {
	case h.rec.Want == nodes.OrderWake, h.state == nodes.StateReady && h.rec.Want == "":
		return nil
	case h.rec.Want == nodes.OrderSleep && !h.calling && !h.toldToSleep && h.state != nodes.StateAsleep:
		// Not yet told to sleep: it stays awake.
		h.rec.Want, h.blocked = "", ""
		o.save(h)
		return nil
	case h.rec.Want != "" || h.state != nodes.StateAsleep:
		return fmt.Errorf("%w: %s is %s", ErrState, h.rec.Spec.ID, h.state)
	}
	if err := o.mayRise(h); err != nil {
		return err
	}
	h.rising = true
	o.want(h, nodes.OrderWake, 0, "")
	h.rec.Reason = ""
	return nil
}

// mayRise checks that a resident may become active on its GPUs. Our own
// holders are judged by their proved states.
func (o *owner) mayRise(h *holder) error {
	if why := judgeFree(h.claim(), o.seen, o.claims(h), o.memory(), false); why != "" {
		return fmt.Errorf("%w: %s", ErrGPUs, why)
	}
	return nil
}

// obeyRank passes a rank order on, and keeps it for ranks that connect later.
func (o *owner) obeyRank(h *holder, ord nodes.Order) error {
	r := h.rec.Spec.Rank
	switch {
	case r == nil || !r.Protocol:
		return fmt.Errorf("%w: %s does not speak the rank protocol", ErrState, h.rec.Spec.ID)
	case h.rec.Exited || h.state == nodes.StateGone || h.state == nodes.StatePrepared:
		return fmt.Errorf("%w: %s is %s", ErrState, h.rec.Spec.ID, h.state)
	}
	m := rankMessage(ord)
	if err := m.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrBadOrder, err)
	}
	if ord.Kind == nodes.OrderRankResume && h.state == nodes.StateYielded && !h.rising {
		if err := o.mayRise(h); err != nil {
			return err
		}
		h.rising = true
	}
	ord.Spec = nil
	h.rec.RankOrder = &ord
	o.save(h)
	for _, c := range h.conns {
		o.sendRank(h, c, m)
	}
	return nil
}

func rankMessage(ord nodes.Order) rank.Message {
	m := rank.Message{ID: ord.StopID}
	switch ord.Kind {
	case nodes.OrderRankPrepare:
		m.Type, m.Mode = rank.TypePrepare, rank.Mode(ord.Mode)
	case nodes.OrderRankCommit:
		m.Type, m.Mode, m.Step = rank.TypeCommit, rank.Mode(ord.Mode), ord.Step
	case nodes.OrderRankAbort:
		m.Type = rank.TypeAbort
	case nodes.OrderRankResume:
		m.Type = rank.TypeResume
	}
	return m
}
