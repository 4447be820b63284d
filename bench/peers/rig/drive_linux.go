package rig

import (
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

// maxSamples bounds the latencies that are kept; later ones replace them in turn.
const maxSamples = 1 << 20

// samples are latencies in nanoseconds.
type samples struct {
	ns   []int64
	next int
}

func (s *samples) add(ns int64) {
	if len(s.ns) < maxSamples {
		s.ns = append(s.ns, ns)
		return
	}
	s.ns[s.next%maxSamples] = ns
	s.next++
}

// Tally is what clients have seen since it was last cleared.
type Tally struct {
	Answers int // whole, with status 200
	Tokens  int
	Bytes   int // of bodies; not counted in streams
	// Errors are answers with another status, or with an error event, Lost are connections that ended before an answer
	// began, Cut those that ended within one.
	Errors, Lost, Cut int
	MaxNs             int64 // the largest sample
	lat               samples
}

// SamplesUs returns the latencies seen, in microseconds: of answers, or of tokens on their way.
func (t *Tally) SamplesUs() []float64 {
	out := make([]float64, len(t.lat.ns))
	for i, ns := range t.lat.ns {
		out[i] = float64(ns) / 1e3
	}
	return out
}

// Clear begins to count anew.
func (t *Tally) Clear() {
	*t = Tally{lat: samples{ns: t.lat.ns[:0]}}
}

func (t *Tally) sample(ns int64) {
	t.lat.add(ns)
	t.MaxNs = max(t.MaxNs, ns)
}

func (t *Tally) end(c *client) {
	switch {
	case c.in.head.status != 200 || c.scan.bad:
		t.Errors++
	default:
		t.Answers++
	}
}

func (t *Tally) loss(c *client) {
	if c.begun {
		t.Cut++
	} else {
		t.Lost++
	}
}

// crowd is what all drivers share: connections to one target.
type crowd struct {
	Tally
	r       *Rig
	target  Target
	to      unix.SockaddrInet4
	clients []*client
	closed  bool
}

func (r *Rig) crowd(t Target) (crowd, error) {
	to, err := t.sockaddr()
	return crowd{r: r, target: t, to: to}, err
}

// join opens n connections and asks on each.
func (d *crowd) join(own owner, n int) error {
	for i := range n {
		c, err := d.r.dial(&d.to, own, i)
		if err != nil {
			return err
		}
		d.clients = append(d.clients, c)
		c.ask(d.target.Request, d.r.Now())
	}
	return nil
}

// Close ends all connections.
func (d *crowd) Close() {
	d.closed = true
	for _, c := range d.clients {
		c.close()
	}
}

// redial replaces a client's connection.
func (d *crowd) redial(own owner, old *client) *client {
	c, err := d.r.dial(&d.to, own, old.index)
	if err != nil {
		d.r.fail(err)
		return old
	}
	c.scan = old.scan
	d.clients[c.index] = c
	return c
}

// Closed keeps a number of requests outstanding, one a connection.
type Closed struct {
	crowd
	paused  bool
	resting int // connections that wait for Resume
}

// Closed starts n clients that ask again as soon as they are answered.
func (r *Rig) Closed(t Target, n int) (*Closed, error) {
	base, err := r.crowd(t)
	if err != nil {
		return nil, err
	}
	d := &Closed{crowd: base}
	if err := d.join(d, n); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (d *Closed) body(_ *client, p []byte) { d.Bytes += len(p) }

func (d *Closed) answered(c *client) {
	now := d.r.Now()
	d.end(c)
	d.sample(now - c.sentNs)
	if c.fd < 0 {
		c = d.redial(d, c)
	}
	if d.paused {
		d.resting++
		return
	}
	c.ask(d.target.Request, now)
}

// Pause asks nothing more; connections stay open.
func (d *Closed) Pause() { d.paused = true }

// Resting reports that a pause has begun on every connection.
func (d *Closed) Resting() bool { return d.resting == len(d.clients) }

// Resume asks on every connection that rests.
func (d *Closed) Resume() {
	d.paused, d.resting = false, 0
	for _, c := range d.clients {
		if !c.asked {
			c.ask(d.target.Request, d.r.Now())
		}
	}
}

func (d *Closed) lost(c *client, asked bool) {
	if asked {
		d.loss(c)
	}
	switch {
	case d.closed:
	case !d.paused:
		d.redial(d, c).ask(d.target.Request, d.r.Now())
	default:
		d.redial(d, c)
		if asked {
			d.resting++
		}
	}
}

// openConns is how many connections an open loop has. Beyond it requests wait, and their time counts: opening more would
// turn one stall into a storm of new connections, which is another measure.
const openConns = 256

// Open sends requests at random times of a given rate, however slow the answers are. Its latencies count from the time
// that a request should have been sent at. Each connection asks once before the arrivals begin, so that a gateway has its
// own behind it.
type Open struct {
	crowd
	rng    *rand.Rand
	meanNs float64
	nextNs int64 // never: not all connections have been answered yet
	warm   int   // connections that have
	free   []*client
	late   []int64 // intended times of requests without a connection
}

// Open starts an open loop of perS requests a second.
func (r *Rig) Open(t Target, perS float64, seed uint64) (*Open, error) {
	base, err := r.crowd(t)
	if err != nil {
		return nil, err
	}
	d := &Open{crowd: base, rng: rand.New(rand.NewPCG(seed, 1)), meanNs: 1e9 / perS, nextNs: never}
	r.timers = append(r.timers, d)
	if err := d.join(d, openConns); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Ready reports that the arrivals have begun.
func (d *Open) Ready() bool { return d.nextNs != never }

// Close ends the loop.
func (d *Open) Close() {
	d.r.removeTimer(d)
	d.crowd.Close()
}

func (d *Open) due() int64 { return d.nextNs }

func (d *Open) fire(nowNs int64) {
	for n := 0; d.nextNs <= nowNs && n < fireMost; n++ {
		d.send(d.nextNs)
		d.nextNs += int64(d.rng.ExpFloat64() * d.meanNs)
	}
}

func (d *Open) send(ns int64) {
	if n := len(d.free); n > 0 {
		c := d.free[n-1]
		d.free = d.free[:n-1]
		c.ask(d.target.Request, ns)
		return
	}
	d.late = append(d.late, ns)
}

func (d *Open) body(*client, []byte) {}

func (d *Open) answered(c *client) {
	now := d.r.Now()
	d.end(c)
	d.sample(now - c.sentNs)
	if c.fd < 0 {
		c = d.redial(d, c)
	}
	if d.warm++; d.warm == openConns {
		d.nextNs = now
	}
	d.rest(c)
}

// rest gives c the longest waiting request, or leaves it free.
func (d *Open) rest(c *client) {
	if len(d.late) > 0 {
		ns := d.late[0]
		d.late = d.late[1:]
		c.ask(d.target.Request, ns)
		return
	}
	d.free = append(d.free, c)
}

func (d *Open) lost(c *client, asked bool) {
	if d.closed {
		return
	}
	if asked {
		d.loss(c)
		d.rest(d.redial(d, c))
		return
	}
	for i, f := range d.free {
		if f == c {
			d.free = append(d.free[:i], d.free[i+1:]...)
			break
		}
	}
	d.rest(d.redial(d, c))
}

// Streams keeps streams open, one a connection, and takes the time of each token on its way.
type Streams struct {
	crowd
	Begun int // streams whose first token has come
	first []bool
	token func(int64)
	nowNs int64
	last  int64
	want  int
	perS  float64
}

// Streams starts n streams, perS of them a second, each asked for again when it ends.
func (r *Rig) Streams(t Target, n int, perS float64) (*Streams, error) {
	base, err := r.crowd(t)
	if err != nil {
		return nil, err
	}
	d := &Streams{crowd: base, want: n, perS: perS, first: make([]bool, n), last: r.Now()}
	d.token = func(sentNs int64) {
		d.Tokens++
		d.sample(d.nowNs - sentNs)
	}
	r.timers = append(r.timers, d)
	return d, nil
}

// Close ends all streams.
func (d *Streams) Close() {
	d.r.removeTimer(d)
	d.crowd.Close()
}

// Ready reports that every stream has had a token.
func (d *Streams) Ready() bool { return d.Begun == d.want }

func (d *Streams) due() int64 {
	if len(d.clients) == d.want {
		return never
	}
	return d.last + int64(1e9/d.perS)
}

func (d *Streams) fire(nowNs int64) {
	for n := 0; d.due() <= nowNs && n < fireMost; n++ {
		d.last += int64(1e9 / d.perS)
		c, err := d.r.dial(&d.to, d, len(d.clients))
		if err != nil {
			d.r.fail(err)
			return
		}
		d.clients = append(d.clients, c)
		c.ask(d.target.Request, nowNs)
	}
}

func (d *Streams) body(c *client, p []byte) {
	d.nowNs = d.r.Now()
	if !d.first[c.index] {
		d.first[c.index] = true
		d.Begun++
	}
	c.scan.feed(p, d.token)
}

func (d *Streams) answered(c *client) {
	d.end(c)
	if d.closed {
		return
	}
	c.scan.reset()
	if c.fd < 0 {
		c = d.redial(d, c)
	}
	c.ask(d.target.Request, d.r.Now())
}

func (d *Streams) lost(c *client, asked bool) {
	if d.closed {
		return
	}
	if asked {
		d.loss(c)
	}
	c.scan.reset()
	d.redial(d, c).ask(d.target.Request, d.r.Now())
}
