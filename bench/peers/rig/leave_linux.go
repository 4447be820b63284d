package rig

// Leavers are clients of which each asks once and then leaves without waiting for the answer.
type Leavers struct {
	crowd
	requests [][]byte
	leaveNs  []int64 // when each left; 0: not yet
	LeftMs   []float64
	asked    []bool // the engine has seen the request
	Asked    int
	Begun    int // answers that have begun
	begun    []bool
	e        *Engine
	everyNs  int64
	nextNs   int64
	opened   int
	left     int
	leaving  bool
	keep     int
}

// Leavers opens n clients through a gateway to e, one every few milliseconds, each naming its trial. request makes the
// request of a trial.
func (r *Rig) Leavers(addr string, e *Engine, n int, everyMs float64, request func(trial int) []byte) (*Leavers, error) {
	base, err := r.crowd(Target{Addr: addr})
	if err != nil {
		return nil, err
	}
	d := &Leavers{crowd: base, e: e, everyNs: int64(everyMs * 1e6), nextNs: r.Now(), leaveNs: make([]int64, n), asked: make([]bool, n), begun: make([]bool, n)}
	for i := range n {
		d.requests = append(d.requests, request(i))
	}
	e.Asked = func(trial int) {
		if trial < n && !d.asked[trial] {
			d.asked[trial] = true
			d.Asked++
		}
	}
	e.Gone = func(trial int, nowNs int64) {
		if trial < n && d.leaveNs[trial] > 0 {
			d.LeftMs = append(d.LeftMs, float64(nowNs-d.leaveNs[trial])/1e6)
		}
	}
	r.timers = append(r.timers, d)
	return d, nil
}

// Leave makes the clients leave, one after the other and the last first, all but keep.
func (d *Leavers) Leave(keep int) { d.leaving, d.keep, d.nextNs = true, keep, d.r.Now() }

// Left reports that all who are to leave have left.
func (d *Leavers) Left() bool { return d.leaving && d.left >= len(d.clients)-d.keep }

// Close ends what is left.
func (d *Leavers) Close() {
	d.e.Asked, d.e.Gone = nil, nil
	d.r.removeTimer(d)
	d.crowd.Close()
}

func (d *Leavers) due() int64 {
	if d.Left() || !d.leaving && d.opened == len(d.requests) {
		return never
	}
	return d.nextNs
}

func (d *Leavers) fire(nowNs int64) {
	d.nextNs += d.everyNs
	if !d.leaving {
		c, err := d.r.dial(&d.to, d, d.opened)
		if err != nil {
			d.r.fail(err)
			return
		}
		d.clients = append(d.clients, c)
		c.ask(d.requests[d.opened], nowNs)
		d.opened++
		return
	}
	i := len(d.clients) - 1 - d.left
	d.left++
	d.leaveNs[i] = d.r.Now()
	d.clients[i].close()
}

func (d *Leavers) body(c *client, _ []byte) {
	if !d.begun[c.index] {
		d.begun[c.index] = true
		d.Begun++
	}
}

func (d *Leavers) answered(c *client)         { d.end(c) }
func (d *Leavers) lost(c *client, asked bool) { d.loss(c) }
