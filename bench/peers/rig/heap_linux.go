package rig

// queued is a stream whose next token is due.
type queued struct {
	dueNs int64
	conn  *engineConn
	turn  int // of the connection's answers: a stale entry names an older one
}

// schedule is a binary heap by due time. The zero value is empty.
type schedule []queued

func (s schedule) due() int64 {
	if len(s) == 0 {
		return never
	}
	return s[0].dueNs
}

func (s *schedule) push(q queued) {
	h := append(*s, q)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up].dueNs <= q.dueNs {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = q
	*s = h
}

// pop takes the first entry; the schedule must not be empty.
func (s *schedule) pop() queued {
	h := *s
	first, last := h[0], h[len(h)-1]
	h[len(h)-1] = queued{}
	h = h[:len(h)-1]
	for i := 0; len(h) > 0; {
		down := 2*i + 1
		if down+1 < len(h) && h[down+1].dueNs < h[down].dueNs {
			down++
		}
		if down >= len(h) || h[down].dueNs >= last.dueNs {
			h[i] = last
			break
		}
		h[i] = h[down]
		i = down
	}
	*s = h
	return first
}
