package rank

import "fmt"

// On takes one message from the agent and returns the answers to send at once.
// An order that cannot be followed is answered with refused, never ignored; an
// order whose id is known gets its earlier answer again.
func (m *Machine) On(in Message) []Message {
	if in.Type == TypeAck {
		m.ack(in.Seq)
		return nil
	}
	if in.Type == TypeRefused { // of our hello; the connection ends, the next one tries again
		return nil
	}
	if err := in.Validate(); err != nil {
		return m.refuse(in, err.Error())
	}
	if m.last != nil {
		return []Message{*m.last}
	}
	for _, e := range m.ended {
		if e.id == in.ID {
			return m.repeatEnded(in, e.answer)
		}
	}
	if m.current != nil && m.current.id == in.ID {
		return m.onCurrent(m.current, in)
	}
	return m.onOther(in)
}

// onOther takes an order with an id that is neither current nor remembered.
func (m *Machine) onOther(in Message) []Message {
	switch in.Type {
	case TypePrepare:
		o := m.current
		if o != nil && o.phase != orderYielded {
			return m.refuse(in, fmt.Sprintf("busy with %s; abort or resume it first", o.id))
		}
		m.current = &order{id: in.ID, mode: in.Mode, begun: m.progress.Begun, under: o}
		return []Message{{Type: TypePrepared, ID: in.ID, Begun: m.progress.Begun}}
	case TypeAbort:
		// Remembered, so that the prepare it overtook does not hold us for ever.
		return m.end(in.ID, Message{Type: TypeAborted, ID: in.ID})
	}
	return m.refuse(in, "unknown id")
}

// onCurrent takes an order about the order being followed.
func (m *Machine) onCurrent(o *order, in Message) []Message {
	switch in.Type {
	case TypePrepare:
		if in.Mode != o.mode {
			return m.refuse(in, fmt.Sprintf("prepared with mode %s", o.mode))
		}
		return []Message{{Type: TypePrepared, ID: o.id, Begun: o.begun}}
	case TypeCommit:
		return m.onCommit(o, in)
	case TypeAbort:
		if o.phase != orderHeld {
			return m.refuse(in, fmt.Sprintf("committed to step %d", o.commit))
		}
		m.current = o.under
		return m.end(o.id, Message{Type: TypeAborted, ID: o.id})
	case TypeResume:
		return m.onResume(o, in)
	}
	return m.refuse(in, "not an order")
}

func (m *Machine) onCommit(o *order, in Message) []Message {
	if in.Mode != o.mode {
		return m.refuse(in, fmt.Sprintf("prepared with mode %s", o.mode))
	}
	if o.phase != orderHeld {
		if in.Step != o.commit {
			return m.refuse(in, fmt.Sprintf("already committed to step %d", o.commit))
		}
		switch o.phase {
		case orderYielded, orderResuming:
			return []Message{m.yielded(o)}
		case orderStopped:
			return []Message{{Type: TypeStopped, ID: o.id, Step: m.progress.Done, Samples: m.progress.Samples}}
		}
		return nil // on the way; the answer comes at the step
	}
	step := in.Step
	if m.hello.Sync == SyncNone {
		step = m.progress.Begun // its own boundary
	}
	if step < m.progress.Begun {
		return m.refuse(in, fmt.Sprintf("step %d is below begun %d", in.Step, m.progress.Begun))
	}
	if o.under != nil && step != m.progress.Done {
		return m.refuse(in, fmt.Sprintf("yielded at step %d; resume first", m.progress.Done))
	}
	o.phase, o.commit, o.step = orderCommitted, in.Step, step
	if o.under != nil && o.mode == ModeYield { // quiet already; only the id changes
		under := o.under
		o.phase, o.under = orderYielded, nil
		m.end(under.id, Message{Type: TypeResumed, ID: under.id, Step: m.progress.Done})
		return []Message{m.yielded(o)}
	}
	return nil
}

func (m *Machine) onResume(o *order, in Message) []Message {
	if o.mode != ModeYield {
		return m.refuse(in, "a stop cannot be resumed; the next generation resumes from its manifest")
	}
	switch o.phase {
	case orderHeld: // the commit, still on its way or never sent, will find the order ended
		if o.under != nil {
			return m.refuse(in, "not committed; abort it instead")
		}
		return m.endResumed(o)
	case orderCommitted: // changed its mind before we got there
		return m.endResumed(o)
	case orderYielding:
		o.resume = true
	case orderYielded:
		o.phase = orderResuming
	}
	return nil // resumed is said when the device is active again
}

func (m *Machine) endResumed(o *order) []Message {
	m.current = o.under
	return m.end(o.id, Message{Type: TypeResumed, ID: o.id, Step: m.progress.Done})
}

func (m *Machine) end(id string, answer Message) []Message {
	if len(m.ended) == MaxEnded {
		m.ended = append(m.ended[:0], m.ended[1:]...)
	}
	m.ended = append(m.ended, ended{id, answer})
	return []Message{answer}
}

// repeatEnded answers an order that ended. A late prepare or commit must neither
// hold the rank again nor hear that it is quiet: it hears how the order ended.
func (m *Machine) repeatEnded(in, answer Message) []Message {
	if answer.Type == TypeResumed && in.Type != TypeAbort {
		return []Message{answer}
	}
	if answer.Type == TypeAborted && in.Type == TypeAbort {
		return []Message{answer}
	}
	return m.refuse(in, "ended: "+string(answer.Type))
}

func (m *Machine) refuse(in Message, reason string) []Message {
	return []Message{{Type: TypeRefused, ID: in.ID, Order: in.Type, Step: in.Step, Begun: m.progress.Begun, Reason: reason}}
}

func (m *Machine) ack(seq int64) {
	n := 0
	for n < len(m.unacked) && m.unacked[n].Seq <= seq {
		n++
	}
	m.unacked = append(m.unacked[:0], m.unacked[n:]...)
}
