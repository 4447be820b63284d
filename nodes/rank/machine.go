package rank

import (
	"errors"
	"fmt"
)

// Limits of a Machine, each with its answer when full.
const (
	// MaxUnacked bounds the messages kept for an agent that is away. When full
	// the oldest is dropped: a newer checkpoint has replaced it.
	MaxUnacked = 256
	// MaxEnded bounds the ids of ended orders that are remembered. An older id
	// is taken as new; the controller answers its prepared with abort.
	MaxEnded = 64
)

// ErrStep says that the caller of a Machine broke its contract about steps.
var ErrStep = errors.New("rank protocol: step out of order")

// Decision is the Machine's answer at a step boundary.
type Decision uint8

// The decisions of Begin.
const (
	Proceed Decision = iota // the step has begun
	Wait                    // held or yielded: ask again after the next order
	Yield                   // synchronise, deactivate, keep memory, then call Yielded
	Resume                  // activate again, then call Resumed
	Save                    // save, then call Stopped and exit
)

type orderPhase uint8

const (
	orderHeld      orderPhase = iota // prepared answered, no further step begins
	orderCommitted                   // on the way to step
	orderYielding                    // at step; the caller deactivates
	orderYielded
	orderResuming // resume received; the caller activates
	orderSaving   // at step; the caller saves
	orderStopped
)

// order is the one order a rank follows at a time.
type order struct {
	id     string
	mode   Mode
	phase  orderPhase
	begun  int64  // as answered to prepare; a repeated prepare gets it again
	commit int64  // S as ordered; valid from orderCommitted on
	step   int64  // where this rank stops: S, or its own boundary with SyncNone
	resume bool   // resume came while yielding
	under  *order // the yielded order beneath; abort falls back to it
}

type ended struct {
	id     string
	answer Message
}

// Machine is the rank's side of the protocol as a pure state machine: orders and
// the training loop's calls go in, messages for the agent come out. It is not
// safe for concurrent use. Make one with NewMachine; it lives as long as the
// rank's process, across any number of connections.
type Machine struct {
	hello    Message
	progress Message // type step; begun == done or done+1
	phase    Phase
	current  *order // nil: no order, steps begin freely
	ended    []ended
	unacked  []Message
	seq      int64
	dropped  int64
	last     *Message // finished, once said
}

// NewMachine starts at hello.Step, the step resumed from.
func NewMachine(hello Message) *Machine {
	hello.Type, hello.Version = TypeHello, Version
	return &Machine{
		hello:    hello,
		progress: Message{Type: TypeStep, Begun: hello.Step, Done: hello.Step, Samples: hello.Samples},
		phase:    PhaseTrain,
	}
}

// Progress is the step message as of now.
func (m *Machine) Progress() Message { return m.progress }

// PhaseMessage is the phase message as of now.
func (m *Machine) PhaseMessage() Message { return Message{Type: TypePhase, Phase: m.phase} }

// SetPhase notes what the rank is doing.
func (m *Machine) SetPhase(p Phase) { m.phase = p }

// Held reports whether an order keeps the rank from beginning a step now.
func (m *Machine) Held() bool {
	o := m.current
	return o != nil && !(o.phase == orderCommitted && m.progress.Begun < o.step)
}

// Unacked is the number of messages that wait for an ack, Dropped how many were
// given up because MaxUnacked was reached.
func (m *Machine) Unacked() int { return len(m.unacked) }

// Dropped is documented at Unacked.
func (m *Machine) Dropped() int64 { return m.dropped }

// Begin asks to begin step, which must be the one after the last, at a boundary.
func (m *Machine) Begin(step int64) (Decision, error) {
	if m.last != nil || step != m.progress.Begun+1 || m.progress.Done != m.progress.Begun {
		return Wait, fmt.Errorf("%w: begin %d after begun %d, done %d", ErrStep, step, m.progress.Begun, m.progress.Done)
	}
	o := m.current
	if o == nil {
		m.progress.Begun = step
		return Proceed, nil
	}
	switch o.phase {
	case orderCommitted:
		if m.progress.Begun < o.step {
			m.progress.Begun = step
			return Proceed, nil
		}
		if o.mode == ModeStop {
			o.phase = orderSaving
			return Save, nil
		}
		o.phase = orderYielding
		return Yield, nil
	case orderYielding:
		return Yield, nil
	case orderResuming:
		return Resume, nil
	case orderSaving, orderStopped:
		return Save, nil
	}
	return Wait, nil
}

// Done ends the step that was begun. Samples is cumulative.
func (m *Machine) Done(step int64, loss float64, samples int64) error {
	if step != m.progress.Begun || m.progress.Done == m.progress.Begun {
		return fmt.Errorf("%w: end %d while begun is %d, done %d", ErrStep, step, m.progress.Begun, m.progress.Done)
	}
	m.progress.Done, m.progress.Samples, m.progress.Loss = step, samples, nil
	if finite(loss) {
		m.progress.Loss = &loss
	}
	return nil
}

// Yielded follows a Yield: the device is quiet. The answers are to be sent.
func (m *Machine) Yielded() []Message {
	o := m.current
	if o == nil || o.phase != orderYielding {
		return nil
	}
	o.phase = orderYielded
	if o.resume {
		o.phase = orderResuming
	}
	return []Message{m.yielded(o)}
}

// Resumed follows a Resume: the device is active again.
func (m *Machine) Resumed() []Message {
	o := m.current
	if o == nil || o.phase != orderResuming {
		return nil
	}
	return m.endResumed(o)
}

// Shard notes a written shard, keeps it until it is acknowledged, and returns
// the message to send. Generation is filled in.
func (m *Machine) Shard(s Message) Message {
	s.Type, s.Generation = TypeShard, m.hello.Generation
	return m.keep(s)
}

// Stopped follows a Save: the shard is safe and the rank is about to exit.
func (m *Machine) Stopped(step int64) Message {
	s := Message{Type: TypeStopped, Step: step, Samples: m.progress.Samples}
	if o := m.current; o != nil {
		o.phase = orderStopped
		s.ID = o.id
	}
	return m.keep(s)
}

// Finished says that the job's last step is done and saved. It ends any order:
// an exited rank has done more than a stop could ask.
func (m *Machine) Finished(step int64) Message {
	m.current = nil
	s := m.keep(Message{Type: TypeFinished, Step: step, Samples: m.progress.Samples})
	m.last = &s
	return s
}

// Replay is what a new connection starts with: who this is, how far it is, what
// the agent may have missed, and the order it follows.
func (m *Machine) Replay() []Message {
	out := []Message{m.hello, m.progress, m.PhaseMessage()}
	out = append(out, m.unacked...)
	if o := m.current; o != nil {
		out = append(out, Message{Type: TypePrepared, ID: o.id, Begun: o.begun})
		if y := o.yieldedOrder(); y != nil {
			out = append(out, m.yielded(y))
		}
	}
	return out
}

// yieldedOrder is the order under which the device is quiet, if any.
func (o *order) yieldedOrder() *order {
	for ; o != nil; o = o.under {
		if o.phase == orderYielded {
			return o
		}
	}
	return nil
}

func (m *Machine) yielded(o *order) Message {
	return Message{Type: TypeYielded, ID: o.id, Step: m.progress.Done}
}

func (m *Machine) keep(s Message) Message {
	m.seq++
	s.Seq = m.seq
	if len(m.unacked) == MaxUnacked {
		m.unacked = append(m.unacked[:0], m.unacked[1:]...)
		m.dropped++
	}
	m.unacked = append(m.unacked, s)
	return s
}
